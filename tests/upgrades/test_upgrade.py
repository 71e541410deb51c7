"""Upgrade under traffic, and its way back: nothing is lost or doubled, and no client waits longer than its timeout.

`make upgrade-test` runs it. It does what an operator does: `git pull`, then `make restart`. The new code migrates while
the processes of the last release serve, and then replaces each of them. Afterwards the last release comes back on the
new schema.
"""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from notifications.messages import Report, ReportError
from tests.rig.network import Network, Sender, android, new_sender, unregistered_phone
from tests.upgrades.conftest import Installation
from tests.upgrades.xmpp import Traffic
from waku_bridge.client.events import Destination
from waku_bridge.client.state import Preferences
from waku_bridge.codec.keys import author_hash

pytestmark = pytest.mark.upgrade

RATE_PER_SECOND = 20
LOAD_SECONDS = 45
CLIENTS_WAIT_SECONDS = 3.0
REPLACE_SECONDS = 90
MIGRATIONS = "SELECT count(*) FROM django_migrations"
ACCEPTED = """
    SELECT count(*) FILTER (WHERE received_at < %s), count(*) FILTER (WHERE received_at > %s)
    FROM notifications_notificationrequest
"""
# Log lines that need attention. An old worker that meets a lock of a migration (55P03) takes its batch again.
TROUBLE = re.compile(
    r"Traceback|\[(?:error|critical) |batch_split(?!.*sqlstate=55P03)|Not replaced|did not stop in time"
)


@dataclass(slots=True)
class Memory:
    """Requests with their answers, which are repeated later: each version must answer like the one that decided."""

    network: Network
    sender: Sender = field(default_factory=new_sender)
    answered: list[tuple[Sequence[Destination], bytes, tuple[Report, ...]]] = field(default_factory=list)

    def ask(self) -> None:
        """Send a request for three places: one is delivered, one is muted, and one has the wrong token."""
        mute = Preferences(muted_chats=(author_hash(self.sender.identity.pub33),))
        phones = [self.network.phone(preferences=wishes) for wishes in (None, mute, None)]
        places = [self.network.query(self.sender, phone)[0] for phone in phones]
        places[2] = replace(places[2], access_token=unregistered_phone().access_token)
        message_id = os.urandom(32)
        reports = self.network.notify(self.sender, places, message_id=message_id)
        assert [report.error for report in reports] == [ReportError.NONE, ReportError.NONE, ReportError.WRONG_TOKEN]
        self.answered.append((places, message_id, reports))

    def ask_again(self) -> None:
        for places, message_id, reports in self.answered:
            assert self.network.notify(self.sender, places, message_id=message_id) == reports


def test_an_upgrade_and_its_way_back_lose_nothing_double_nothing_and_keep_nobody_waiting(
    installation: Installation, tmp_path: Path
) -> None:
    network, memory = installation.network, Memory(installation.network)
    memory.ask()
    [(before,)] = network.rows(MIGRATIONS)
    with (traffic := Traffic(installation.xmpp)).flowing():
        _under_load(installation, installation.new, tmp_path / "upgrade.json")
    [(after,)] = network.rows(MIGRATIONS)
    assert after > before, "the last release has this schema: nothing was migrated"
    memory.ask()
    memory.ask_again()
    with (traffic_back := Traffic(installation.xmpp)).flowing():
        _under_load(installation, installation.old, tmp_path / "way_back.json")
    memory.ask()
    memory.ask_again()
    for each in (traffic, traffic_back):
        Console(width=140).print(each.judge())
    assert [line for line in installation.up.output().splitlines() if TROUBLE.search(line)] == []


def _under_load(installation: Installation, code: Path, file: Path) -> None:
    """Replace the code while requests come, some of which are accepted before that, and some after it."""
    asked_at = datetime.now(UTC)
    installation.begin_load(file, rate=RATE_PER_SECOND, seconds=LOAD_SECONDS)
    _wait_for_requests(installation.network, asked_at)
    asked_at = datetime.now(UTC)
    waits = _replace(installation, code)
    replaced_at = datetime.now(UTC)
    installation.end_load()
    [(early, late)] = installation.network.rows(ACCEPTED, asked_at, replaced_at)
    result = json.loads(file.read_text())
    _submit(file.stem, (replaced_at - asked_at).total_seconds(), early, late, waits, result)
    assert early
    assert late
    _judge(result, waits)


def _judge(result: dict[str, object], waits: Sequence[float]) -> None:
    for kind in ("pushes", "replies"):
        found = result[kind]
        assert isinstance(found, dict)
        assert (found["lost"], found["doubled"]) == (0, 0), kind
        assert kind == "pushes" or found["latency_ms"]["max"] <= CLIENTS_WAIT_SECONDS * 1000
    assert result["refused"] == {}
    assert max(waits) <= CLIENTS_WAIT_SECONDS


def _wait_for_requests(network: Network, since: datetime) -> None:
    came = "SELECT count(*) > 20 FROM notifications_notificationrequest WHERE received_at > %s"
    deadline = time.monotonic() + 60
    while network.rows(came, since) != [(True,)]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _replace(installation: Installation, code: Path) -> list[float]:
    """Replace the code, and return the waiting times of people who meanwhile registered, looked each other up and
    notified.
    """
    waits: list[float] = []
    due, deadline = installation.replacements + 1, time.monotonic() + REPLACE_SECONDS
    installation.begin_to_replace(code)
    while installation.replacements < due:
        assert time.monotonic() < deadline, installation.up.output()
        waits += _come_and_go(installation.network)
        time.sleep(0.3)
    return waits


def _come_and_go(network: Network) -> list[float]:
    times, sender = [time.monotonic()], new_sender()
    phone = network.phone(android())
    times.append(time.monotonic())
    destinations = network.query(sender, phone)
    times.append(time.monotonic())
    assert [report.success for report in network.notify(sender, destinations)] == [True]
    times.append(time.monotonic())
    return [after - before for before, after in pairwise(times)]


def _submit(
    name: str, seconds: float, early: int, late: int, waits: Sequence[float], result: dict[str, object]
) -> None:
    console = Console(width=140)
    console.print(f"{name}: all processes replaced in {seconds:.0f} s; {early} requests before that, {late} after it")
    console.print(
        f"{len(waits)} people waited {max(waits):.2f} s at most, half of them {sorted(waits)[len(waits) // 2]:.2f} s"
    )
    console.print({kind: result[kind] for kind in ("pushes", "replies", "refused")})
