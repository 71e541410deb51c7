"""Processes of `manage.py up` and compose.yaml, and the settings of its commands: each queue has its worker, and each
server its address.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import yaml
from django.conf import settings

from embedded.stack.plan import local_address, services, web
from embedded.stack.running import only_one
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from pushserver.celery import app


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
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    assert routed | {settings.CELERY_TASK_DEFAULT_QUEUE} == set(app.amqp.queues)
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
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("push.example.org", "push.example.org"),
    ],
)
def test_a_server_is_reached_locally(host: str, address: str) -> None:
    assert local_address(host) == address


# Settings -------------------------------------------------------------------------------------------------------------
EVERY = {"DATABASE_URL", "REDIS_URL", "WAKU_NODES", "GORUSH_URL"}
COMPONENT = {f"XMPP_COMPONENT_{name}" for name in ("JID", "SECRET", "HOST", "PORT")}


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stack") / "data"
    settings_of("check", folder)
    return folder


@pytest.fixture
def data_dir(first_start: Path, tmp_path: Path) -> Path:
    """Return a DATA_DIR with the secrets that settings make at any start."""
    return Path(shutil.copytree(first_start, tmp_path / "data"))


def settings_of(command: str, data_dir: Path, **environment: str) -> dict[str, object]:
    """Return settings of a `manage.py` command, by its own entry point."""
    program = f"""import sys; sys.argv = ["manage.py", "{command}"]
import django.core.management as management; management.execute_from_command_line = lambda argv: None
import runpy; runpy.run_path("manage.py", run_name="__main__")
from django.conf import settings as s; import json
print(json.dumps({{"embedded": s.EMBEDDED, "database": s.DATABASE_URL, "redis": s.REDIS_URL, "nodes": s.WAKU_NODES,
    "gorush": s.GORUSH_URLS, "component": s.XMPP_COMPONENT_JID, "is_demonstration": s.DEMONSTRATION}}))"""
    ours = {name: value for name, value in os.environ.items() if name not in EVERY}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env={**ours, "DATA_DIR": str(data_dir), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_up_has_the_addresses_of_its_servers_before_it_writes_them_and_none_for_configured_ones(data_dir: Path) -> None:
    before = sorted(data_dir.rglob("*"))
    found = settings_of("up", data_dir)
    embedded = found["embedded"]
    assert isinstance(embedded, dict)
    assert embedded.keys() == EVERY
    assert (found["database"], found["redis"]) == (embedded["DATABASE_URL"], embedded["REDIS_URL"])
    assert (found["nodes"], found["gorush"]) == ([embedded["WAKU_NODES"]], [embedded["GORUSH_URL"]])
    assert len({*embedded.values()}) == len(EVERY)
    assert sorted(data_dir.rglob("*")) == before

    found = settings_of("up", data_dir, REDIS_URL="redis://elsewhere/1", WAKU_NODES="http://127.0.0.1:8645")
    assert isinstance(found["embedded"], dict)
    assert found["embedded"].keys() == {"DATABASE_URL", "GORUSH_URL"}
    assert (found["redis"], found["nodes"]) == ("redis://elsewhere/1", ["http://127.0.0.1:8645"])


@pytest.mark.parametrize("own", [{}, {"XMPP_COMPONENT_JID": "push.example.org", "XMPP_COMPONENT_SECRET": "s"}])
def test_a_demonstration_leaves_the_component_of_an_operator_alone(data_dir: Path, own: dict[str, str]) -> None:
    programs = data_dir.parent / "programs"
    programs.mkdir()
    (programs / "prosody").write_text("#!/bin/sh\n")
    (programs / "prosody").chmod(0o755)
    found = settings_of("demo", data_dir, PATH=f"{programs}:{os.environ['PATH']}", **own)
    assert isinstance(found["embedded"], dict)
    assert found["embedded"].keys() & COMPONENT == (set() if own else COMPONENT)
    assert found["component"] == own.get("XMPP_COMPONENT_JID", "push.montague.test")
    assert found["is_demonstration"] is True


def test_another_command_reads_what_a_running_up_or_demonstration_noted(data_dir: Path) -> None:
    noted = {"REDIS_URL": "redis://127.0.0.1:7/0", "GORUSH_URL": "http://127.0.0.1:8", "DEMONSTRATION": "1"}
    (data_dir / "embedded.json").write_text(json.dumps(noted))
    with only_one(data_dir):
        found = settings_of("shell", data_dir, GORUSH_URL="http://gorush.example.org")
    assert found["embedded"] == {name: noted[name] for name in ("REDIS_URL", "DEMONSTRATION")}
    assert (found["redis"], found["gorush"]) == (noted["REDIS_URL"], ["http://gorush.example.org"])
    assert found["is_demonstration"] is True


def test_the_file_of_a_demonstration_that_was_killed_configures_nothing(data_dir: Path) -> None:
    noted = {"XMPP_COMPONENT_JID": "push.montague.test", "XMPP_COMPONENT_SECRET": "s", "DEMONSTRATION": "1"}
    (data_dir / "embedded.json").write_text(json.dumps(noted))
    found = settings_of("shell", data_dir)
    assert (found["embedded"], found["component"], found["is_demonstration"]) == ({}, "", False)
