"""Worker process that is killed at a given place: `python -m tests.flows.mortal RECORD`.

Each line of its input is the number of a place. For each it forks, with everything imported, and the child processes
batches until all work is done, or until SIGKILL strikes at that place. A place is before a statement, before or after a
commit, and before or after a push or a publication. A line of output has the exit code of the child. Pushes and
publications are recorded in the file RECORD.
"""

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django
import pytest

DEADLINE_SECONDS = 60
# The last batches find nothing to do. One or two of them have the same places as ten.
NOTED_WITHIN_SECONDS = 0.1


class Fate:
    """Counter of places that kills its process at one of them."""

    def __init__(self, strike_at: int) -> None:
        self._strike_at = strike_at
        self._places = itertools.count(1)
        self.is_armed = True

    def pass_by(self, _statement: str = "") -> None:
        if self.is_armed and next(self._places) == self._strike_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """Recorder of pushes and publications, in a file that survives the process."""

    def __init__(self, path: str, fate: Fate) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._fate = fate

    def note(self, kind: str, name: str) -> None:
        self._fate.pass_by()
        os.write(self._file, f"{kind} {name}\n".encode())
        self._fate.pass_by()


@contextmanager
def around_each_commit(function: Callable[[], object]) -> Iterator[None]:
    """Call a function just before and just after each commit of this process."""
    from kit.db.postgresql.base import DatabaseWrapper

    commit = DatabaseWrapper._commit

    def surrounded(connection: Any) -> None:
        function()
        commit(connection)
        function()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseWrapper, "_commit", surrounded)
        yield


def live(strike_at: int, record: str) -> None:
    """Process batches until all work is done."""
    from tests.statements import before_each_statement
    from waku_bridge.outbound import outbox

    outbox.NOTED_WITHIN_SECONDS = NOTED_WITHIN_SECONDS
    fate = Fate(strike_at)
    process = _process(Recorder(record, fate))
    with before_each_statement(fate.pass_by), around_each_commit(fate.pass_by):
        process.process_until(lambda: _is_done(fate), seconds=DEADLINE_SECONDS)


def _process(recorder: Recorder) -> Any:
    from notifications.messages import Outcome, Result
    from tests.batches import Process
    from tests.delivering import SilentGateway
    from waku_bridge.codec.topics import message_hash

    class Gateway(SilentGateway):
        async def send(self, push: Any) -> Result:
            recorder.note("push", push.collapse_id)
            return Result(Outcome.DELIVERED)

    class Node:
        url = name = "http://node.test"

        async def publish(self, pubsub_topic: str, message: Any) -> None:
            recorder.note("reply", message_hash(pubsub_topic, message).hex())

    return Process(Gateway(), nodes=[Node()])


def _is_done(fate: Fate) -> bool:
    from notifications.models import Notification, NotificationRequest
    from notifications.rules.transitions import OPEN
    from waku_bridge.models import InboundEnvelope, OutboundReply

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


def main() -> None:
    """Fork a child for each line of input."""
    django.setup()
    import tests.batches
    import tests.statements  # noqa: F401 - before the fork, not after each

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _live_and_die(int(line), sys.argv[1])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the parent reads it


def _live_and_die(strike_at: int, record: str) -> None:
    code = 1
    try:
        live(strike_at, record)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent goes on
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
