"""Worker that is killed between any two statements of its batches, each in order: nothing is lost or answered twice.

A process of its own forks a worker for each place: before a statement, before or after a commit, and before or after a
push or a publication. The worker processes batches until all work is done, or until SIGKILL strikes at that place.
Another one finishes the work each time. A push of the killed worker may be sent once more, with the same collapse id.
"""

import itertools
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from embedded.servers.postgres import EmbeddedPostgres
from kit.db.base import DatabaseWrapper
from kit.db.statements import fetch
from notifications.messages import Outcome, Result
from notifications.models import Attempt, Notification, NotificationRequest
from notifications.rules.transitions import OPEN
from tests.rig import databases
from tests.rig.budget import first_everyday
from tests.rig.conversation import CLIENT, EPHEMERAL, TOKEN, UUID, push, put, replies_to, request
from tests.rig.delivering import Process, SilentGateway
from tests.rig.rows import make_registration
from tests.rig.statements import before_each_statement
from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import PushResponse
from waku_bridge.models import InboundEnvelope, OutboundReply
from waku_bridge.outbound import outbox

pytestmark = pytest.mark.django_db(transaction=True)
# With fewer places they would not be counted at all.
FEWEST_PLACES = 15
WORKERS = """
import sys, django; django.setup()
from tests.flows.test_killed_at_each_statement import work_and_die
work_and_die(sys.argv[1])
"""
DEADLINE_SECONDS = 60
# The last batches find nothing to do. One or two of them have the same places as ten.
NOTED_WITHIN_SECONDS = 0.1


class Mortal:
    """Workers, each of which is killed at one place."""

    def __init__(self, database_url: str, record: Path) -> None:
        self._record = record
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKERS, str(record)],
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


def prepare() -> None:
    """Have a sender request a push to a registered phone."""
    databases.put_back()
    make_registration(public_key_hash=CLIENT.key_hash, installation_id=UUID, access_token=TOKEN)
    put(request(push(message=b"sealed")))


def check_push(mortal: Mortal, *, kills: int) -> None:
    """Check that the push was sent at least once, at most once more for each kill, and always with one collapse id."""
    pushes = mortal.sent("push")
    notification = Notification.objects.get()
    outcomes = Counter(Attempt.objects.values_list("outcome", "code"))
    assert (notification.state, notification.report) == ("delivered", "success")
    assert (notification.message, notification.due_at) == (None, None)
    assert 1 <= len(pushes) <= 1 + kills
    assert set(pushes) == {bytes(notification.collapse_id).hex()}
    # Each push had an attempt, each attempt has ended, and the one that was lost in the crash counts as ambiguous.
    assert outcomes.pop(("delivered", "")) == 1
    assert outcomes in ({}, {("ambiguous", "worker_lost"): 1})
    assert len(pushes) <= Attempt.objects.count() <= 1 + kills
    assert notification.attempt_count == Attempt.objects.count()
    assert notification.ambiguous_count == outcomes.total()


def check_answer(mortal: Mortal) -> None:
    """Check that one reply was made. If it was published more than once, then with the same bytes, which the network
    treats as one message.
    """
    reply = OutboundReply.objects.get()
    [decoded] = replies_to(EPHEMERAL)
    assert isinstance(decoded.body, PushResponse)
    assert (reply.state, reply.part) == ("published", 0)
    assert set(mortal.sent("reply")) == {bytes(reply.message_hash).hex()}
    assert not NotificationRequest.objects.exclude(state="answered", reply_address=None).exists()
    assert InboundEnvelope.objects.get().state == "processed"


def hand_over() -> None:
    """Let time pass: another worker may claim the killed worker's rows, and its replies are due."""
    fetch("UPDATE notifications_opennotification SET due_at = now() - interval '1 second' WHERE state = 'in_flight'")
    fetch("UPDATE notifications_openrequest SET reply_due_at = now() - interval '1 second'")
    fetch("UPDATE waku_bridge_openreply SET due_at = now() WHERE state = 'pending'")


def is_killed_at(place: int, mortal: Mortal) -> bool:
    """Kill a worker at that place, if it reaches it, have another one finish, and check the result. Return whether the
    worker was killed.
    """
    mortal.forget()
    prepare()
    end = mortal.live(place)
    assert end in {0, -signal.SIGKILL}
    if end:
        hand_over()
        assert mortal.live() == 0
    check_push(mortal, kills=1 if end else 0)
    check_answer(mortal)
    return end != 0


@pytest.mark.parametrize("step", first_everyday(3, 1))
def test_a_worker_may_be_killed_at_any_place(step: int, mortal: Mortal) -> None:
    """Of a request on its whole way. The simulation kills workers also while phones register and pushes are retried."""
    place = next(place for place in itertools.count(1, step) if not is_killed_at(place, mortal))
    assert place > FEWEST_PLACES


# The workers ----------------------------------------------------------------------------------------------------------


class Fate:
    """Counter of places that kills its process at one of them. It records pushes and publications in a file, which
    survives the process.
    """

    def __init__(self, strike_at: int, record: str) -> None:
        self._strike_at = strike_at
        self._places = itertools.count(1)
        self._file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.is_armed = True

    def pass_by(self, _statement: str = "") -> None:
        if self.is_armed and next(self._places) == self._strike_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, kind: str, name: str) -> None:
        self.pass_by()
        os.write(self._file, f"{kind} {name}\n".encode())
        self.pass_by()


@contextmanager
def around_each_commit(function: Callable[[], object]) -> Iterator[None]:
    """Call a function just before and just after each commit of this process."""
    commit = DatabaseWrapper._commit

    def surrounded(connection: Any) -> None:
        function()
        commit(connection)
        function()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseWrapper, "_commit", surrounded)
        yield


def live_until(strike_at: int, record: str) -> None:
    """Process batches until all work is done."""
    outbox.NOTED_WITHIN_SECONDS = NOTED_WITHIN_SECONDS
    process = _process(fate := Fate(strike_at, record))
    with before_each_statement(fate.pass_by), around_each_commit(fate.pass_by):
        process.process_until(lambda: _is_done(fate), seconds=DEADLINE_SECONDS)


def _process(fate: Fate) -> Process:
    class Gateway(SilentGateway):
        async def send(self, push: Any) -> Result:
            fate.note("push", push.collapse_id)
            return Result(Outcome.DELIVERED)

    class Node:
        url = name = "http://node.test"

        async def publish(self, pubsub_topic: str, message: Any) -> None:
            fate.note("reply", message_hash(pubsub_topic, message).hex())

    return Process(Gateway(), nodes=[Node()])


def _is_done(fate: Fate) -> bool:
    fate.is_armed = False
    waiting = (
        InboundEnvelope.objects.filter(state="received"),
        NotificationRequest.objects.filter(state="waiting"),
        Notification.objects.filter(state__in=OPEN),
        OutboundReply.objects.filter(state="pending"),
    )
    is_done = not any(rows.exists() for rows in waiting)
    fate.is_armed = True
    return is_done


def work_and_die(record: str) -> None:
    """Fork a child for each line of input, the number of a place. Print the exit code of each."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _live_and_die(int(line), record)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the test reads it


def _live_and_die(strike_at: int, record: str) -> None:
    code = 1
    try:
        live_until(strike_at, record)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent goes on
        traceback.print_exc()
    finally:
        os._exit(code)
