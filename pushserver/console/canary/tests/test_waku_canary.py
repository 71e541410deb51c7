"""The canary of Waku without a network: its runs, the traces that a killed one leaves, and the diagnosis."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.core.cache import cache
from django.utils import timezone

from embedded.servers.ports import free_port
from pushserver.console.canary import engine
from pushserver.console.canary.engine import Diagnosis, Link
from pushserver.console.canary.waku import canary, diagnose, mark, remove_traces
from pushserver.console.models import CanaryRun, WakuLink
from pushserver.console.models import WakuCause as Cause
from pushserver.console.tasks import purge_visits
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

    def chain(_run):
        yield Link("register", lambda: 5, lambda: Diagnosis("register", "node") if next(broken) else None)

    monkeypatch.setattr(engine, "AGAIN_SECONDS", 0.01)
    with capture_logs() as logs:
        replace(canary, chain=chain).run_until_sound(seconds=60)

    states = CanaryRun.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [State.BROKEN, State.BROKEN, State.PASSED]
    assert [line["event"] for line in logs] == ["canary_broken", "canary_passed"]


@in_database
def test_a_task_ends_after_its_time_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(engine, "AGAIN_SECONDS", 0.2)
    canary.run_until_sound(seconds=0.1)
    assert CanaryRun.objects.get().state == State.BROKEN


@in_database
def test_a_fault_of_ours_ends_the_run_and_is_raised_to_the_caller():
    def chain(_run):
        yield Link("register", lambda: 1 // 0, lambda: None)

    with pytest.raises(ZeroDivisionError):
        replace(canary, chain=chain).run()
    assert CanaryRun.objects.get().state == State.INTERRUPTED


@in_database
def test_purging_removes_old_runs_and_keeps_the_one_under_way():
    now = timezone.now()
    mark = rows.make_canary_envelope(at=now)
    rows.make_envelope(hash=mark.hash)
    rows.make_canary_run(at=now - timedelta(days=8))
    rows.make_canary_run(state=State.RUNNING, finished_at=None, at=now)
    purge_visits()
    assert (CanaryRun.objects.count(), InboundEnvelope.objects.count()) == (1, 1)
    CanaryRun.objects.all().delete()
    purge_visits()
    assert not InboundEnvelope.objects.exists()


# Traces ---------------------------------------------------------------------------------------------------------------


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@in_database
def test_events_are_removed_after_their_registration_lost_its_pseudonym() -> None:
    run = rows.make_canary_run(state=CanaryRun.State.INTERRUPTED, pseudonym=uuid4())
    rows.make_event(pseudonym=run.pseudonym)
    rows.make_event()
    remove_traces(now=NOW)
    assert RegistrationEvent.objects.exclude(pseudonym=run.pseudonym).count() == RegistrationEvent.objects.count() == 1
    assert CanaryRun.objects.get().pseudonym is None


@in_database
def test_a_late_copy_of_a_message_is_removed_within_the_hour() -> None:
    message = to_server(b"late", MessageType.QUERY, canary_identity())
    [envelope_hash] = put(message)
    mark(envelope_hash, now=NOW)
    remove_traces(now=NOW)
    say(message)
    assert InboundEnvelope.objects.count() == 1
    remove_traces(now=NOW + timedelta(minutes=59))
    assert not InboundEnvelope.objects.exists()
    remove_traces(now=NOW + timedelta(minutes=61))
    assert not CanaryEnvelope.objects.exists()


# Diagnosis ------------------------------------------------------------------------------------------------------------
REGISTER, QUERY, REQUEST = WakuLink.REGISTER_ANSWER, WakuLink.QUERY_ANSWER, WakuLink.REQUEST_ANSWER
DECIDED = {"state": "processed"}
DELIVERED = {"outcome": "delivered"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("answer", "envelope", "attempt", "reply", "link", "cause", "words"),
    [
        (REGISTER, None, None, "", REGISTER, Cause.BRIDGE, ""),
        (REQUEST, None, None, "", REQUEST, Cause.BRIDGE, ""),
        (QUERY, {"state": "received"}, None, "", QUERY, Cause.WORKER, "inbox"),
        (QUERY, {"state": "pending_key"}, None, "", QUERY, Cause.WORKER, "queue keys"),
        (QUERY, DECIDED | {"reason": "nothing_found"}, None, "", QUERY, Cause.WORKER, "nothing_found"),
        (REGISTER, {"state": "failed"}, None, "", REGISTER, Cause.WORKER, "failed"),
        (REGISTER, DECIDED, None, "", REGISTER, Cause.WORKER, "no answer was written"),
        (REGISTER, DECIDED, None, "pending", REGISTER, Cause.REPLY, "outbox"),
        (REGISTER, DECIDED, None, "published", REGISTER, Cause.REPLY, "no store has it"),
        (REQUEST, DECIDED, None, "", WakuLink.GATEWAY, Cause.WORKER, "no worker tries"),
        (REQUEST, DECIDED, {"outcome": None}, "", WakuLink.GATEWAY, Cause.GATEWAY, "does not answer"),
        (REQUEST, DECIDED, {"outcome": "config", "code": "tls"}, "", WakuLink.GATEWAY, Cause.GATEWAY, "config: tls"),
        (REQUEST, DECIDED, DELIVERED, "", REQUEST, Cause.WORKER, "no answer was written"),
        (REQUEST, DECIDED, DELIVERED, "pending", REQUEST, Cause.REPLY, "outbox"),
    ],
)
def test_the_diagnosis_names_the_first_fault_of_the_chain(answer, envelope, attempt, reply, link, cause, words):
    question = rows.make_envelope(**envelope).hash if envelope else b"unread"
    if attempt:
        rows.make_attempt(rows.make_notification(public_key_hash=canary_identity().key_hash), **attempt)
    if reply:
        rows.make_reply(envelope_hash=question, state=reply)
    found = diagnose(answer, question)
    assert (found.link, found.cause) == (link, cause)
    assert words in found.detail


@pytest.mark.django_db
def test_an_operator_who_stopped_delivery_is_named():
    rows.make_halt("drained", by="ann", reason="x")
    question = rows.make_envelope(**DECIDED).hash
    operator = ("gateway", "worker", "an operator stopped delivery: no push is tried")
    assert diagnose(WakuLink.REQUEST_ANSWER, question) == operator
