"""Tests of the addresses of embedded servers: what the settings of `manage.py up` are before anything is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.stack.running import only_one
from embedded.supervisor.processes import PROJECT

EVERY = {"DATABASE_URL", "REDIS_URL", "WAKU_NODES", "GORUSH_URL"}
COMPONENT = {f"XMPP_COMPONENT_{name}" for name in ("JID", "SECRET", "HOST", "PORT")}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a DATA_DIR with the secrets that settings make at any start."""
    settings_of("check", tmp_path / "data")
    return tmp_path / "data"


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


def test_up_has_the_addresses_of_its_servers_before_it_writes_them(data_dir: Path) -> None:
    before = sorted(data_dir.rglob("*"))
    found = settings_of("up", data_dir)
    embedded = found["embedded"]
    assert isinstance(embedded, dict)
    assert embedded.keys() == EVERY
    assert (found["database"], found["redis"]) == (embedded["DATABASE_URL"], embedded["REDIS_URL"])
    assert (found["nodes"], found["gorush"]) == ([embedded["WAKU_NODES"]], [embedded["GORUSH_URL"]])
    assert len({*embedded.values()}) == len(EVERY)
    assert sorted(data_dir.rglob("*")) == before


def test_a_server_that_the_environment_configures_is_not_embedded(data_dir: Path) -> None:
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


def test_another_command_reads_what_a_running_up_noted(data_dir: Path) -> None:
    assert settings_of("shell", data_dir)["embedded"] == {}
    noted = {"REDIS_URL": "redis://127.0.0.1:7/0", "GORUSH_URL": "http://127.0.0.1:8"}
    (data_dir / "embedded.json").write_text(json.dumps(noted))
    with only_one(data_dir):
        found = settings_of("shell", data_dir, GORUSH_URL="http://gorush.example.org")
    assert found["embedded"] == {"REDIS_URL": "redis://127.0.0.1:7/0"}
    assert (found["redis"], found["gorush"]) == ("redis://127.0.0.1:7/0", ["http://gorush.example.org"])
    assert found["is_demonstration"] is False


def test_the_file_of_a_demonstration_that_was_killed_configures_nothing(data_dir: Path) -> None:
    noted = {"XMPP_COMPONENT_JID": "push.montague.test", "XMPP_COMPONENT_SECRET": "s", "DEMONSTRATION": "1"}
    (data_dir / "embedded.json").write_text(json.dumps(noted))
    with only_one(data_dir):
        assert settings_of("shell", data_dir)["is_demonstration"] is True
    found = settings_of("shell", data_dir)
    assert (found["embedded"], found["component"], found["is_demonstration"]) == ({}, "", False)
