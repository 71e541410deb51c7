"""Worker that is killed between any two statements of its batches, each in order: nothing is lost or answered twice.

A process of its own forks a worker for each place: before a statement, before or after a commit, and before or after a
push or a publication. The worker processes batches until all work is done, or until SIGKILL strikes at that place.
Another one finishes the work each time. A push of the killed worker may be sent once more, with the same collapse id.

The same happens to a worker that SIGSTOP stops at a place, with whatever it has locked. It goes on when its leases have
long ended.
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
from kit.db.base import DatabaseWrapper, fetch
from notifications.messages import AppKey, Outcome, Result
from notifications.models import Attempt, Notification, NotificationRequest
from registrations.messages import TokenType
from tests.rig import databases
from tests.rig.budget import first_everyday
from tests.rig.conversation import CLIENT, EPHEMERAL, TOKEN, UUID, anybody, push, put, replies_to, request
from tests.rig.delivering import Process, SilentGateway, prove
from tests.rig.rows import make_registration
from tests.rig.statements import before_each_statement
from waku_bridge.codec.wire import message_hash
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

    def live(self, strike_at: int = 0, *, by: int = signal.SIGKILL) -> int:
        """Make a worker do all the work, and return its exit code, or the negative number of the signal."""
        return self._ask("live", strike_at, by)

    def work_beside_it(self) -> int:
        """Make a worker process what was put last, while another one is stopped. Return its exit code."""
        return self._ask("beside", 0, 0)

    def go_on(self) -> int:
        """Make the worker that was stopped do all the work, and return its exit code."""
        return self._ask("on", 0, 0)

    def _ask(self, *words: object) -> int:
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
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
    """Let time pass: another worker may claim the rows of the killed or stopped one, and its replies are due. What the
    stopped one has locked stays as it is.
    """
    for table, change, where in (
        ("notifications_opennotification", "due_at = now() - interval '1 second'", "state = 'in_flight'"),
        ("notifications_openrequest", "reply_due_at = now() - interval '1 second'", "TRUE"),
        ("waku_bridge_openreply", "due_at = now()", "state = 'pending'"),
    ):
        ids = f"SELECT id FROM {table} WHERE {where} FOR UPDATE SKIP LOCKED"
        fetch(f"UPDATE {table} SET {change} WHERE id IN ({ids})")


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


def is_stopped_at(place: int, mortal: Mortal) -> bool:
    """Stop a worker at that place, if it reaches it, have another one work, and let it go on when its leases have
    ended. Check the result, and return whether the worker was stopped.
    """
    mortal.forget()
    prepare()
    prove(AppKey(TokenType.FIREBASE, ""))  # others would wait for the first delivery of an app to be committed
    end = mortal.live(place, by=signal.SIGSTOP)
    assert end in {0, -signal.SIGSTOP}
    if end:
        hand_over()
        other = anybody()
        make_registration(public_key_hash=other.key_hash, installation_id=UUID, access_token=TOKEN)
        put(request(push(other, message=b"another")))
        assert mortal.work_beside_it() == 0
        assert mortal.go_on() == 0
    sent = Counter(mortal.sent("push"))
    for notification in Notification.objects.all():
        times = sent.pop(bytes(notification.collapse_id).hex())
        assert (notification.state, notification.report) == ("delivered", "success")
        assert 1 <= times <= notification.attempt_count <= 2
        # The worker beside it may end without the result of a second push, and the late result of the first ends both.
        assert notification.attempts.filter(outcome="delivered").exists()
        assert not notification.attempts.filter(outcome=None).exists()
    replies = {bytes(reply.message_hash).hex() for reply in OutboundReply.objects.filter(state="published")}
    assert not sent
    assert set(mortal.sent("reply")) == replies
    assert len(replies) == OutboundReply.objects.count() == Notification.objects.count() == (2 if end else 1)
    return end != 0


@pytest.mark.parametrize("step", first_everyday(7, 2))
def test_a_worker_may_be_stopped_at_any_place_and_go_on(step: int, mortal: Mortal) -> None:
    place = next(place for place in itertools.count(1, step) if not is_stopped_at(place, mortal))
    assert place > FEWEST_PLACES


# The workers ----------------------------------------------------------------------------------------------------------


class Fate:
    """Counter of places that kills or stops its process at one of them. It records pushes and publications in a file,
    which survives the process.
    """

    def __init__(self, strike_at: int, by: int, record: str) -> None:
        self._strike_at = strike_at
        self._by = by
        self._places = itertools.count(1)
        self._file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.is_armed = True

    def pass_by(self, _statement: str = "") -> None:
        if self.is_armed and next(self._places) == self._strike_at:
            os.kill(os.getpid(), self._by)

    def is_spared(self, function: Callable[[], bool]) -> bool:
        """Call a function whose statements are no places."""
        self.is_armed = False
        result = function()
        self.is_armed = True
        return result

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


def live_until(is_done: Callable[[], bool], fate: Fate) -> None:
    """Process batches until all work is done."""
    outbox.NOTED_WITHIN_SECONDS = NOTED_WITHIN_SECONDS
    process = _process(fate)
    with before_each_statement(fate.pass_by), around_each_commit(fate.pass_by):
        process.process_until(lambda: fate.is_spared(is_done), seconds=DEADLINE_SECONDS)


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


def is_all_done() -> bool:
    waiting = (
        InboundEnvelope.objects.filter(state="received"),
        NotificationRequest.objects.filter(state="waiting"),
        Notification.objects.filter(finished_at=None),
        OutboundReply.objects.filter(state="pending"),
    )
    return not any(rows.exists() for rows in waiting)


def is_last_done() -> bool:
    last = InboundEnvelope.objects.latest("received_at").hash
    is_published = OutboundReply.objects.filter(envelope_hash=last, state="published").exists()
    return is_published and Notification.objects.filter(request__source_key=last, state="delivered").exists()


def work_and_die(record: str) -> None:
    """Fork a child for each line of input, or let the stopped one go on. Print the exit code of each, or its signal."""
    stopped = 0
    for line in sys.stdin:
        word, place, by = line.split()
        if word == "on":
            os.kill(child := stopped, signal.SIGCONT)
        elif not (child := os.fork()):
            _live_and_die(is_last_done if word == "beside" else is_all_done, Fate(int(place), int(by), record))
        _, status = os.waitpid(child, os.WUNTRACED)
        stopped = child if os.WIFSTOPPED(status) else stopped
        code = -os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        print(code, flush=True)  # noqa: T201 - the test reads it


def _live_and_die(is_done: Callable[[], bool], fate: Fate) -> None:
    code = 1
    try:
        live_until(is_done, fate)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent goes on
        traceback.print_exc()
    finally:
        os._exit(code)
