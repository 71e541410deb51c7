"""Drill of docs/backup.md, "Changing the field keys": during the change, processes with the old and the new setting
serve everybody.

Each step alternates between a process that was restarted and one that was not.
"""

import os
import time
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
from django.conf import LazySettings
from django.core.management import call_command

from notifications.messages import Outcome
from registrations.keys.keyring import keyring
from tests.batches import Process
from tests.conversation import CONTACT, EPHEMERAL, SENDER, TOKEN, push, query, registration, replies_to, request, say
from tests.delivering import RecordingGateway
from tests.factories import firebase_token
from waku_bridge.client import new_identity
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import PushResponse, QueryResponse, RegistrationResponse
from waku_bridge.models import OutboundReply

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = b"o" * 32, b"n" * 32
ALICE, BOB = CONTACT, SENDER
Be = Callable[..., None]


@pytest.fixture
def be(settings: LazySettings) -> Iterator[Be]:
    """Return ``be(*keys)``, which makes this process one that was started with these keys."""

    def start(*keys: bytes) -> None:
        settings.FIELD_ENCRYPTION_KEYS = list(keys)
        keyring.cache_clear()

    yield start
    keyring.cache_clear()


def register(person: Identity, *, version: int) -> bool:
    say(registration(person, version=version))
    [answer] = [each for each in replies_to(person) if isinstance(each.body, RegistrationResponse)]
    OutboundReply.objects.all().delete()
    return answer.body.success


def is_served(person: Identity) -> bool:
    """Return whether this process finds and notifies somebody."""
    return _is_found(person) and _is_notified(person)


def _is_found(person: Identity) -> bool:
    sender = new_identity(os.urandom)  # the server answers a repeated query of one sender only once within seconds
    say(query(person.key_hash, signer=sender))
    answers = [each.body for each in replies_to(sender) if isinstance(each.body, QueryResponse)]
    OutboundReply.objects.all().delete()
    return [info.access_token for body in answers for info in body.info] == [TOKEN]


def _is_notified(person: Identity) -> bool:
    process = Process(RecordingGateway(Outcome.DELIVERED))
    say(request(push(person, message=b"sealed"), message_id=os.urandom(32)), process=process)
    process.process_until(OutboundReply.objects.exists)
    [answer] = [each.body for each in replies_to(EPHEMERAL) if isinstance(each.body, PushResponse)]
    OutboundReply.objects.all().delete()
    pushed = [push.address for push in process.gateway.pushes]
    return all(report.success for report in answer.reports) and pushed == [firebase_token("device-token").encode()]


def rotate() -> str:
    printed = StringIO()
    call_command("rotate_field_keys", stdout=printed, stderr=printed)
    return printed.getvalue()


def test_the_field_keys_are_changed_and_nobody_is_cut_off(be: Be) -> None:
    before, added, moved, after = (OLD,), (OLD, NEW), (NEW, OLD), (NEW,)
    be(*before)
    assert register(ALICE, version=1)

    for restarted, not_yet in ((added, before), (moved, added)):
        be(*restarted)
        assert register(BOB, version=time.time_ns())
        be(*not_yet)
        assert is_served(ALICE)
        assert is_served(BOB)
        assert register(ALICE, version=time.time_ns())
        be(*restarted)
        assert is_served(ALICE)
        assert is_served(BOB)

    rotate()
    assert is_served(ALICE)
    be(*after)
    assert is_served(ALICE)
    assert is_served(BOB)
    assert register(ALICE, version=time.time_ns())


def test_a_repeat_of_a_registration_is_known_after_the_change_while_the_old_key_is_listed(be: Be) -> None:
    be(OLD)
    assert register(ALICE, version=1)
    be(NEW, OLD)
    rotate()
    assert register(ALICE, version=1)


def test_the_shortcut_that_the_readme_warns_of_would_cut_people_off(be: Be) -> None:
    """A new key that is put in front at once is unknown to processes that were not restarted."""
    be(NEW, OLD)
    assert register(ALICE, version=1)
    be(OLD)
    say(request(push(ALICE, message=b"sealed")), process=Process(RecordingGateway(Outcome.DELIVERED)))
    [answer] = [each.body for each in replies_to(EPHEMERAL) if isinstance(each.body, PushResponse)]
    assert not any(report.success for report in answer.reports)
