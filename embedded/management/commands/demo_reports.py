"""`manage.py demo_reports`: publish two weeks of made-up reports, so that a demonstration has charts at once."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from kit.db.timeouts import REPORTS, timeouts
from spark_reports.running.parts import missing


class Command(BaseCommand):
    help = "Publish two weeks of made-up reports where there are none. For demonstrations only."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if settings.EMBEDDED.get("DATABASE_URL") != settings.DATABASE_URL:
            raise CommandError("Made-up reports are for the embedded database of a demonstration only.")
        if lack := missing():
            self.stdout.write(lack)
            return
        from embedded.demo.reports import make_reports  # noqa: PLC0415 - needs what may not be installed
        from spark_reports.running.runs import RunError  # noqa: PLC0415 - as above

        try:
            with timeouts(REPORTS):
                make_reports()
        except RunError as error:
            raise SystemExit(str(error)) from error
