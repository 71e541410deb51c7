"""`manage.py settings_catalogue`: print docs/settings.md from the catalogue and from how the settings are read."""

from typing import Any

from django.core.management.base import BaseCommand

from pushserver.config.page import page


class Command(BaseCommand):
    help = "Print the page about all settings."

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(page(), ending="")
