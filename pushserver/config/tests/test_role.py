"""Roles of processes: the web server, its parent and commands of an operator import the console; others do not."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from django.db import connection

from embedded.servers.postgres import EmbeddedPostgres
from embedded.supervisor.processes import PROJECT
from pushserver import settings
from pushserver.config import role
from pushserver.config.role import Role
from tests.rig.budget import first_everyday

# What a process imports before it is ready, with a twentieth to spare. A start takes as long as its imports, and the
# seconds of one say more about the machine: `make bench` (life) has them.
MAX_MODULES = {"worker": 1650, "up": 2500, "wsgi": 2190}
NOT_FOR_WORKERS = {"rest_framework", "unfold", "django.contrib.admin", "drf_spectacular", "pushserver.console.pages"}


# What the containers of workers have, beside the address of Redis.
OF_WORKERS = {
    "DATABASE_URL": "postgresql://127.0.0.1/push",
    "FIELD_ENCRYPTION_KEYS": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "SERVER_PRIVATE_KEY": "04" * 32,
    "SECRET_KEY": "",
}


def begun(name):
    """Return the statement with which the entry point ``name`` begins: a module of ours, or a command of manage.py."""
    if name in {"worker", "wsgi"}:
        return f"import pushserver.{name}"
    return f"from pushserver.config.role import *; begin_command({name!r})"


def printed(program, **environment):
    """Return what a program prints in this environment, without a fault."""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, cwd=PROJECT, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def facts_of(name):
    """Return the mode of a file that the process ``name`` writes, and the options of its sessions."""
    program = f"""import json, os, pathlib, tempfile; os.umask(0o022); {begun(name)}; from pushserver import settings
with tempfile.TemporaryDirectory() as folder:
    (file := pathlib.Path(folder, "written")).write_text("")
    print(json.dumps([file.stat().st_mode & 0o777, settings.DATABASES["default"]["OPTIONS"]["options"]]))"""
    return json.loads(printed(program))


@pytest.fixture
def unnamed(monkeypatch):
    monkeypatch.setattr(role, "_named", [])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        *[("up", Role.SERVER), ("demo", Role.SERVER)],
        *[("run_waku_bridge", Role.WORKER), ("run_xmpp_bridge", Role.WORKER), ("demo_clients", Role.WORKER)],
        *[("migrate", Role.COMMAND), ("", Role.COMMAND), ("-c", Role.COMMAND)],
    ],
)
def test_a_command_names_its_role(command, expected):
    """By the program itself: `manage.py check` would ask for more than the settings."""
    program = f"""import sys; sys.argv = ["manage.py", *{[command] if command else []}]
import django.core.management as management; management.execute_from_command_line = lambda argv: None
import runpy; runpy.run_path("manage.py", run_name="__main__")
from django.conf import settings; print(settings.ROLE)"""
    assert printed(program).split() == [expected]


def test_the_first_role_stays_and_a_process_without_one_is_a_command(unnamed):
    assert role.role() is Role.COMMAND
    role.begin_as(Role.SERVER, ["web"])
    role.begin_as(Role.WORKER, ["tasks"])
    assert (role.role(), role.processes()) == (Role.SERVER, ["web"])


@pytest.mark.parametrize(
    ("arguments", "processes"),
    [
        ("--queues=batches", {"batches"}),
        ("-l info --queues batches", {"batches"}),
        ("-Q batches -c 1", {"batches"}),
        ("-Qmaintenance,keys,canary", {"tasks"}),
        ("--quiet -Q reports,keys", {"reports", "tasks"}),
        ("--pool=threads", {"batches", "tasks", "reports"}),
    ],
)
def test_a_worker_is_the_processes_of_its_queues(arguments, processes):
    assert role.serving(["celery", "--app=pushserver.worker", "worker", *arguments.split()]) == processes


def test_a_worker_without_a_role_is_refused():
    command = [sys.executable, "-m", "celery", "--app=pushserver", "worker"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "A worker needs its role: start it as `celery --app=pushserver.worker worker`."
    )


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *[("up", 0o600), ("run_waku_bridge", 0o600), ("worker", 0o600), ("wsgi", 0o600)],
        ("makemigrations", 0o644),  # what a developer writes is for a repository
    ],
)
def test_files_written_by_the_server_are_closed_to_other_accounts(name, mode):
    assert facts_of(name)[0] == mode


@pytest.mark.parametrize("key", ["", "04" * 32])
def test_a_process_without_the_servers_key_exports_its_errors_and_traces_nothing(key):
    program = f"""import logging; {begun("export_events")}; from pushserver import settings
print(settings.TRACES, "ErrorHandler" in str(logging.getLogger().handlers))"""
    url = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "DATABASE_URL": "postgresql://127.0.0.1/push"}
    assert printed(program, SERVER_PRIVATE_KEY=key, **url).split() == [str(bool(key)), "True"]


@pytest.mark.parametrize(("command", "problems"), [("canary", []), ("check", ["pushserver.missing_secret_key"])])
def test_a_command_in_the_container_of_a_worker_needs_no_secret_of_the_console(command, problems):
    program = f"""import json; {begun(command)}; from pushserver import settings
print(json.dumps([problem.id for problem in settings.CONFIGURATION_PROBLEMS]))"""
    assert json.loads(printed(program, **OF_WORKERS)) == problems


def test_a_worker_shows_its_configuration_without_the_secret_of_the_console():
    program = f"{begun('worker')}; from pushserver.worker import app; print(app.conf.humanize(with_defaults=False))"
    assert "pushserver.tasks.count_traffic" in printed(program, **OF_WORKERS)


@pytest.mark.parametrize(
    ("environment", "is_secure", "hsts_seconds"),
    [
        ({"HOST": "127.0.0.1"}, False, 0),
        ({"HOST": "127.0.0.1", "BEHIND_HTTPS_PROXY": "1"}, True, 31_536_000),
        ({"HOST": "192.0.2.1"}, True, 0),
    ],
)
def test_cookies_go_over_https_only_but_on_loopback_without_a_proxy(environment, is_secure, hsts_seconds):
    program = """import json; from pushserver import settings as s
print(json.dumps([s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_HSTS_SECONDS]))"""
    assert json.loads(printed(program, **environment)) == [is_secure, is_secure, hsts_seconds]


@pytest.mark.parametrize(("name", "seconds"), [("worker", 30), ("wsgi", 30), ("up", 30), ("rotate_field_keys", 0)])
def test_a_database_notices_a_process_that_hangs(name, seconds):
    assert f"-c idle_in_transaction_session_timeout={seconds * 1000}ms" in facts_of(name)[1]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://ann:p%40ss@one:5432,other:5433/push?sslmode=require",
            {"HOST": "one,other", "PORT": "5432,5433", "USER": "ann", "PASSWORD": "p@ss", "NAME": "push"}
            | {"sslmode": "require", "target_session_attrs": "read-write"},
        ),
        (
            "postgres://ann@one,other,third/push?target_session_attrs=any",
            {"HOST": "one,other,third", "PORT": ",,", "PASSWORD": "", "target_session_attrs": "any"},
        ),
        ("postgresql://ann@one/push", {"HOST": "one", "target_session_attrs": None}),
        ("postgresql://ann@/push?host=%2Frun%2Fa%20b&port=5433", {"HOST": "/run/a b", "PORT": "5433", "NAME": "push"}),
        ("postgresql://[2001:db8::1]:5432,[2001:db8::2]/push", {"HOST": "2001:db8::1,2001:db8::2", "PORT": "5432,"}),
    ],
)
def test_the_servers_of_the_database_are_those_of_the_url(monkeypatch, url, expected):
    monkeypatch.setattr(settings, "DATABASE_URL", url)
    found = settings._database()
    assert {name: {**found["OPTIONS"], **found}.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "url", first_everyday("mysql://h/n", "host=h dbname=n", "postgresql://h", "postgresql://h/n?unknown=1")
)
def test_a_url_that_libpq_refuses_is_a_problem(url):
    run = [sys.executable, "manage.py", "check"]
    environment = os.environ | {"DATABASE_URL": url}
    done = subprocess.run(run, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "pushserver.bad_database_url" in done.stderr) == (1, True)


DJANGO = "import django; django.setup(); from django.core import checks; checks.run_checks(); "
BRIDGE = "waku_bridge.management.commands.run_waku_bridge"


@pytest.mark.parametrize(
    ("name", "code", "needed", "is_without_pages"),
    [
        # The worker is measured with its tasks, after the checks that Celery makes at every start.
        ("worker", "pushserver.worker.app.loader.import_default_modules()", {"pushserver.console.tasks"}, True),
        ("run_waku_bridge", f"{DJANGO}import {BRIDGE}", {BRIDGE}, True),
        ("up", f"{DJANGO}from embedded.stack.plan import preload; preload()", {BRIDGE, "pushserver.urls"}, False),
        ("wsgi", "import pushserver.urls", set(), False),
    ],
)
def test_a_process_imports_what_it_and_its_children_need_and_not_much_else(name, code, needed, is_without_pages):
    program = f"{begun(name)}; {code}; import gc, json, sys; print(json.dumps([gc.isenabled(), sorted(sys.modules)]))"
    is_collecting, names = json.loads(printed(program, DJANGO_SETTINGS_MODULE="pushserver.settings"))
    modules = set(names)
    assert is_collecting
    assert needed <= modules
    assert modules & NOT_FOR_WORKERS == (set() if is_without_pages else NOT_FOR_WORKERS)
    assert len(modules) <= MAX_MODULES.get(name, MAX_MODULES["worker"])


@pytest.mark.django_db(transaction=True)
def test_a_worker_looks_at_the_lights_without_the_console(postgres: EmbeddedPostgres) -> None:
    """Migrations of ours depend on some of the console's, which a worker has not installed."""
    program = """import pushserver.worker, django; django.setup()
from django.utils import timezone
from pushserver.console.health.watch import Watch; Watch().look(timezone.now())"""
    printed(program, DATABASE_URL=postgres.url(connection.settings_dict["NAME"]))
