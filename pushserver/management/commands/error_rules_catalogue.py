"""`manage.py error_rules_catalogue`: print docs/error-rules.md from the error rules and their advice."""

from typing import Any

from django.core.management.base import BaseCommand

from pushserver.console.gorush.advice import page


class Command(BaseCommand):
    help = "Print the page about the error rules that come with the server."

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(page(), ending="")
