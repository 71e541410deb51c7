"""`manage.py metrics_catalogue`: print docs/metrics.md from the help texts of the metrics."""

from typing import Any

from django.core.management.base import BaseCommand

from pushserver.metrics import page


class Command(BaseCommand):
    help = "Print the page about all metrics."

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(page(), ending="")
