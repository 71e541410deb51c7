"""Drill of docs/backup.md, "Changing the server's key": no step cuts off a client that did nothing.

The server has two identities at once. Everything is real but nodes and gateway.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from coincurve import PrivateKey
from django.conf import LazySettings
from django.core.management import call_command
from django.utils import timezone

from notifications.messages import Answer, Outcome
from notifications.models import NotificationRequest
from registrations.models import Grant
from tests.batches import Process
from tests.conversation import CONTACT, EPHEMERAL, SENDER, TOKEN, push, query, registration, replies_to, request, say
from tests.delivering import RecordingGateway
from waku_bridge import identity
from waku_bridge.canary.links import _next_server
from waku_bridge.client import new_identity
from waku_bridge.codec.crypto.grants import sign_grant, verify_grant
from waku_bridge.codec.keys import Identity, chat_key
from waku_bridge.messages import (
    Decoded,
    PushResponse,
    QueryResponse,
    RegistrationError,
    RegistrationResponse,
    WakuMessage,
)
from waku_bridge.models import CanaryRun, InboundEnvelope, OutboundReply
from waku_bridge.outbound import record, reply_to, return_address

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = (Identity(PrivateKey(bytes([number]) * 32)) for number in (0x21, 0x22))
ALICE, BOB = CONTACT, SENDER
OTHER_TOKEN = "c0ffee00-0000-4000-8000-000000000002"
CACHED = (
    *(identity.server_identity, identity.server_identities, identity.identities_by_topic),
    *(identity.own_content_topics, identity.canary_identities),
)
Serve = Callable[..., None]


@pytest.fixture
def serve(settings: LazySettings) -> Iterator[Serve]:
    """Return ``serve(identity, *others)``, which restarts the server with these keys."""

    def restart(own: Identity, *others: Identity) -> None:
        settings.SERVER_PRIVATE_KEY = own.private_key.secret
        settings.OTHER_SERVER_PRIVATE_KEYS = [other.private_key.secret for other in others]
        forget()

    def forget() -> None:
        for function in CACHED:
            function.cache_clear()

    yield restart
    forget()


def asked(person: Identity, server: Identity) -> WakuMessage:
    """Return a request to notify somebody, sent to one of the server's identities."""
    return request(push(person, message=b"sealed"), server=server, message_id=os.urandom(32))


def answers(listener: Identity, kind: type) -> list[Decoded]:
    """Return the answers of a kind that a listener got since the last call."""
    found = [decoded for decoded in replies_to(listener) if isinstance(decoded.body, kind)]
    OutboundReply.objects.all().delete()
    return found


def register(person: Identity, server: Identity, **options: object) -> tuple[bytes, int]:
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


def notify(person: Identity, server: Identity) -> tuple[bytes, bool]:
    """Notify somebody. Return the identity that answered, and whether a push was sent."""
    process = Process(RecordingGateway(Outcome.DELIVERED))
    say(asked(person, server), process=process)
    process.process_until(OutboundReply.objects.exists)
    [answer] = answers(EPHEMERAL, PushResponse)
    assert [report.success for report in answer.body.reports] == [True]
    return answer.author, bool(process.gateway.pushes)


def test_the_server_changes_its_key_and_nobody_is_cut_off(serve: Serve) -> None:
    serve(OLD)
    assert register(ALICE, OLD) == register(BOB, OLD) == (OLD.pub33, RegistrationError.NONE)

    serve(OLD, NEW)  # every process reads the new topics before any client has the new key
    assert notify(ALICE, OLD) == (OLD.pub33, True)

    serve(NEW, OLD)  # clients get the new key, and some of them have it already
    assert ask(ALICE, BOB) == {OLD.pub33: {ALICE.key_hash, BOB.key_hash}}
    assert notify(BOB, OLD) == (OLD.pub33, True)
    assert register(BOB, NEW, version=2) == (NEW.pub33, RegistrationError.NONE)
    assert ask(ALICE, BOB) == {OLD.pub33: {ALICE.key_hash}, NEW.pub33: {BOB.key_hash}}
    assert notify(BOB, NEW) == (NEW.pub33, True)
    assert notify(BOB, OLD) == (OLD.pub33, True)  # a sender that queried before Bob registered anew
    assert register(ALICE, NEW, version=2) == (NEW.pub33, RegistrationError.NONE)

    serve(NEW)  # every client has the new key
    assert ask(ALICE, BOB) == {NEW.pub33: {ALICE.key_hash, BOB.key_hash}}
    assert notify(ALICE, NEW) == (NEW.pub33, True)
    say(asked(ALICE, OLD))
    assert not answers(EPHEMERAL, PushResponse)


def test_a_client_that_knows_both_keys_registers_with_both_under_one_version(serve: Serve) -> None:
    serve(NEW, OLD)
    assert register(ALICE, OLD) == (OLD.pub33, RegistrationError.NONE)
    assert register(ALICE, NEW) == (NEW.pub33, RegistrationError.NONE)
    assert {bytes(grant.server_public_key) for grant in Grant.objects.all()} == {OLD.pub33, NEW.pub33}
    [reported_by] = ask(ALICE)  # one identity reports her
    assert reported_by in {OLD.pub33, NEW.pub33}
    serve(NEW)
    assert ask(ALICE) == {NEW.pub33: {ALICE.key_hash}}


def test_a_grant_for_a_former_access_token_is_not_reported(serve: Serve) -> None:
    serve(NEW, OLD)
    register(ALICE, OLD)
    register(ALICE, NEW, version=2, access_token=OTHER_TOKEN)
    assert ask(ALICE) == {NEW.pub33: {ALICE.key_hash}}
    assert [bytes(grant.server_public_key) for grant in Grant.objects.all()] == [NEW.pub33]


def test_the_same_version_with_another_content_is_refused_by_either_identity(serve: Serve) -> None:
    serve(NEW, OLD)
    register(ALICE, OLD)
    assert register(ALICE, NEW, access_token=OTHER_TOKEN) == (NEW.pub33, RegistrationError.VERSION_MISMATCH)


def test_a_grant_for_the_other_identity_is_refused(serve: Serve) -> None:
    serve(NEW, OLD)
    say(registration(ALICE, server=NEW, grant=sign_grant(ALICE.private_key, OLD.pub33, TOKEN)))
    [answer] = answers(ALICE, RegistrationResponse)
    assert (answer.author, answer.body.error) == (NEW.pub33, RegistrationError.MALFORMED_MESSAGE)


def test_the_operator_sees_how_many_depend_on_each_key(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    serve(NEW, OLD)
    register(ALICE, OLD)
    register(BOB, OLD)
    register(BOB, NEW, version=2)
    call_command("server_keys")
    own, other = capsys.readouterr().out.splitlines()
    assert own.split() == ["1", "installations", chat_key(NEW.pub33), "SERVER_PRIVATE_KEY"]
    assert other.split() == ["1", "installations", chat_key(OLD.pub33), "OTHER_SERVER_PRIVATE_KEYS"]

    serve(NEW)
    call_command("server_keys")
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["1", "installations", "have"]


def test_requests_to_a_removed_key_are_answered_by_the_servers_own_key(serve: Serve) -> None:
    serve(NEW)
    for address in (return_address(EPHEMERAL.pub33, "/waku/2/rs/16/32", sender=OLD.pub33), EPHEMERAL.pub33 + b"/waku"):
        assert _signer_of_answer_to(address) == NEW.pub33


def _signer_of_answer_to(address: bytes) -> bytes:
    reply = reply_to(Answer("waku", os.urandom(32), address, b"m", ()))
    record([reply], now=timezone.now(), retry_after=timedelta(seconds=1))
    [answer] = answers(EPHEMERAL, PushResponse)
    return answer.author


def test_the_canary_uses_one_identity_after_the_other(serve: Serve) -> None:
    serve(NEW, OLD)
    assert {_next_server(CanaryRun(pk=number)) for number in (1, 2)} == {OLD.pub33, NEW.pub33}
    serve(NEW)
    assert {_next_server(CanaryRun(pk=number)) for number in (1, 2)} == {NEW.pub33}


def test_no_secret_key_is_stored_with_a_request(serve: Serve) -> None:
    serve(NEW, OLD)
    register(ALICE, NEW)
    say(asked(ALICE, OLD))
    [stored] = NotificationRequest.objects.values_list("reply_address", flat=True)
    assert bytes(stored) == EPHEMERAL.pub33 + OLD.pub33 + b"/waku/2/rs/16/32"
    assert InboundEnvelope.objects.filter(state="processed").count() == 2
