"""Prepare the database before anything uses it: wait for it, migrate it, load this version's rows, create a first user.

This runs in a process of its own, because no connection may be open when other children are forked.
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder

from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules_table import load_seed
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.release import compare
from pushserver.roles import seed_roles
from pushserver.stack.fitting import foreign_field_keys, foreign_private_key
from pushserver.supervisor.processes import PROJECT

START_SECONDS = 60.0


def bring_up_to_date(embedded: EmbeddedPostgres | None) -> None:
    """Wait for the database, migrate it if needed, load what belongs to this version, and compare the keys with what is
    stored.
    """
    if embedded is not None:
        _wait_for(embedded)
    try:
        applied = set(MigrationRecorder(connection).applied_migrations())
    except OperationalError as error:
        raise SystemExit(f"PostgreSQL cannot be reached: {error}") from error
    schema = compare(known_migrations(), applied)
    if schema.newer:
        print(f"The database was {schema.words}. Go back to that version soon.", file=sys.stderr)  # noqa: T201
    if schema.missing:
        migrate()
    else:
        # Rows and roles that a version brings without a migration; `migrate` would have loaded them.
        load_seed(GatewayErrorRule)
        seed_roles()
    for problem in foreign_field_keys():
        raise SystemExit(problem)
    for problem in foreign_private_key():
        print(problem, file=sys.stderr)  # noqa: T201
    call_command("first_admin")


def migrate() -> None:
    """Run `manage.py migrate` in a process that installs the apps of the console, whose tables are migrated as well."""
    command = [sys.executable, str(PROJECT / "manage.py"), "migrate", "--no-input"]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("`manage.py migrate` failed; its messages are above.")


def known_migrations() -> set[tuple[str, str]]:
    """Return app and name of every migration of the whole server.

    They are found as files, which is faster than importing them.
    """
    apps = {*settings.INSTALLED_APPS, *settings.PAGE_APPS, "django.contrib.admin"}
    return {(name.rpartition(".")[2], file.stem) for name in apps for file in _migrations_of(name)}


def _migrations_of(name: str) -> Iterator[Path]:
    top, *below = name.partition(".apps.")[0].split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from Path(folder, *below, "migrations").glob("[0-9a-z]*.py")


def _wait_for(embedded: EmbeddedPostgres) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not embedded.is_ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"PostgreSQL is not ready after {START_SECONDS:g} s; its messages are above.")
        time.sleep(0.02)
