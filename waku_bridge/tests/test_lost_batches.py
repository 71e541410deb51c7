"""Envelopes that kill the process of their batch: the one that is the cause is found and given up."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from embedded.servers.postgres import EmbeddedPostgres
from notifications import tasks
from tests.rig import rows
from tests.rig.delivering import Process
from waku_bridge import bridge
from waku_bridge.inbox import processing
from waku_bridge.inbox.journal import InFlightJournal, read
from waku_bridge.inbox.tests.test_journal import die_with
from waku_bridge.models import InboundEnvelope, OpenEnvelope

pytestmark = pytest.mark.django_db


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InFlightJournal]:
    journal = InFlightJournal(tmp_path)
    monkeypatch.setattr(bridge, "_journal", lambda: journal)
    yield journal
    journal.close()


def kill_a_process_with(journal: InFlightJournal) -> int:
    """Have a process die with the envelopes that ours would take now, and return their number."""
    held = read(journal.path)
    die_with(journal.path.parent, *held)
    return len(held)


class Killed(BaseException):
    """The end of the process, as an exception that no step of the batch catches."""


def states() -> list[tuple[str, str]]:
    return list(InboundEnvelope.objects.order_by("received_at").values_list("state", "reason"))


def play(journal: InFlightJournal, poison: bytes, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process batches until no envelope waits. A batch that takes the poison kills its process."""
    sizes = []

    def process(envelopes: object, **_facts: object) -> object:
        if poison in [envelope.hash for envelope in envelopes]:  # type: ignore[attr-defined]
            sizes.append(kill_a_process_with(journal))
            raise Killed
        return original(envelopes, **_facts)  # type: ignore[arg-type]

    original = processing.process
    monkeypatch.setattr(processing, "process", process)
    for _ in range(20):
        worker = Process()
        with suppress(Killed):
            worker.process_batch(now=timezone.now())
        if not InboundEnvelope.objects.filter(state__in=("received", "postponed")).exists():
            break
    return sizes


@pytest.mark.parametrize("state", ["received", "postponed"])
def test_a_deadly_envelope_is_taken_alone_after_two_deaths_and_given_up_after_the_third(
    state: str, journal: InFlightJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelopes = [rows.make_envelope(payload=b"x", state=state) for _ in range(5)]
    poison = bytes(envelopes[2].hash)
    with monkeypatch.context() as patched:
        sizes = play(journal, poison, patched)
    assert sorted(sizes) == [1, 5, 5]
    assert [state for state, _ in states()].count("failed") == 1
    failed = InboundEnvelope.objects.get(state="failed")
    assert (bytes(failed.hash), failed.reason, failed.payload) == (poison, "process_died", b"x")
    rows.make_envelope(payload=b"y")
    Process().process_batch(now=timezone.now())  # the journal and the reports of what has ended are removed
    assert list(journal.path.parent.iterdir()) == [journal.path]
    assert read(journal.path) == []


def test_a_suspect_with_a_pending_key_causes_no_further_batches(journal: InFlightJournal) -> None:
    envelope = rows.make_envelope(payload=b"x")
    journal.hold([bytes(envelope.hash)])
    for _ in range(2):
        kill_a_process_with(journal)
    journal.clear()
    OpenEnvelope.objects.update(state="pending_key")
    assert [Process().process_batch(now=timezone.now()) for _ in range(4)] == [False] * 4
    OpenEnvelope.objects.update(state="received")
    Process().process_batch(now=timezone.now())
    assert [state for state, _ in states()] == ["dropped"]


HANGING_WORKER = """
import threading, time
from notifications import tasks
from waku_bridge.inbox import processing
from waku_bridge.inbox.journal import InFlightJournal, read
from waku_bridge.inbox.tests.test_journal import die_with

def hang(_items, **_facts):
    tasks.WORKER_STOP.set()
    time.sleep(60)

processing.process = hang
tasks.STOP_SECONDS = -2.0  # so that the process is cut off at once
tasks.WORKER_STOP.prepare()
tasks.process_batches()
"""


@pytest.mark.django_db(transaction=True)
def test_a_process_that_stops_too_slowly_did_not_die_of_its_envelopes(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Otherwise two slow stops would make suspects of the envelopes, and a third would give them up."""
    rows.make_envelope()
    environment = {"DATABASE_URL": postgres.url(connection.settings_dict["NAME"]), "METRICS_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", f"import pushserver.worker, django; django.setup(){HANGING_WORKER}"],
        env=os.environ | environment,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, b"batches_cut_off" in ended.stdout + ended.stderr) == (tasks.SOFTWARE_ERROR, True)
    assert InFlightJournal(tmp_path / "journal").count_deaths() == {}
