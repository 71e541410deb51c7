"""Tests with the PostgreSQL that operators have: its versions, its compiler, and poolers in front of it."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.db import connection

from embedded.servers import installed
from embedded.servers.ports import free_port, is_free
from embedded.servers.postgres import EMBEDDED, EmbeddedPostgres
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import PROJECT
from kit.db import base
from kit.db.reasons import POOLED
from kit.db.sessions import EVERY_SESSION
from kit.processes import StartError, leader
from kit.processes.starting import wait_until_fit
from pushserver.console.health.asking import ask_database
from tests.rig.folders import open_folder
from tests.rig.logs import capture_logs
from tests.rig.postgres import UNSYNCED, Cluster
from tests.rig.server import manage_py


@pytest.fixture(scope="module")
def system(require_or_skip: Callable[[bool, str], None], guard: Guard) -> Iterator[EmbeddedPostgres]:
    """Yield PostgreSQL as Debian installs it."""
    programs = list(installed.DEBIAN.glob("*/bin/postgres"))
    require_or_skip(bool(programs), "PostgreSQL is not installed (on Debian: apt-get install postgresql)")
    with open_folder() as folder:
        cluster = Cluster(EmbeddedPostgres(folder / "postgres", UNSYNCED, installed.installed()), guard)
        cluster.start()
        yield cluster.server
        cluster.kill()


@pytest.fixture
def role(system: EmbeddedPostgres) -> Iterator[str]:
    """Yield an account of the test's own, whose settings no other test shares."""
    name = f"role_{uuid4().hex[:8]}"
    with psycopg.connect(system.url("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")
        yield name
        admin.execute(f"DROP ROLE {name}")


# Poolers --------------------------------------------------------------------------------------------------------------
PGBOUNCER = Path("/usr/sbin/pgbouncer")
CONFIGURATION = """
[databases]
* = host={folder} port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
ignore_startup_parameters = {ignored}extra_float_digits
"""
Pooled = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def pooled(system: EmbeddedPostgres, guard: Guard, require_or_skip: Callable[[bool, str], None]) -> Pooled:
    """Return ``pooled(role)``, which runs a PgBouncer and yields the URL of a database through it."""
    require_or_skip(PGBOUNCER.exists(), "PgBouncer is not installed (on Debian: apt-get install pgbouncer)")

    @contextmanager
    def run_pooler(role: str = "postgres", *, mode: str = "session", ignored: str = "options,") -> Iterator[str]:
        own_port, folder = free_port(), system.socket_dir
        with open_folder() as made:
            file, users = made / "pgbouncer.ini", made / "users"
            file.write_text(
                CONFIGURATION.format(folder=folder, own_port=own_port, users=users, mode=mode, ignored=ignored)
            )
            users.write_text(f'"{role}" ""\n')
            for each in (file, users):
                each.chmod(0o644)
            account = ["-u", folder.owner()] if os.geteuid() == 0 else []
            with subprocess.Popen([PGBOUNCER, "-q", *account, file], stderr=subprocess.DEVNULL) as process:
                guard.watch(process.pid, signal.SIGTERM)
                while is_free("127.0.0.1", own_port):
                    assert process.poll() is None
                    time.sleep(0.05)
                try:
                    yield f"postgresql://{role}@127.0.0.1:{own_port}/postgres"
                finally:
                    process.terminate()
            guard.forget(process.pid)

    return run_pooler


def test_a_pooler_that_drops_our_settings_is_named_with_the_remedy(
    system: EmbeddedPostgres, pooled: Pooled, role: str
) -> None:
    with pooled(role) as url:
        first = manage_py("check", "--database=default", DATABASE_URL=url)
        assert "(pushserver.odd_session) A pooler keeps jit = off of our sessions" in first.stderr
        remedies = re.findall("ALTER ROLE .*;", first.stderr)
        assert remedies == [f"ALTER ROLE {role} SET {name} = '{value}';" for name, value in EVERY_SESSION.items()]
        with psycopg.connect(system.url("postgres"), autocommit=True) as admin:
            for remedy in remedies:
                admin.execute(remedy.encode())
    with pooled(role) as url:
        second = manage_py("check", "--database=default", DATABASE_URL=url)
    assert "no issues" in second.stdout, second.stderr


@pytest.mark.parametrize(
    ("options", "command", "line"),
    [
        ({"ignored": ""}, ("check", "--database=default"), f"manage.py: {POOLED}"),
        (
            {"mode": "transaction"},
            ("migrate", "--check"),
            f"?: (pushserver.unusable_database) There is {leader.POOLED}.",
        ),
    ],
    ids=["that refuses our settings", "that exchanges sessions"],
)
def test_a_pooler_is_named_in_one_line_before_anything_is_prepared(
    pooled: Pooled, options: dict[str, str], command: tuple[str, ...], line: str
) -> None:
    with pooled(**options) as url:
        done = manage_py(*command, DATABASE_URL=url)
    assert line in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


# Databases ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "may not make tables in the schema public, and each day needs new ones: GRANT CREATE"),
        ("OWNER {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'", "has the encoding LATIN1"),
    ],
    ids=["without rights", "without Unicode"],
)
def test_a_database_that_cannot_be_used_is_refused_with_the_remedy(
    system: EmbeddedPostgres, role: str, options: str, words: str
) -> None:
    """PostgreSQL 15 lets nobody but the owner of a database make tables in its schema public."""
    with psycopg.connect(system.url("postgres"), autocommit=True) as admin:
        admin.execute(f"ALTER ROLE {role} NOSUPERUSER".encode())
        admin.execute(f"CREATE DATABASE {role} {options.format(name=role)}".encode())
        url = system.url(role).replace("postgres@", f"{role}@")
        done = manage_py("check", "--database=default", DATABASE_URL=url)
        admin.execute(f"DROP DATABASE {role}".encode())
    [line] = [line for line in done.stderr.splitlines() if "unusable_database" in line]
    assert words in line
    assert "Traceback" not in done.stderr


# Versions -------------------------------------------------------------------------------------------------------------
def test_the_tested_versions_are_the_embedded_and_the_installed_one_and_those_that_the_readme_promises(
    system: EmbeddedPostgres,
) -> None:
    assert (15, int(EMBEDDED.version)) == (base.OLDEST, base.NEWEST)
    assert base.OLDEST <= int(system.release.version) <= base.NEWEST
    readme = Path(PROJECT, "README.md").read_text(encoding="utf-8")
    assert f"PostgreSQL {base.OLDEST} to {base.NEWEST}" in readme


def test_an_unknown_or_absent_server_for_tests_and_benchmarks_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="DATABASE is postgres: it can be embedded or system"):
        installed.chosen({"DATABASE": "postgres"})
    with pytest.raises(StartError, match="apt-get install postgresql"):
        installed.installed(tmp_path)


@pytest.mark.django_db(transaction=True)
def test_a_version_that_is_too_old_is_refused_in_one_line_before_any_query_and_by_readyz(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_old = "is too old: this server needs 99 or newer"
    monkeypatch.setattr(base, "OLDEST", 99)
    connection.close()
    assert ask_database()["database"].endswith(too_old)
    monkeypatch.setattr("kit.processes.starting.sleep", lambda _: monkeypatch.undo())  # until it is upgraded
    with capture_logs() as logs:
        wait_until_fit()
    assert [entry["event"] for entry in logs] == ["start_waits"]
    assert logs[0]["reason"].endswith(too_old)
