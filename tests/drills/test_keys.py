"""Drills of docs/backup.md: while the field keys or the server's key are changed, no step cuts off a client that did
nothing. Processes with the old and with the new setting serve everybody.

Everything is real but nodes, the XMPP server and the gateway.
"""

import os
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from coincurve import PrivateKey
from django.conf import LazySettings
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from notifications.messages import Answer, Outcome
from notifications.models import NotificationRequest
from notifications.queues.breakers import disable_dead
from pushserver.console.canary import xmpp as xmpp_canary
from pushserver.console.canary.waku import next_server
from registrations.encryption import keyring
from registrations.models import Grant, Route
from spark_reports.export.days import export_day
from spark_reports.export.pseudonyms import Subject
from spark_reports.jobs.tables import ACTORS, CROWD
from spark_reports.lake import Lake
from spark_reports.nights.nights import last_closed_day
from tests.rig import rows
from tests.rig.conversation import (
    CONTACT,
    EPHEMERAL,
    SENDER,
    TOKEN,
    push,
    query,
    registration,
    replies_to,
    request,
    say,
)
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import delete_all, firebase_token
from waku_bridge import query_topics
from waku_bridge.client.core import new_identity
from waku_bridge.codec.keys import Identity, chat_key, sign_grant, verify_grant
from waku_bridge.messages import (
    Decoded,
    PushResponse,
    QueryResponse,
    RegistrationError,
    RegistrationResponse,
    WakuMessage,
)
from waku_bridge.models import OutboundReply
from waku_bridge.outbound.outbox import record, reply_to, return_address
from waku_bridge.outbound.sending import LEASE
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.devices import find_ended, write_ends
from xmpp_bridge.identity import client_keys
from xmpp_bridge.limits import Rates
from xmpp_bridge.models import App, Device
from xmpp_bridge.tests.talking import (
    SERVICE,
    Registered,
    Service,
    disabled_client,
    encrypted,
    error_of,
    make_app,
    publish,
    push2,
)

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = (Identity(PrivateKey(bytes([number]) * 32)) for number in (0x21, 0x22))
ALICE, BOB = CONTACT, SENDER
OTHER_TOKEN = "c0ffee00-0000-4000-8000-000000000002"
CACHED = (
    *(
        keyring,
        client_keys,
        query_topics.server_identity,
        query_topics.server_identities,
        query_topics.identities_by_topic,
    ),
    *(query_topics.own_content_topics, query_topics.canary_identities),
)
Start = Callable[..., Any]


@pytest.fixture
def start(settings: LazySettings) -> Iterator[Start]:
    """Return ``start(NAME=value)``, which makes this process one that was started with these settings."""

    def restart(**changed: object) -> None:
        for name, value in changed.items():
            setattr(settings, name, value)
        for function in CACHED:
            function.cache_clear()

    yield restart
    restart()


def serve(start: Start, own: Identity, *others: Identity, rates: Rates | None = None) -> Service:
    """Restart the server with these keys, and return the XMPP component."""
    keys = [other.private_key.secret for other in others]
    start(SERVER_PRIVATE_KEY=own.private_key.secret, OTHER_SERVER_PRIVATE_KEYS=keys)
    return Service(rates)


def be(start: Start, *keys: bytes) -> None:
    """Make this process one that was started with these field keys."""
    start(FIELD_ENCRYPTION_KEYS=list(keys))


def asked(person: Identity, server: Identity | None = None) -> WakuMessage:
    """Return a request to notify somebody, sent to one of the server's identities."""
    return request(push(person, message=b"sealed"), server=server, message_id=os.urandom(32))


def answers(listener: Identity, kind: type) -> list[Decoded]:
    """Return the answers of a kind that a listener got since the last call."""
    found = [decoded for decoded in replies_to(listener) if isinstance(decoded.body, kind)]
    delete_all(OutboundReply)
    return found


def register(person: Identity, server: Identity | None = None, **options: object) -> tuple[bytes, int]:
    """Register, and return the identity that answered and the error."""
    say(registration(person, server=server, **options))
    [answer] = answers(person, RegistrationResponse)
    return answer.author, answer.body.error


def ask(*people: Identity) -> dict[bytes, set[bytes]]:
    """Query for people, and verify the answers as clients do. Return the people whom each identity reported."""
    sender = new_identity(os.urandom)  # the server answers a repeated query of one sender only once within seconds
    say(query(*(person.key_hash for person in people), signer=sender))
    keys = {person.key_hash: person.pub33 for person in people}
    reported: dict[bytes, set[bytes]] = {}
    for answer in answers(sender, QueryResponse):
        for info in answer.body.info:
            client = keys[info.public_key_hash]
            assert verify_grant(info.grant, client=client, server=answer.author, access_token=info.access_token)
            assert info.server_public_key == b""
            reported.setdefault(answer.author, set()).add(info.public_key_hash)
    return reported


def notify(person: Identity, server: Identity | None = None) -> tuple[bytes, list[bytes]]:
    """Notify somebody. Return the identity that answered, and the addresses that were pushed to."""
    process = Process(RecordingGateway(Outcome.DELIVERED))
    say(asked(person, server), process=process)
    process.process_until(OutboundReply.objects.exists)
    [answer] = answers(EPHEMERAL, PushResponse)
    assert [report.success for report in answer.body.reports] == [True]
    return answer.author, [push.address for push in process.gateway.pushes]


PHONE = [firebase_token("device-token").encode()]

# Field keys -----------------------------------------------------------------------------------------------------------
OLD_FIELD, NEW_FIELD = b"o" * 32, b"n" * 32


def are_served(*people: Identity) -> bool:
    """Return whether this process finds and notifies people."""
    return all(len(ask(person)) == 1 and notify(person)[1] == PHONE for person in people)


def test_the_field_keys_are_changed_and_nobody_is_cut_off(start: Start) -> None:
    """Each step alternates between a process that was restarted and one that was not."""
    before, added, moved, after = (OLD_FIELD,), (OLD_FIELD, NEW_FIELD), (NEW_FIELD, OLD_FIELD), (NEW_FIELD,)
    be(start, *before)
    assert register(ALICE)[1] == RegistrationError.NONE
    for restarted, not_yet in ((added, before), (moved, added)):
        be(start, *restarted)
        assert register(BOB, version=time_ns())[1] == RegistrationError.NONE
        be(start, *not_yet)
        assert are_served(ALICE, BOB)
        assert register(ALICE, version=time_ns())[1] == RegistrationError.NONE
        be(start, *restarted)
        assert are_served(ALICE, BOB)
    repeated = {"version": time_ns()}
    be(start, *before)
    assert register(ALICE, **repeated)[1] == RegistrationError.NONE
    be(start, *moved)
    call_command("rotate_field_keys")
    assert are_served(ALICE)
    assert register(ALICE, **repeated)[1] == RegistrationError.NONE  # a repeat is known while the old key is listed
    be(start, *after)
    assert are_served(ALICE, BOB)
    assert register(ALICE, version=time_ns())[1] == RegistrationError.NONE


def test_the_shortcut_that_the_readme_warns_of_would_cut_people_off(start: Start) -> None:
    """A new key that is put in front at once is unknown to processes that were not restarted."""
    be(start, NEW_FIELD, OLD_FIELD)
    assert register(ALICE)[1] == RegistrationError.NONE
    be(start, OLD_FIELD)
    say(asked(ALICE), process=Process(RecordingGateway(Outcome.DELIVERED)))
    [answer] = answers(EPHEMERAL, PushResponse)
    assert not any(report.success for report in answer.body.reports)


# Pseudonyms -----------------------------------------------------------------------------------------------------------
# Their key comes from the first field key and the period, so that days before and after a change cannot be joined.
RECIPIENTS = [secrets.token_bytes(64) for _ in range(CROWD)]  # a smaller crowd has no pseudonyms


def export(day: date, lake: Path, **options: Any) -> tuple[str, frozenset[int]]:
    """Export a day. Return the id of the key of its pseudonyms, and the pseudonyms of the recipients."""
    exported = export_day(day, Lake(str(lake)), now=timezone.now(), **options)
    rows = Lake(str(lake)).read(ACTORS, day).to_pylist()
    return exported.key_id, frozenset(row["actor"] for row in rows if row["role"] == Subject.RECIPIENT)


def test_a_new_first_field_key_makes_new_pseudonyms_and_old_days_stay_as_they_are(
    start: Start, settings: LazySettings, tmp_path: Path
) -> None:
    settings.REPORTS_PSEUDONYM_PERIOD = "year"
    settings.ENVELOPE_RETENTION_DAYS = 4  # until a day is closed, the first of the two before it is four days old
    second = last_closed_day(timezone.now())
    for day in (first := second - timedelta(days=1), second):
        at = datetime.combine(day, time(), UTC)
        for recipient in RECIPIENTS:
            rows.make_notification(request=rows.make_answered_request(at=at), at=at, public_key_hash=recipient)
    be(start, OLD_FIELD)
    before = export(first, tmp_path)
    be(start, OLD_FIELD, NEW_FIELD)  # a key that is only added changes no pseudonym
    assert export(first, tmp_path, replace=True) == before
    be(start, NEW_FIELD, OLD_FIELD)
    after = export(second, tmp_path)

    assert before[0] != after[0]
    assert not before[1] & after[1]
    assert export(first, tmp_path) == before  # the day is there already
    # a repeated export has the pseudonyms of the days after the change
    assert not export(first, tmp_path, replace=True)[1] & before[1]


# The server's key -----------------------------------------------------------------------------------------------------


def dependents(capsys: pytest.CaptureFixture[str], words: str) -> list[list[str]]:
    """Return how many depend on each key, as the operator sees it: number, words, key, setting."""
    capsys.readouterr()
    call_command("server_keys")
    return [line.replace(words, "").split() for line in capsys.readouterr().out.splitlines() if words in line]


def test_the_server_changes_its_key_and_nobody_is_cut_off(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    serve(start, OLD)
    assert register(ALICE, OLD) == register(BOB, OLD) == (OLD.pub33, RegistrationError.NONE)

    serve(start, OLD, NEW)  # every process reads the new topics before any client has the new key
    assert notify(ALICE, OLD) == (OLD.pub33, PHONE)

    serve(start, NEW, OLD)  # clients get the new key, and some of them have it already
    assert ask(ALICE, BOB) == {OLD.pub33: {ALICE.key_hash, BOB.key_hash}}
    assert notify(BOB, OLD) == (OLD.pub33, PHONE)
    assert register(BOB, NEW, version=2) == (NEW.pub33, RegistrationError.NONE)
    assert ask(ALICE, BOB) == {OLD.pub33: {ALICE.key_hash}, NEW.pub33: {BOB.key_hash}}
    assert dependents(capsys, "installations") == [
        ["1", chat_key(NEW.pub33), "SERVER_PRIVATE_KEY"],
        ["1", chat_key(OLD.pub33), "OTHER_SERVER_PRIVATE_KEYS"],
    ]
    assert {next_server(rows.make_canary_run()) for _ in range(2)} == {OLD.pub33, NEW.pub33}
    assert notify(BOB, NEW) == (NEW.pub33, PHONE)
    assert notify(BOB, OLD) == (OLD.pub33, PHONE)  # a sender that queried before Bob registered anew
    serve(start, NEW)
    assert [words[:2] for words in dependents(capsys, "installations")][1:] == [["1", "have"]]
    serve(start, NEW, OLD)
    assert register(ALICE, NEW, version=2) == (NEW.pub33, RegistrationError.NONE)

    serve(start, NEW)  # every client has the new key
    assert ask(ALICE, BOB) == {NEW.pub33: {ALICE.key_hash, BOB.key_hash}}
    assert notify(ALICE, NEW) == (NEW.pub33, PHONE)
    assert {next_server(rows.make_canary_run()) for _ in range(2)} == {NEW.pub33}
    say(asked(ALICE, OLD))
    assert not answers(EPHEMERAL, PushResponse)


def test_a_client_that_knows_both_keys_registers_with_both_under_one_version(start: Start) -> None:
    serve(start, NEW, OLD)
    assert register(ALICE, OLD) == (OLD.pub33, RegistrationError.NONE)
    assert register(ALICE, NEW) == (NEW.pub33, RegistrationError.NONE)
    assert register(ALICE, NEW, access_token=OTHER_TOKEN) == (NEW.pub33, RegistrationError.VERSION_MISMATCH)
    assert {bytes(grant.server_public_key) for grant in Grant.objects.all()} == {OLD.pub33, NEW.pub33}
    [reported_by] = ask(ALICE)  # one identity reports her
    assert reported_by in {OLD.pub33, NEW.pub33}
    serve(start, NEW)
    assert ask(ALICE) == {NEW.pub33: {ALICE.key_hash}}


def test_a_grant_for_a_former_access_token_or_for_the_other_identity_is_worth_nothing(start: Start) -> None:
    serve(start, NEW, OLD)
    for_the_other = sign_grant(ALICE.private_key, OLD.pub33, TOKEN)
    assert register(ALICE, NEW, grant=for_the_other) == (NEW.pub33, RegistrationError.MALFORMED_MESSAGE)
    register(ALICE, OLD)
    register(ALICE, NEW, version=2, access_token=OTHER_TOKEN)
    assert ask(ALICE) == {NEW.pub33: {ALICE.key_hash}}
    assert [bytes(grant.server_public_key) for grant in Grant.objects.all()] == [NEW.pub33]


def test_no_secret_key_is_stored_with_a_request(start: Start) -> None:
    serve(start, NEW, OLD)
    register(ALICE, NEW)
    say(asked(ALICE, OLD))
    [stored] = NotificationRequest.objects.values_list("reply_address", flat=True)
    assert bytes(stored) == EPHEMERAL.pub33 + OLD.pub33 + b"/waku/2/rs/16/32"


def test_requests_to_a_removed_key_are_answered_by_the_servers_own_key(start: Start) -> None:
    serve(start, NEW)
    for address in (return_address(EPHEMERAL.pub33, "/waku/2/rs/16/32", sender=OLD.pub33), EPHEMERAL.pub33 + b"/waku"):
        reply = reply_to(Answer("waku", os.urandom(32), address, b"m", ()))
        record([reply], now=timezone.now() - LEASE)  # whose worker died
        assert [answer.author for answer in answers(EPHEMERAL, PushResponse)] == [NEW.pub33]


# The server's key, for XMPP devices whose app starts while both keys are served ---------------------------------------
ROMEO = "romeo@montague.example/x"


def is_device_served(service: Service, device: Registered, *, sender: str = "capulet.test") -> bool:
    """Return whether a device gets pushes by Push 2.0 and by XEP-0357."""
    ciphertext = b64encode(device.client.encode()).decode()
    is_set = service.receive(push2(device.client, encrypted(ciphertext), sender=sender)) is not None
    answer = service.receive(publish(device.node, device.secret, sender=sender))
    assert answer is not None
    is_known = answer.get("type") == "result"
    assert is_known != is_set
    return is_known


def test_the_server_changes_its_key_and_no_device_is_cut_off(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    make_app()
    service = serve(start, OLD)
    juliet, romeo = service.register(), service.register(sender=ROMEO)

    service = serve(start, OLD, NEW)
    assert service.register() == juliet
    assert is_device_served(service, juliet)

    # Apps start one after another, and make their servers enable the new client string.
    service = serve(start, NEW, OLD)
    assert is_device_served(service, juliet)
    assert is_device_served(service, romeo, sender="montague.example")
    new_juliet = service.register()
    assert (new_juliet.node, Device.objects.count()) == (juliet.node, 2)
    assert new_juliet.client != juliet.client
    assert is_device_served(service, new_juliet)
    assert is_device_served(service, juliet)  # her server does not have the new client string yet
    assert dependents(capsys, "XMPP devices") == [
        ["1", chat_key(NEW.pub33), "SERVER_PRIVATE_KEY"],
        ["1", chat_key(OLD.pub33), "OTHER_SERVER_PRIVATE_KEYS"],
    ]
    serve(start, NEW)
    assert [words[:2] for words in dependents(capsys, "XMPP devices")][1:] == [["1", "were"]]
    service = serve(start, NEW, OLD)
    new_romeo = service.register(sender=ROMEO)

    service = serve(start, NEW)  # every app has the new key
    assert is_device_served(service, new_juliet)
    assert is_device_served(service, new_romeo, sender="montague.example")
    assert error_of(service.receive(push2(juliet.client))) == ("cancel", "item-not-found")


def test_the_app_of_a_canary_with_the_old_key_is_offered_to_nobody_and_removed(start: Start) -> None:
    make_app()
    serve(start, OLD)
    xmpp_canary.make_app()
    serve(start, NEW, OLD).register()
    xmpp_canary.remove_traces()
    assert [app.slug for app in App.objects.all()] == ["chat"]


def test_a_device_of_the_old_key_counts_for_its_account_and_can_be_unregistered(start: Start) -> None:
    make_app()
    serve(start, OLD).register()
    service = serve(start, NEW, OLD, rates=Rates(devices_per_user=1))
    fields = {"token": "ab" * 32, "device-id": "tablet"}
    assert error_of(service.command("register-push-apns", fields)) == ("wait", "resource-constraint")
    service.command("unregister-push-apns", {"device-id": "phone"})
    assert Device.objects.get().state == Device.State.UNREGISTERED


def test_an_end_is_announced_by_the_client_string_that_the_app_was_given(start: Start) -> None:
    make_app()
    service = serve(start, OLD)
    juliet = service.register()
    service.receive(push2(juliet.client))
    serve(start, NEW, OLD)
    route = Route.objects.get()
    with transaction.atomic():
        disable_dead(route.pk, route.generation, route.address_digest, "dead", now=timezone.now())
    [announced] = write_ends(find_ended(), domain=SERVICE)
    assert disabled_client(parse(announced)) == juliet.client
