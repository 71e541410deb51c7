"""Processes of `manage.py up` and compose.yaml: the settings of their commands, and the database before they start."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from embedded.stack import database
from embedded.stack.plan import local_address, services, web
from embedded.stack.running import only_one
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from notifications.gateways.gorush.models import GatewayErrorRule
from pushserver.celery import app
from pushserver.release import known_migrations


def plan(*, has_xmpp: bool = False) -> dict[str, ProcessSpec]:
    return {spec.name: spec for spec in [web("::1", 1), *services(cpus=5, has_xmpp=has_xmpp)]}


def queues_in(commands: list[str]) -> list[str]:
    lists = re.findall(r"--queues=(\S+)", " ".join(commands))
    return sorted(chain.from_iterable(names.split(",") for names in lists))


def test_up_and_compose_serve_every_queue_once_with_one_kind_of_work_for_each_worker() -> None:
    """Deriving keys costs CPU time, reports take hours, and the canary waits for batches."""
    commands = {name: " ".join(spec.command) for name, spec in plan().items()}
    served = {name: queues_in([command]) for name, command in commands.items()}
    assert {name: queues for name, queues in served.items() if queues} == {
        "batches": ["batches"],
        "tasks": ["canary", "keys", "maintenance"],
        "reports": ["reports"],
    }
    assert {"--pool=prefork", "--concurrency=5"} <= set(plan()["batches"].command)
    routed = {route["queue"] for route in settings.CELERY["task_routes"].values()}
    assert routed | {settings.CELERY["task_default_queue"]} == set(app.amqp.queues)
    composed = yaml.safe_load((settings.BASE_DIR / "compose.yaml").read_text(encoding="utf-8"))
    written = [service.get("command", "") for service in composed["services"].values()]
    of_compose = queues_in([each if isinstance(each, str) else " ".join(each) for each in written])
    assert sorted(app.amqp.queues) == of_compose == queues_in([*commands.values()])


def test_input_stops_before_work_and_one_process_shows_the_counts_of_all() -> None:
    assert plan().keys() == {"web", "bridge", "batches", "tasks", "reports"}
    specs = plan(has_xmpp=True)
    front = {name for name, spec in specs.items() if spec.stop_order == StopOrder.FRONT}
    assert front == {"web", "bridge", "xmpp"}
    assert {spec.stop_order for name, spec in specs.items() if name not in front} == {StopOrder.WORKER}
    silent = {name for name, spec in specs.items() if spec.environment.get("METRICS_PORT") == "0"}
    assert silent == {"xmpp", "batches", "tasks", "reports"}
    assert (specs["xmpp"].command[-1], specs["xmpp"].announces_ready) == ("run_xmpp_bridge", True)


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("push.example.org", "push.example.org")],  # noqa: S104
)
def test_a_server_is_reached_locally(host: str, address: str) -> None:
    assert local_address(host) == address


# Settings -------------------------------------------------------------------------------------------------------------
EVERY = {"DATABASE_URL", "REDIS_URL", "WAKU_NODES", "GORUSH_URL"}
COMPONENT = {f"XMPP_COMPONENT_{name}" for name in ("JID", "SECRET", "HOST", "PORT")}


def settings_of(command: str, data_dir: Path, **environment: str) -> dict[str, Any]:
    """Return settings of a `manage.py` command, by its own entry point."""
    program = f"""import sys; sys.argv = ["manage.py", "{command}"]
import django.core.management as management; management.execute_from_command_line = lambda argv: None
import runpy; runpy.run_path("manage.py", run_name="__main__")
from django.conf import settings as s; import json
print(json.dumps({{"embedded": s.EMBEDDED, "database": s.DATABASE_URL, "redis": s.REDIS_URL, "nodes": s.WAKU_NODES,
    "gorush": s.GORUSH_URLS, "component": s.XMPP_COMPONENT_JID, "is_demonstration": s.DEMONSTRATION}}))"""
    ours = {name: value for name, value in os.environ.items() if name not in EVERY}
    given = {**ours, "DATA_DIR": str(data_dir), **environment}
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, env=given, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def test_up_has_the_addresses_of_its_servers_before_it_writes_them_and_none_for_configured_ones(tmp_path: Path) -> None:
    settings_of("check", tmp_path)  # makes the secrets
    before = sorted(tmp_path.rglob("*"))
    found = settings_of("up", tmp_path)
    embedded = found["embedded"]
    assert embedded.keys() == EVERY
    assert (found["database"], found["redis"]) == (embedded["DATABASE_URL"], embedded["REDIS_URL"])
    assert (found["nodes"], found["gorush"]) == ([embedded["WAKU_NODES"]], [embedded["GORUSH_URL"]])
    assert sorted(tmp_path.rglob("*")) == before

    found = settings_of("up", tmp_path, REDIS_URL="redis://elsewhere/1", WAKU_NODES="http://127.0.0.1:8645")
    assert found["embedded"].keys() == {"DATABASE_URL", "GORUSH_URL"}
    assert (found["redis"], found["nodes"]) == ("redis://elsewhere/1", ["http://127.0.0.1:8645"])


@pytest.mark.parametrize("own", [{}, {"XMPP_COMPONENT_JID": "push.example.org", "XMPP_COMPONENT_SECRET": "s"}])
def test_a_demonstration_leaves_the_component_of_an_operator_alone(tmp_path: Path, own: dict[str, str]) -> None:
    (tmp_path / "prosody").write_text("#!/bin/sh\n")
    (tmp_path / "prosody").chmod(0o755)
    found = settings_of("demo", tmp_path / "data", PATH=f"{tmp_path}:{os.environ['PATH']}", **own)
    assert found["embedded"].keys() & COMPONENT == (set() if own else COMPONENT)
    assert found["component"] == own.get("XMPP_COMPONENT_JID", "push.montague.test")
    assert found["is_demonstration"] is True


@pytest.mark.parametrize("is_up", [True, False])
def test_another_command_reads_what_a_running_server_noted_and_nothing_of_a_killed_one(
    tmp_path: Path, is_up: bool
) -> None:
    noted = {"REDIS_URL": "redis://127.0.0.1:7/0", "GORUSH_URL": "http://127.0.0.1:8", "DEMONSTRATION": "1"}
    with ExitStack() as running:
        running.enter_context(only_one(tmp_path))
        (tmp_path / "embedded.json").write_text(json.dumps(noted))
        if not is_up:
            running.close()
        found = settings_of("shell", tmp_path, GORUSH_URL="http://gorush.example.org")
    kept = {name: noted[name] for name in ("REDIS_URL", "DEMONSTRATION")}
    assert found["embedded"] == (kept if is_up else {})
    assert (found["redis"] == noted["REDIS_URL"], found["is_demonstration"]) == (is_up, is_up)
    assert found["gorush"] == ["http://gorush.example.org"]


# The database: migrations, the first user, and faults in one line -----------------------------------------------------
def test_the_files_are_the_migrations_that_django_finds():
    """They include the migrations of the console and its packages, which workers do not install."""
    assert known_migrations() == set(MigrationLoader(None).disk_migrations)


@pytest.mark.django_db
def test_a_migrated_database_gets_what_this_version_brings_and_a_first_user(capfd):
    Group.objects.all().delete()
    GatewayErrorRule.objects.all().delete()

    database.bring_up_to_date()

    assert set(Group.objects.values_list("name", flat=True)) == {"support", "operator", "admin"}
    assert GatewayErrorRule.objects.exists()
    assert User.objects.get().is_superuser
    assert "Console user: admin, password: " in capfd.readouterr().out
    database.bring_up_to_date()
    assert "password" not in capfd.readouterr().out


@pytest.mark.django_db
def test_a_database_of_a_newer_version_is_named_in_one_line_and_used(capfd):
    """A downgrade is possible: an older version runs on a database that a newer one migrated."""
    MigrationRecorder(connection).record_applied("notifications", "9999_later")
    database.bring_up_to_date()
    shown = capfd.readouterr().err.splitlines()
    assert len(shown) == 1
    assert shown[0].startswith("The database was migrated by a newer version: notifications.9999_later is not part of ")


def test_a_command_that_finds_no_database_says_so_in_one_line():
    environment = os.environ | {"DATABASE_URL": "postgresql://nobody:secret@127.0.0.1:1/nothing"}
    command = [sys.executable, str(PROJECT / "manage.py"), "migrate", "--no-input"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    [line] = done.stderr.splitlines()
    assert line.startswith("manage.py: PostgreSQL cannot be reached: connection failed: ")
    assert (done.returncode, "secret" in line) == (1, False)
