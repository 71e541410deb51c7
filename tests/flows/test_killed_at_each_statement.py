"""Worker that is killed between any two statements of its batches, each in order: nothing is lost or answered twice.

Another process finishes the work each time. A push of the killed worker may be sent once more, with the same collapse
id.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from embedded.servers.postgres import EmbeddedPostgres
from kit.db.statements import fetch
from notifications.models import Attempt, Notification, NotificationRequest, RequestDigest
from registrations.models import Registration, RegistrationEvent, Route, TopicKey
from tests.budget import first_everyday
from tests.conversation import CLIENT, EPHEMERAL, TOKEN, UUID, push, put, registration, replies_to, request
from tests.rig.rows import make_notification, make_registration, make_request
from waku_bridge.messages import PushResponse, RegistrationResponse
from waku_bridge.models import EnvelopeHash, InboundEnvelope, OutboundReply
from waku_bridge.outbound import return_address

pytestmark = pytest.mark.django_db(transaction=True)
TABLES = (
    *(Attempt, Notification, NotificationRequest, RequestDigest, InboundEnvelope, OutboundReply),
    *(RegistrationEvent, Registration, Route, TopicKey, EnvelopeHash),
)
# With fewer places they would not be counted at all.
FEWEST_PLACES = 15


class Mortal:
    """Workers, each of which is killed at one place."""

    def __init__(self, database_url: str, record: Path) -> None:
        self._record = record
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.mortal", str(record)],
            env=os.environ | {"DATABASE_URL": database_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, strike_at: int = 0) -> int:
        """Make a worker do all the work, and return its exit code."""
        self._process.stdin.write(f"{strike_at}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def sent(self, kind: str) -> list[str]:
        """Return the names of everything that the workers sent."""
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        return [name for found, name in map(str.split, lines) if found == kind]

    def forget(self) -> None:
        self._record.unlink(missing_ok=True)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture
def mortal(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Mortal]:
    mortal = Mortal(postgres.url(connection.settings_dict["NAME"]), tmp_path / "record")
    yield mortal
    mortal.end()


class Request:
    """A sender requests a push to a registered phone."""

    def prepare(self) -> None:
        make_registration(public_key_hash=CLIENT.key_hash, installation_id=UUID, access_token=TOKEN)
        put(request(push(message=b"sealed")))

    def check(self, mortal: Mortal, *, kills: int) -> None:
        check_push(mortal, kills=kills)
        check_answer(mortal, EPHEMERAL, PushResponse)
        assert InboundEnvelope.objects.get().state == "processed"


class Retry:
    """A push that another worker accepted is due, and so is its answer."""

    def prepare(self) -> None:
        phone = make_registration(public_key_hash=CLIENT.key_hash, installation_id=UUID, access_token=TOKEN)
        long_ago = timezone.now() - timedelta(seconds=10)
        request = make_request(at=long_ago, reply_address=return_address(EPHEMERAL.pub33, "/waku/2/rs/16/32"))
        fields = {"route": phone.route, "route_generation": 1, "state": "retrying", "attempt_count": 1}
        notification = make_notification(request=request, at=long_ago, **fields)
        Notification.objects.filter(pk=notification.pk).update(expires_at=timezone.now() + timedelta(days=1))

    def check(self, mortal: Mortal, *, kills: int) -> None:
        check_push(mortal, kills=kills, attempts_before=1)
        check_answer(mortal, EPHEMERAL, PushResponse)


class Registering:
    """A phone registers."""

    def prepare(self) -> None:
        put(registration())

    def check(self, mortal: Mortal, *, kills: int) -> None:  # noqa: ARG002 - the scenarios have one signature
        check_answer(mortal, CLIENT, RegistrationResponse)
        assert (Registration.objects.get().state, Route.objects.get().generation) == ("active", 1)
        assert RegistrationEvent.objects.count() == 1
        assert InboundEnvelope.objects.get().state == "processed"


def check_push(mortal: Mortal, *, kills: int, attempts_before: int = 0) -> None:
    """Check that the push was sent at least once, at most once more for each kill, and always with one collapse id."""
    pushes = mortal.sent("push")
    notification = Notification.objects.get()
    outcomes = Counter(Attempt.objects.values_list("outcome", "code"))
    assert (notification.state, notification.report) == ("delivered", "success")
    assert (notification.message, notification.lease_until, notification.next_attempt_at) == (None, None, None)
    assert 1 <= len(pushes) <= 1 + kills
    assert set(pushes) == {bytes(notification.collapse_id).hex()}
    # Each push had an attempt, each attempt has ended, and the one that was lost in the crash counts as ambiguous.
    assert outcomes.pop(("delivered", "")) == 1
    assert outcomes in ({}, {("ambiguous", "worker_lost"): 1})
    assert len(pushes) <= Attempt.objects.count() <= 1 + kills
    assert notification.attempt_count == attempts_before + Attempt.objects.count()
    assert notification.ambiguous_count == outcomes.total()


def check_answer(mortal: Mortal, recipient, kind) -> None:
    """Check that one reply was made. If it was published more than once, then with the same bytes, which the network
    treats as one message.
    """
    reply = OutboundReply.objects.get()
    [decoded] = replies_to(recipient)
    assert isinstance(decoded.body, kind)
    assert (reply.state, reply.part) == ("published", 0)
    assert set(mortal.sent("reply")) == {bytes(reply.message_hash).hex()}
    assert not NotificationRequest.objects.exclude(state="answered", reply_address=None).exists()


def hand_over() -> None:
    """Let time pass: another worker may claim the killed worker's rows, and its replies are due."""
    fetch("UPDATE notifications_notification SET lease_until = now() - interval '1 second' WHERE state = 'in_flight'")
    fetch("UPDATE notifications_notificationrequest SET reply_due_at = now() - interval '1 second'")
    fetch("UPDATE waku_bridge_outboundreply SET next_attempt_at = now() WHERE state = 'pending'")


def is_killed_at(place: int, scenario, mortal: Mortal) -> bool:
    """Kill a worker at that place, if it reaches it, have another one finish, and check the result. Return whether the
    worker was killed.
    """
    for model in TABLES:
        model.objects.all().delete()
    mortal.forget()
    scenario.prepare()
    end = mortal.live(place)
    assert end in {0, -signal.SIGKILL}
    if end:
        hand_over()
        assert mortal.live() == 0
    scenario.check(mortal, kills=1 if end else 0)
    return end != 0


@pytest.mark.parametrize(
    ("scenario", "step"),
    first_everyday((Request(), 3), (Request(), 1), (Retry(), 1), (Registering(), 1)),
    ids=["each third of a request", "request", "retry", "registering"],
)
def test_a_worker_may_be_killed_at_any_place(scenario, step: int, mortal: Mortal) -> None:
    place = next(place for place in itertools.count(1, step) if not is_killed_at(place, scenario, mortal))
    assert place > FEWEST_PLACES
