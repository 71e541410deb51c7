"""Runs without a network: only one is under way at a time, and a run that cannot go on ends."""

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone
from structlog.testing import capture_logs

from embedded.servers.ports import free_port
from kit.canary import engine
from kit.canary.engine import ChainBroken, Diagnosis
from tests.rig import rows
from waku_bridge.canary import canary, links
from waku_bridge.models import CanaryEnvelope, CanaryRun, InboundEnvelope

pytestmark = pytest.mark.django_db(transaction=True)
State = CanaryRun.State


@pytest.fixture(autouse=True)
def _nobody_there(settings):
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [f"http://127.0.0.1:{free_port()}"]
    yield
    cache.clear()


def test_an_unreachable_node_breaks_the_first_link():
    row = canary.run()
    assert (row.state, row.broken_link, row.cause) == (State.BROKEN, "register", "node")
    assert set(row.timings().values()) == {None}
    last = canary.last()
    assert last.cause == "node"
    assert last.words.startswith("no node takes messages (127.0.0.1")


def test_a_broken_chain_is_walked_again_until_it_holds(monkeypatch):
    broken = iter([True, True, False, True])

    def walk(*_arguments):
        if next(broken):
            raise ChainBroken(Diagnosis("register", "node"))
        yield "register", 5

    monkeypatch.setattr(engine, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(links, "walk", walk)
    with capture_logs() as logs:
        canary.run_until_sound(seconds=60)

    states = CanaryRun.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [State.BROKEN, State.BROKEN, State.PASSED]
    assert [line["event"] for line in logs] == ["canary_broken", "canary_passed"]


def test_a_task_ends_after_its_time_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(engine, "AGAIN_SECONDS", 0.2)
    canary.run_until_sound(seconds=0.1)
    assert CanaryRun.objects.get().state == State.BROKEN


def test_a_second_run_does_not_start_while_one_is_under_way():
    rows.make_canary_run(state=State.RUNNING, finished_at=None)
    assert canary.run() is None
    assert CanaryRun.objects.count() == 1


def test_a_killed_run_is_marked_and_does_not_block_the_next():
    long_ago = timezone.now() - timedelta(hours=1)
    killed = rows.make_canary_run(state=State.RUNNING, finished_at=None, at=long_ago)
    mark = rows.make_canary_envelope(at=timezone.now())
    rows.make_envelope(hash=mark.hash)
    assert canary.run().state == State.BROKEN
    killed.refresh_from_db()
    assert killed.state == State.INTERRUPTED
    assert not InboundEnvelope.objects.exists()


def test_a_fault_of_ours_ends_the_run_and_is_raised_to_the_caller(monkeypatch):
    def fail(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(links, "walk", fail)
    with pytest.raises(ZeroDivisionError):
        canary.run()
    assert CanaryRun.objects.get().state == State.INTERRUPTED


def test_a_message_is_marked_even_when_no_node_takes_it():
    canary.run()
    assert CanaryEnvelope.objects.count() == 1


def test_purging_removes_old_runs_and_keeps_the_one_under_way():
    now = timezone.now()
    mark = rows.make_canary_envelope(at=now)
    rows.make_envelope(hash=mark.hash)
    rows.make_canary_run(at=now - timedelta(days=8))
    rows.make_canary_run(state=State.RUNNING, finished_at=None, at=now)
    assert sum(canary.purge(now=now, keep=timedelta(days=7))) == 1
    assert InboundEnvelope.objects.count() == 1
    CanaryRun.objects.all().delete()
    assert sum(canary.purge(now=now, keep=timedelta(days=7))) == 0
    assert not InboundEnvelope.objects.exists()
