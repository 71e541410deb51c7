"""`manage.py version`: print which version this is, and whether the database fits it."""

import platform
from typing import Any

import django
from django.core.management.base import BaseCommand
from django.db import OperationalError

from pushserver.release import version
from pushserver.stack.fitting import schema


class Command(BaseCommand):
    help = "Print the version of the server, of Python and Django, and whether the database fits."
    requires_system_checks = ()  # it tells the version also where something is configured wrong

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(f"pushserver {version()}")
        self.stdout.write(f"Python {platform.python_version()}, Django {django.__version__}")
        self.stdout.write(f"database {_database()}")


def _database() -> str:
    try:
        return schema().words
    except OperationalError:
        return "cannot be reached"
