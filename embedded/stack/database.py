"""Preparation of the database before its use: migrate, load this version's rows, create a first user.

This runs in a process of its own, because no connection may be open when other children are forked.
"""

import subprocess
import sys
from itertools import chain

from django.core.management import call_command
from django.db import OperationalError

from embedded.supervisor.processes import PROJECT
from kit.db.reasons import reason, words
from notifications.gateways.gorush.models import load_shipped
from pushserver import checks
from pushserver.roles import seed_roles


def bring_up_to_date() -> None:
    """Migrate the database if needed, load this version's rows, and check the keys."""
    try:
        _bring_up_to_date()
    except OperationalError as error:
        raise SystemExit(words(error) or reason(error)) from error


def _bring_up_to_date() -> None:
    for fault in checks.unusable_database():
        raise SystemExit(fault)
    found = checks.schema()
    if found.is_too_old:
        raise SystemExit(f"The database is {found.words}.")
    if found.missing:
        migrate()
    else:
        # Rows and roles that a version brings without a migration. `migrate` would have loaded them.
        load_shipped()
        seed_roles()
    for fault in chain.from_iterable(ask() for ask in checks.FAULTS):
        raise SystemExit(fault)
    for oddity in chain.from_iterable(ask() for ask in checks.ODDITIES):
        print(oddity, file=sys.stderr)  # noqa: T201
    call_command("first_admin")


def migrate() -> None:
    """Run `manage.py migrate` in a process that installs the apps of the console, whose tables are migrated as well."""
    command = [sys.executable, str(PROJECT / "manage.py"), "migrate", "--no-input"]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("`manage.py migrate` failed; its messages are above.")
