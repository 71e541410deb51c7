"""Command `manage.py load` against a whole server."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from tests.rig.network import Network
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, served

HERE = "http://127.0.0.1:9"  # nothing listens there


def run(fleet: Fleet, *arguments: str) -> tuple[int, str]:
    spec = manage("load", "load", *arguments, stop_order=StopOrder.FRONT)
    return fleet.run_to_end(replace(spec, environment={**spec.environment, "COLUMNS": "140"}), seconds=180)


@pytest.mark.nightly
def test_every_request_of_a_load_is_pushed_once_and_answered_once(
    fleet: Fleet, network: Network, tmp_path: Path
) -> None:
    file, started_at = tmp_path / "load.json", datetime.now(UTC)
    code, printed = run(fleet, "--devices=4", "--rate=40", "--seconds=5", f"--json={file}")
    assert code == 0, printed
    result = json.loads(file.read_text())
    for kind in ("pushes", "replies"):
        found = result[kind]
        assert (found["arrived"], found["lost"], found["doubled"]) == (200, 0, 0)
        latency = found["latency_ms"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
        assert sum(count for _, count in latency["histogram"]) == 200
    assert (result["merged"], result["refused"]) == (0, {})
    generator = result["generator"]
    assert generator["lag_ms"]["count"] == generator["publish_ms"]["count"] == 200
    assert generator["cpu_ms_per_request"] > 0
    left = "SELECT count(*) FROM registrations_registration WHERE state = 'active' AND created_at > %s"
    assert network.rows(left, started_at) == [(0,)]
    assert "request → gorush" in printed


@pytest.mark.nightly
def test_requests_that_a_limit_merges_are_told_apart_from_lost_ones(new_fleet: NewFleet, tmp_path: Path) -> None:
    """One phone gets ten times what its limit allows: bare wake-ups stand for the rest, and nothing is lost."""
    file, limited = tmp_path / "load.json", new_fleet("limited", **OF_FLOWS | {"ROUTE_LIMITS": "30/10,600/3600"})
    with served(limited) as fleet:
        code, printed = run(fleet, "--devices=1", "--rate=30", "--seconds=10", f"--json={file}")
    assert code == 0, printed
    result = json.loads(file.read_text())
    pushes = result["pushes"]
    assert (pushes["lost"], pushes["doubled"], result["replies"]["lost"], result["refused"]) == (0, 0, 0, {})
    assert result["merged"] > 150
    assert pushes["arrived"] + result["merged"] == result["requests"] == 300
    assert "Merged beyond a limit" in printed


@pytest.mark.parametrize("option", ["--node=http://node.example.org:8645", "--gorush=http://gorush.example.org"])
def test_a_target_that_is_not_on_this_machine_is_refused(settings: LazySettings, option: str) -> None:
    settings.WAKU_NODES, settings.GORUSH_URLS = [HERE], [HERE]
    with pytest.raises(CommandError, match=r"is not on this machine\. If it is yours, add --i-own-this-server\."):
        call_command("load", option)


def test_an_unreachable_node_is_reported_in_one_line(settings: LazySettings) -> None:
    settings.GORUSH_URLS = [HERE]
    with pytest.raises(CommandError, match=r"^The load did not begin: 127\.0\.0\.1:9 cannot be reached"):
        call_command("load", f"--node={HERE}", "--devices=50")  # more than register at once
