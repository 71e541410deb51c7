"""Tests with the PostgreSQL that operators have: its versions, its compiler, and poolers in front of it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from structlog.testing import capture_logs

from embedded.servers import installed
from embedded.servers.parts import takes
from embedded.servers.ports import free_port
from embedded.servers.postgres import EMBEDDED, EmbeddedPostgres
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import PROJECT
from kit.db.postgresql import versions
from kit.db.postgresql.sessions import EVERY_SESSION
from kit.db.reasons import POOLED
from kit.errors import StartError
from kit.processes import leader
from kit.processes.starting import wait_until_fit
from pushserver.indicators.asking import ask_database
from pushserver.start import fitting
from tests.rig.folders import open_folder
from tests.rig.postgres import UNSYNCED, Cluster

# The read of a batch worker in a table without an index. PostgreSQL uses a disabled plan for it.
LOOK = """
import django; django.setup()
from django.db import connection
from django.utils import timezone
from kit.db.statements import fetch
from kit.batches.batch import Wakeup, Worker
worker = Worker([], Wakeup()); worker.process_batch(now=timezone.now())
fetch("CREATE TEMPORARY TABLE small AS SELECT 1 AS number")
print("\\n".join(line for (line,) in fetch("EXPLAIN (ANALYZE) SELECT count(*) FROM small")))
"""
FEW_LOCKS = "import django; django.setup(); from pushserver.start import fitting; print(*fitting.few_locks())"
DISABLED = (
    "SET enable_seqscan = off",
    "CREATE TEMPORARY TABLE small AS SELECT 1 AS number",
    "EXPLAIN (ANALYZE) SELECT count(*) FROM small",
)


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


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


# Plans ----------------------------------------------------------------------------------------------------------------


def test_no_query_of_a_batch_worker_is_compiled(system: EmbeddedPostgres) -> None:
    """Without our settings it would be: this server compiles queries with a disabled plan."""
    with psycopg.connect(system.url("postgres"), autocommit=True) as outsider:
        *_, plan = [outsider.execute(each.encode()) for each in DISABLED]
        assert "JIT:" in {line for (line,) in plan}
    done = run("-c", LOOK, DATABASE_URL=system.url("postgres"))
    assert "Seq Scan on small" in done.stdout, done.stderr
    assert "JIT:" not in done.stdout


@pytest.mark.parametrize(("days", "is_reported"), [(30, False), (120, True)])
def test_more_days_than_there_are_locks_for_are_reported(
    system: EmbeddedPostgres, days: int, is_reported: bool
) -> None:
    done = run("-c", FEW_LOCKS, DATABASE_URL=system.url("postgres"), NOTIFICATION_RETENTION_DAYS=str(days))
    assert ("room for 6400 locks, which 120 days" in done.stdout) is is_reported, done.stderr


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
                while not asyncio.run(takes(f"tcp://127.0.0.1:{own_port}")):
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
        first = run("manage.py", "check", "--database=default", DATABASE_URL=url)
        assert "(pushserver.odd_session) A pooler keeps jit = off of our sessions" in first.stderr
        remedies = re.findall("ALTER ROLE .*;", first.stderr)
        assert remedies == [f"ALTER ROLE {role} SET {name} = '{value}';" for name, value in EVERY_SESSION.items()]
        with psycopg.connect(system.url("postgres"), autocommit=True) as admin:
            for remedy in remedies:
                admin.execute(remedy.encode())
    with pooled(role) as url:
        second = run("manage.py", "check", "--database=default", DATABASE_URL=url)
    assert "no issues" in second.stdout, second.stderr


def test_a_pooler_that_refuses_our_settings_is_named_in_one_line(pooled: Pooled) -> None:
    with pooled(ignored="") as url:
        done = run("manage.py", "check", "--database=default", DATABASE_URL=url)
    assert done.stderr.splitlines() == [f"manage.py: {POOLED}"]


def test_a_pooler_that_exchanges_sessions_is_named_before_anything_is_prepared(pooled: Pooled) -> None:
    with pooled(mode="transaction") as url:
        done = run("manage.py", "migrate", "--check", DATABASE_URL=url)
    found = [line.partition(") ")[2] for line in done.stderr.splitlines() if "unusable_database" in line]
    assert found == [f"There is {leader.POOLED}."]
    assert "Traceback" not in done.stderr


# Databases ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(system: EmbeddedPostgres) -> Iterator[Callable[[str], str]]:
    """Return ``made(sql)``, which makes a database and an account of the same name, and returns its URL."""
    name = f"made_{uuid4().hex[:8]}"
    with psycopg.connect(system.url("postgres"), autocommit=True) as admin:

        def make(sql: str) -> str:
            for statement in (f"CREATE ROLE {name} LOGIN", sql.format(name=name)):
                admin.execute(statement.encode())
            return system.url(name).replace("postgres@", f"{name}@")

        yield make
        admin.execute(f"DROP DATABASE {name}".encode())
        admin.execute(f"DROP ROLE {name}".encode())


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            "CREATE DATABASE {name}",
            "may not make tables in the schema public, and each day needs new ones: GRANT CREATE",
        ),
        (
            "CREATE DATABASE {name} OWNER {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
            "has the encoding LATIN1",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_with_the_remedy(
    made: Callable[[str], str], sql: str, words: str
) -> None:
    """PostgreSQL 15 lets nobody but the owner of a database make tables in its schema public."""
    done = run("manage.py", "check", "--database=default", DATABASE_URL=made(sql))
    [line] = [line for line in done.stderr.splitlines() if "unusable_database" in line]
    assert words in line
    assert "Traceback" not in done.stderr


@pytest.mark.django_db
def test_sessions_without_a_pooler_begin_with_our_settings() -> None:
    assert list(fitting.odd_session()) == []


# Versions -------------------------------------------------------------------------------------------------------------
def test_the_tested_versions_are_the_embedded_and_the_installed_one_and_those_that_the_readme_promises(
    system: EmbeddedPostgres,
) -> None:
    assert (15, int(EMBEDDED.version)) == (versions.OLDEST, versions.NEWEST)
    assert versions.OLDEST <= int(system.release.version) <= versions.NEWEST
    readme = Path(PROJECT, "README.md").read_text(encoding="utf-8")
    assert f"PostgreSQL {versions.OLDEST} to {versions.NEWEST}" in readme


@pytest.mark.django_db(transaction=True)
def test_a_version_that_is_too_old_is_refused_in_one_line_before_any_query_and_by_readyz(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server is the same. The oldest version that the code accepts is raised."""
    too_old = "is too old: this server needs 99 or newer"
    monkeypatch.setattr(versions, "OLDEST", 99)
    connection.close()
    assert ask_database()[0].endswith(too_old)
    monkeypatch.setattr("kit.processes.starting.sleep", lambda _: monkeypatch.undo())  # until it is upgraded
    with capture_logs() as logs:
        wait_until_fit()
    assert [entry["event"] for entry in logs] == ["start_waits"]
    assert logs[0]["reason"].endswith(too_old)


def test_a_command_refuses_a_version_that_is_too_old_in_one_line(postgres: EmbeddedPostgres) -> None:
    program = """import sys; sys.argv = ["manage.py", "migrate"]; from kit.db.postgresql import versions
versions.OLDEST = 99; import runpy; runpy.run_path("manage.py", run_name="__main__")"""
    done = run("-c", program, DATABASE_URL=postgres.url("postgres"))
    [line] = done.stderr.splitlines()
    assert re.fullmatch(r"manage\.py: PostgreSQL \d+\.\d+ is too old: this server needs 99 or newer", line)


@pytest.mark.django_db
def test_a_version_newer_than_all_tested_ones_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(fitting.untried_version()) == []
    monkeypatch.setattr(versions, "NEWEST", 1)
    [line] = fitting.untried_version()
    assert re.fullmatch(r"PostgreSQL \d+\.\d+ is not tested with this server: 1 is the newest tested version\.", line)


# The choice of tests and benchmarks by DATABASE -----------------------------------------------------------------------


def test_tests_and_benchmarks_run_on_the_embedded_server_or_the_newest_installed_one(tmp_path: Path) -> None:
    assert installed.chosen({}) == installed.chosen({"DATABASE": "embedded"}) == EMBEDDED
    with pytest.raises(StartError, match="DATABASE is postgres: it can be embedded or system"):
        installed.chosen({"DATABASE": "postgres"})
    with pytest.raises(StartError, match="apt-get install postgresql"):
        installed.installed(tmp_path)
    for version in ("9", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "postgres").touch()
    found = installed.installed(tmp_path)
    assert (found.version, found.folder, found.settings) == ("17", tmp_path / "17" / "bin", {"listen_addresses": ""})
