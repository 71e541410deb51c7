"""Faults: the database is away or hangs, or one stanza raises. Every sender gets an answer, of type `wait`."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic

import psycopg
import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.db import OperationalError, connection

from kit.db.base import connection_parameters
from kit.db.clock import clock as clock_of_database
from notifications.models import Notification
from tests.rig.statements import before_each_statement
from xmpp_bridge import handler
from xmpp_bridge.inbound import Inbound
from xmpp_bridge.limits import Rates
from xmpp_bridge.management.commands import run_xmpp_bridge
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import APN_TOKEN, Service, encrypted, error_of, publish, push2, tigase

pytestmark = pytest.mark.django_db(transaction=True)
TROUBLE = ("wait", "internal-server-error")


class Clock:
    """The monotonic clock of the handler."""

    def __init__(self) -> None:
        self.now = monotonic()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(handler, "monotonic", clock)
    return clock


@contextmanager
def away(clock: Clock | None = None) -> Iterator[list[float]]:
    """Refuse every database connection, after three seconds by the clock. Yield the times of the attempts."""
    tried: list[float] = []

    def refuse(_parameters: object) -> None:
        if clock:
            tried.append(clock.now)
            clock.now += 3
        raise psycopg.OperationalError("secret text of juliet@capulet.test")

    connection.close()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, "get_new_connection", refuse)
        yield tried


@contextmanager
def hanging() -> Iterator[list[str]]:
    """Accept database connections, and end every INSERT by its statement timeout. Yield the ended statements."""
    ended: list[str] = []

    def end(statement: str) -> None:
        if "INSERT" in statement:
            ended.append(statement)
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    with before_each_statement(end):
        yield ended


@pytest.mark.requirement("XB11", "X11", "XB17", "X17")
@pytest.mark.usefixtures("clock")
def test_while_the_database_is_away_requests_are_answered_with_wait_and_later_succeed(
    service: Service, caplog, capsys
) -> None:
    phone = service.register()
    with away():
        asked = [push2(phone.client, encrypted(), stanza_id="one"), publish(phone.node, phone.secret, stanza_id="two")]
        answers = service.receive_all(*asked)
        assert [(answer.get("id"), error_of(answer)) for answer in answers] == [("one", TROUBLE), ("two", TROUBLE)]
        fields = {"token": APN_TOKEN, "device-id": "phone"}
        assert error_of(service.command("register-push-apns", fields)) == TROUBLE
        assert service.take_own() == ([], [])
        ping = "<ping xmlns='urn:xmpp:ping'/>"  # which needs no database, as does a malformed push
        [answer] = service.receive_all(f"<iq type='get' id='1' from='a.test' to='push.montague.test'>{ping}</iq>")
        assert answer.get("type") == "result"
        assert error_of(service.receive(push2("", stanza_id="x"))) == ("modify", "bad-request")
    logged = caplog.text + "".join(capsys.readouterr())
    assert "not_stored" in logged
    assert [word for word in ("juliet", "secret text", phone.client) if word in logged] == []
    assert service.receive(push2(phone.client, encrypted(), stanza_id="one")) is None
    assert service.ask(publish(phone.node, phone.secret, stanza_id="two")).get("type") == "result"
    assert Notification.objects.count() == 2


def test_a_push_that_was_stored_although_it_was_refused_is_known_when_its_sender_repeats_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = service.register()
    push = publish(phone.node, phone.secret, tigase("AAAA"), stanza_id="one")
    commit = connection.commit

    def lose_the_answer() -> None:
        commit()
        raise OperationalError from psycopg.errors.QueryCanceled("the answer to a commit is lost")

    with monkeypatch.context() as patched:
        patched.setattr(connection, "commit", lose_the_answer)
        assert error_of(service.ask(push)) == TROUBLE
    assert Notification.objects.count() == 1
    for seconds in (3, 60):
        later = clock_of_database.now() + timedelta(seconds=seconds)
        monkeypatch.setattr(type(clock_of_database), "now", lambda _, later=later: later)
        assert service.ask(push).get("type") == "result"
    assert Notification.objects.count() == 1


def test_a_database_that_is_away_holds_up_half_of_the_time_at_most(service: Service, clock: Clock) -> None:
    """With a host that drops packets, each attempt takes seconds, and one thread answers every stanza."""
    phone = service.register()
    with away(clock) as tried:
        answers = service.receive_all(*(push2(phone.client, encrypted(), stanza_id=name) for name in ("one", "two")))
        assert [error_of(answer) for answer in answers] == [TROUBLE, TROUBLE]
        assert error_of(service.command("register-push-apns", {"token": APN_TOKEN})) == TROUBLE
        assert (service.take_own(), len(tried)) == (([], []), 1)
        clock.now += 3
        assert (service.take_own(), len(tried)) == (([], []), 2)


@pytest.mark.usefixtures("clock")
def test_a_database_that_hangs_costs_a_batch_one_statement_and_no_charge(service: Service) -> None:
    service.limits.rates = Rates(calls_per_minute=20)
    phone = service.register()
    calls = [push2(phone.client, encrypted(voip=True), stanza_id=str(number)) for number in range(20)]
    with hanging() as ended:
        assert [error_of(answer) for answer in service.receive_all(*calls)] == [TROUBLE] * 20
        assert len(ended) == 1
    assert service.receive_all(*calls) == []


def test_a_device_whose_row_another_session_holds_delays_no_other_push(service: Service) -> None:
    phone, tablet = service.register(), service.register(device_id="tablet")
    [key] = Device.objects.order_by("registered_at").values_list("pk")[:1]
    with psycopg.connect(**connection_parameters()) as other:
        other.execute("SELECT FROM xmpp_bridge_device WHERE id = %s FOR UPDATE", key)
        connection.close()
        answer = service.command("register-push-apns", {"token": APN_TOKEN[::-1], "device-id": "phone"})
        assert error_of(answer) == TROUBLE
        pushes = [push2(each.client, encrypted()) for each in (phone, tablet)]
        assert service.receive_all(*pushes) == [], "at once, also to the phone"
    assert service.register() == phone


@pytest.mark.parametrize("clock_set_at", [float("inf"), float("-inf")], ids=["in a batch", "before the batch"])
def test_a_database_connection_that_broke_is_replaced_and_every_push_accepted(
    service: Service, clock_set_at: float
) -> None:
    """The first statement may be the one that sets the clock, before any decision about a stanza."""
    phone = service.register()
    service._clock_set_at = clock_set_at
    connection.connection.close()
    assert service.receive(push2(phone.client, encrypted("AAAA"))) is None
    connection.connection.close()
    assert service.register() == phone
    assert Notification.objects.count() == 1


def test_a_push_that_raises_does_not_stop_the_others(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    phone = service.register()
    decide = Inbound._decide

    def trip(self, item, *args, **options):
        if item.push.origin.id == "bad":
            raise ZeroDivisionError
        return decide(self, item, *args, **options)

    monkeypatch.setattr(Inbound, "_decide", trip)
    pushes = [push2(phone.client, encrypted(text), stanza_id=name) for name, text in (("a", "AAAA"), ("bad", "BBBB"))]
    [answer] = service.receive_all(*pushes, push2(phone.client, encrypted("CCCC"), stanza_id="c"))
    assert (answer.get("id"), error_of(answer)) == ("bad", TROUBLE)
    assert Notification.objects.count() == 2


def test_the_bridge_does_not_start_before_keys_and_tables_fit(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the keys of another database, the bridge would overwrite addresses that the right keys decrypt."""
    settings.XMPP_COMPONENT_JID = "push.montague.test"
    done: list[str] = []
    monkeypatch.setattr(run_xmpp_bridge, "wait_until_fit", lambda: done.append("waits until they fit"))
    monkeypatch.setattr(run_xmpp_bridge.uvloop, "run", lambda work: done.append(work.close() or "runs"))
    call_command("run_xmpp_bridge")
    assert done == ["waits until they fit", "runs"]
