"""The canary without a network: its runs, the traces that a killed one leaves, and the diagnosis of a broken chain."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.core.cache import cache
from django.utils import timezone

from embedded.servers.ports import free_port
from pushserver.console.canary import engine
from pushserver.console.canary.engine import ChainBroken, Diagnosis
from pushserver.console.canary.push import Push
from pushserver.console.canary.waku import canary, links, traces
from pushserver.console.canary.waku.diagnosis import Cause, Facts, Link, diagnose
from pushserver.console.waku.models import CanaryRun
from registrations.models import RegistrationEvent
from tests.rig import rows
from tests.rig.conversation import put, say, to_server
from tests.rig.logs import capture_logs
from waku_bridge.messages import MessageType
from waku_bridge.models import CanaryEnvelope, InboundEnvelope
from waku_bridge.query_topics import canary_identity

in_database = pytest.mark.django_db(transaction=True)
State = CanaryRun.State


@pytest.fixture(autouse=True)
def _nobody_there(settings):
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = [f"http://127.0.0.1:{free_port()}"]
    yield
    cache.clear()


@in_database
def test_an_unreachable_node_breaks_the_first_link():
    row = canary.run()
    assert (row.state, row.broken_link, row.cause) == (State.BROKEN, "register", "node")
    assert set(row.timings().values()) == {None}
    last = canary.last()
    assert last.cause == "node"
    assert last.words.startswith("no node takes messages (127.0.0.1")
    assert CanaryEnvelope.objects.count() == 1, "its message is marked all the same"


@in_database
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


@in_database
def test_a_task_ends_after_its_time_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(engine, "AGAIN_SECONDS", 0.2)
    canary.run_until_sound(seconds=0.1)
    assert CanaryRun.objects.get().state == State.BROKEN


@in_database
def test_a_fault_of_ours_ends_the_run_and_is_raised_to_the_caller(monkeypatch):
    def fail(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(links, "walk", fail)
    with pytest.raises(ZeroDivisionError):
        canary.run()
    assert CanaryRun.objects.get().state == State.INTERRUPTED


@in_database
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


# Traces ---------------------------------------------------------------------------------------------------------------


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@in_database
def test_events_are_removed_after_their_registration_lost_its_pseudonym() -> None:
    run = rows.make_canary_run(state=CanaryRun.State.INTERRUPTED, pseudonym=uuid4())
    rows.make_event(pseudonym=run.pseudonym)
    rows.make_event()
    traces.remove_traces(now=NOW)
    assert RegistrationEvent.objects.exclude(pseudonym=run.pseudonym).count() == RegistrationEvent.objects.count() == 1
    assert CanaryRun.objects.get().pseudonym is None


@in_database
def test_a_late_copy_of_a_message_is_removed_within_the_hour() -> None:
    message = to_server(b"late", MessageType.QUERY, canary_identity())
    [envelope_hash] = put(message)
    traces.mark(envelope_hash, now=NOW)
    traces.remove_traces(now=NOW)
    say(message)
    assert InboundEnvelope.objects.count() == 1
    traces.remove_traces(now=NOW + timedelta(minutes=59))
    assert not InboundEnvelope.objects.exists()
    traces.remove_traces(now=NOW + timedelta(minutes=61))
    assert not CanaryEnvelope.objects.exists()


# Diagnosis ------------------------------------------------------------------------------------------------------------
DECIDED = {"envelope": "processed"}
PUSHED = {"push": Push(has_attempt=True, outcome="delivered")}
UNANSWERED = {"push": Push(has_attempt=True)}
DRAINED = {"push": Push(is_drained=True)}
REFUSED = {"push": Push(has_attempt=True, outcome="config", code="tls")}


@pytest.mark.parametrize(
    ("answer", "facts", "link", "cause", "words"),
    [
        (Link.REGISTER_ANSWER, {}, Link.REGISTER_ANSWER, Cause.BRIDGE, ""),
        (Link.REQUEST_ANSWER, {}, Link.REQUEST_ANSWER, Cause.BRIDGE, ""),
        (Link.QUERY_ANSWER, {"envelope": "received"}, Link.QUERY_ANSWER, Cause.WORKER, "inbox"),
        (Link.QUERY_ANSWER, {"envelope": "pending_key"}, Link.QUERY_ANSWER, Cause.WORKER, "queue keys"),
        (Link.QUERY_ANSWER, {**DECIDED, "reason": "nothing_found"}, Link.QUERY_ANSWER, Cause.WORKER, "nothing_found"),
        (Link.REGISTER_ANSWER, {"envelope": "failed"}, Link.REGISTER_ANSWER, Cause.WORKER, "failed"),
        (Link.REGISTER_ANSWER, DECIDED, Link.REGISTER_ANSWER, Cause.WORKER, "no answer was written"),
        (Link.REGISTER_ANSWER, {**DECIDED, "reply": "pending"}, Link.REGISTER_ANSWER, Cause.REPLY, "outbox"),
        (Link.REGISTER_ANSWER, {**DECIDED, "reply": "published"}, Link.REGISTER_ANSWER, Cause.REPLY, "no store has it"),
        (Link.REQUEST_ANSWER, DECIDED, Link.GATEWAY, Cause.WORKER, "no worker tries"),
        (Link.REQUEST_ANSWER, {**DECIDED, **DRAINED}, Link.GATEWAY, Cause.WORKER, "an operator stopped"),
        (Link.REQUEST_ANSWER, {**DECIDED, **UNANSWERED}, Link.GATEWAY, Cause.GATEWAY, "does not answer"),
        (Link.REQUEST_ANSWER, {**DECIDED, **REFUSED}, Link.GATEWAY, Cause.GATEWAY, "config: tls"),
        (Link.REQUEST_ANSWER, {**DECIDED, **PUSHED}, Link.REQUEST_ANSWER, Cause.WORKER, "no answer was written"),
        (Link.REQUEST_ANSWER, {**DECIDED, **PUSHED, "reply": "pending"}, Link.REQUEST_ANSWER, Cause.REPLY, "outbox"),
    ],
)
def test_the_diagnosis_names_the_first_fault_of_the_chain(answer, facts, link, cause, words):
    found = diagnose(answer, Facts(**facts))
    assert (found.link, found.cause) == (link, cause)
    assert words in found.detail
