"""`manage.py version`: print which version this is, and whether the database fits it."""

import platform
from collections.abc import Iterator
from typing import Any

import django
from django.core.management.base import BaseCommand
from django.db import OperationalError, connection

from kit.db.base import TooOldError
from pushserver.checks import schema, untried_version
from pushserver.release import version


class Command(BaseCommand):
    help = "Print the version of the server, of Python and Django, and whether the database fits."
    requires_system_checks = ()  # the version is printed also with a wrong configuration

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(f"pushserver {version()}")
        self.stdout.write(f"Python {platform.python_version()}, Django {django.__version__}")
        for line in _database():
            self.stdout.write(line)


def _database() -> Iterator[str]:
    try:
        yield f"database {schema().words}"
        yield next(untried_version(), f"PostgreSQL {'.'.join(map(str, connection.get_database_version()))}")
    except TooOldError as error:
        yield str(error)
    except OperationalError:
        yield "database cannot be reached"
