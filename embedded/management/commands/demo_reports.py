"""`manage.py demo_reports`: publish two weeks of made-up reports, so that a demonstration has charts at once."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from embedded.demo.reports import publish_stored


class Command(BaseCommand):
    help = "Publish two weeks of made-up reports where there are none. For demonstrations only."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if settings.EMBEDDED.get("DATABASE_URL") != settings.DATABASE_URL:
            raise CommandError("Made-up reports are for the embedded database of a demonstration only.")
        publish_stored()
