"""The steps of a batch that take envelopes from the inbox.

    received ──opened──┬──▶ decided                                      (`Inbox`)
                       └──▶ postponed ──opened again──┬──▶ decided       (`Postponed`)
                                                      └──▶ dropped, beyond the limit of `inbox.BOUND`

When a batch costs more than its budget, `priority` chooses the messages that are decided now. Of its queries, those
within a quarter of the budget are decided in any case, and the rest is postponed. While the inbox is
behind, four fifths of a batch are the newest envelopes, because their senders still wait, and one fifth the oldest.
Every envelope is opened at full speed, so that messages about a proven address are found. Postponed envelopes are
decided once the inbox keeps up, the newest first, in batches with a budget left for new ones.
"""

import fcntl
import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import LiteralString

import structlog
from django.conf import settings

from kit.batches.batch import Batch, Step, Work
from kit.buckets.bucket import Buckets
from kit.buckets.shared import own_buckets, own_share
from kit.processes.status import ChangeFilter
from notifications.acceptance.storing import find_repeats
from notifications.delivery.steps import Delivery, traced
from registrations.lookup import find_proven_addresses
from registrations.messages import Named
from waku_bridge.inbox import faults, inbox, processing
from waku_bridge.inbox.inbox import POSTPONED, WAITING, Item, Taken
from waku_bridge.inbox.priority import (
    QUERY_SHARE,
    SHARE,
    SHARE_OF_IDLE,
    Chosen,
    Priority,
    cheapest,
    cost,
    fitting,
    named,
)
from waku_bridge.inbox.processing import Processed
from waku_bridge.messages import BRIDGE, Query

# Deaths after which an envelope is processed in a batch of its own.
DEATHS_BEFORE_ALONE = 2

# In-flight journal: the envelopes that a process works on, in a file that outlives it ---------------------------------
#
#     take a batch ──▶ hold: its hashes into the file ──▶ work ──▶ commit or rollback ──▶ clear: the file is empty
#                                                          │
#                                              the process dies: the hashes stay, and the lock on the file is free
#
# The next process reads which envelopes a process died with, and how often. The journal costs no transaction: the
# kernel keeps what was written also after SIGKILL. When the machine or container is lost, the journal is lost too, and
# no envelope is a suspect.

log = structlog.get_logger(__name__)
HASH_BYTES = 32


class InFlightJournal:
    """The journal of this process, in a folder with those of the other processes of this machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held: list[bytes] = []
        self._change_filter = ChangeFilter()  # of the reasons why nothing is written, such as a full disk
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        hidden = folder / f".{self.path.name}"  # an unlocked file with another name is one of a dead process
        self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        hidden.rename(self.path)

    def hold(self, hashes: Iterable[bytes]) -> None:
        """Write these hashes beside those that are held. Call it before work on them begins."""
        self._held += hashes
        self._write()

    def clear(self) -> None:
        """Remove all hashes from the file."""
        self._held = []
        self._write()

    def _write(self) -> None:
        reason, content = "", b"".join(self._held)
        try:
            os.pwrite(self._file, content, 0)
            os.ftruncate(self._file, len(content))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
        if self._change_filter.has_changed(reason) and reason:
            log.warning("journal_not_kept", reason=reason)

    def close(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)

    def count_deaths(self) -> Counter[bytes]:
        """Return how many processes died with each envelope, and remove the empty journals of dead processes."""
        counted: Counter[bytes] = Counter()
        for path in self._of_the_dead():
            counted.update(set(hashes := read_journal(path)))
            if not hashes:
                path.unlink(missing_ok=True)
        return counted

    def forget(self, over: Iterable[bytes]) -> None:
        """Remove the journals of dead processes all of whose envelopes are in ``over``."""
        done = set(over)
        for path in self._of_the_dead():
            if done.issuperset(read_journal(path)):
                path.unlink(missing_ok=True)

    def _of_the_dead(self) -> Iterator[Path]:
        """Yield the journals of dead processes. What cannot be read counts as missing, so that it stops no work."""
        with suppress(OSError):
            for path in self.path.parent.iterdir():
                if not path.name.startswith(".") and _is_free(path):
                    yield path


def _is_free(path: Path) -> bool:
    """Return whether no process has a lock on the file: its own has ended."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(file)


def read_journal(path: Path) -> list[bytes]:
    """Return the hashes in a journal, or nothing if it was removed meanwhile."""
    content = b""
    with suppress(FileNotFoundError):
        content = path.read_bytes()
    return [content[at : at + HASH_BYTES] for at in range(0, len(content) - HASH_BYTES + 1, HASH_BYTES)]


# The steps ------------------------------------------------------------------------------------------------------------


class InboxStep(Step):
    """The common part of both steps: process the envelopes that were taken."""

    def __init__(self, intake: "InboxIntake") -> None:
        self._intake = intake

    def _process(self, items: Sequence[Item], *, is_more_left: bool, now: datetime) -> Work[Processed]:
        limits, capacity = self._intake.delivery.limits, self._intake.capacity
        processed = processing.process(items, limits=limits, capacity=capacity, now=now)
        answers = [*processed.replies, *traced(processed.accepted.answers)]
        return Work(processed, answers, is_more_left=is_more_left)

    def committed(self, decided: Processed) -> None:
        """Send the pushes that were claimed, and then charge the limits."""
        self._intake.journal.clear()
        self._intake.delivery.accepted(decided.accepted.claims, decided.accepted.waiting)
        if decided.needs_keys:
            self._intake.want_keys()
        own_buckets().keep()
        processing.query_limits().keep()

    def rolled_back(self, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        """Forget the decisions of the batch, and return the tokens that it took."""
        self._intake.journal.clear()  # also where the process is ended: it did not die of its envelopes
        own_buckets().take_back()
        processing.query_limits().take_back()
        self._intake.delivery.limits.give_back()

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Mark the envelope that was taken alone as failed. Its payload is kept, so that it can be processed again."""
        for envelope in batch.taken:
            faults.quarantine(envelope.hash, error, now=batch.now)

    def again(self, batch: Batch) -> None:
        """Leave the envelope for some seconds."""
        inbox.again(batch.taken)


class Inbox(InboxStep):
    """The step that takes envelopes as they come."""

    oldest: LiteralString = WAITING

    def __init__(self, intake: "InboxIntake") -> None:
        super().__init__(intake)
        self._takes_one_alone = False

    def work(self, batch: Batch) -> Work[Processed]:
        """Process envelopes that wait. The batch passes their answers and replies on to its next steps."""
        suspects = self._intake.suspects(now=batch.now)
        taken = self._take(batch, suspects)
        batch.taken = taken.items
        self._intake.took_from_inbox = bool(taken.items)
        self._intake.journal.hold([item.hash for item in taken.items])
        items = processing.open_all(taken.items, now=batch.now)
        chosen = self._choose(items, taken, batch)
        inbox.postpone([items[index] for index in chosen.postponed])
        has_rest = len(chosen.decided) + len(chosen.postponed) < len(items)
        is_more_left = taken.is_more_left or has_rest or bool(suspects) or self._intake.priority.is_behind
        decided = [item for index, item in enumerate(items) if index in chosen.decided]
        return self._process(decided, is_more_left=is_more_left, now=batch.now)

    def _take(self, batch: Batch, suspects: Collection[bytes]) -> Taken:
        """Take envelopes. Each suspect gets a batch of its own, because processes died with it.

        Such a batch is every other one, so that it neither harms other envelopes nor makes all of them wait. An
        envelope that kills a process even then is given up.
        """
        if not batch.is_careful:  # it must find the envelope that made a batch fail
            self._takes_one_alone = not self._takes_one_alone
        self._takes_one_alone &= bool(suspects)
        if self._takes_one_alone:
            return inbox.take_one_of(suspects)
        is_newest_first = self._intake.priority.is_behind and not batch.is_careful
        return inbox.take(batch.limit, batch.nothing_before, but=suspects, is_newest_first=is_newest_first)

    def _choose(self, items: Sequence[Item], taken: Taken, batch: Batch) -> Chosen:
        """Choose the messages that this batch decides: all of them, while they fit and the inbox keeps up.

        A batch after a failure does not count as evidence that the inbox is behind: it is small, and its envelopes may
        have waited for a lock.
        """
        costs = _costs(items)
        self._intake.query_units = QUERY_SHARE
        late = self._intake.find_late_queries(items, costs)
        costs = [0 if index in late else each for index, each in enumerate(costs)]
        waited = max((batch.now - item.received_at for item in taken.items), default=timedelta())
        is_full = taken.is_more_left and not batch.is_careful
        if self._intake.priority.decides_all(costs, is_full=is_full, waited=waited):
            return Chosen(set(range(len(items))) - late, late)
        names = list(_named_without_repeats(items, now=batch.now))
        found = find_proven_addresses({name for each in names for name in each})
        about = [[found[name] for name in each if name in found] for each in names]
        decided, postponed = self._intake.priority.choose(costs, about)
        return Chosen(decided - late, postponed | late)


def _costs(items: Iterable[Item]) -> list[int]:
    return [cost(item.decoded, len(item.payload)) for item in items]


def _named_without_repeats(items: Sequence[Item], *, now: datetime) -> Iterator[list[Named]]:
    """Yield the installations that each message is about, and none for a repeated request.

    Anybody may have recorded a request and repeat it, so a repetition must not take the tokens of a proven address.
    """
    seen = find_repeats(BRIDGE, [item.decoded.message_id for item in items if item.decoded], now=now)
    for decoded in (item.decoded for item in items):
        yield [] if decoded and decoded.message_id in seen else named(decoded)
        seen |= {decoded.message_id} if decoded else set()


class Postponed(InboxStep):
    """The step that decides about postponed envelopes, once the inbox keeps up."""

    waits: LiteralString = POSTPONED

    def work(self, batch: Batch) -> Work[Processed]:
        """Process postponed envelopes within the share of this batch. The next ones follow within a second."""
        if self._intake.priority.is_behind:
            return Work(Processed())
        self._intake.suspects(now=batch.now)
        units = SHARE if self._intake.took_from_inbox else SHARE_OF_IDLE
        self._intake.took_from_inbox = False  # the next batch may skip the step of the inbox
        taken = inbox.take_postponed(min(batch.limit, units))
        batch.taken = taken.items
        self._intake.journal.hold([item.hash for item in taken.items])
        items = processing.open_all(taken.items, now=batch.now)
        costs = _costs(items)
        late = self._intake.find_late_queries(items, costs)
        self._intake.query_units = QUERY_SHARE  # of the next batch
        chosen = set(cheapest(costs, sorted(set(range(len(items))) - late), units=units))
        decided = [item for index, item in enumerate(items) if index in chosen]
        is_more_left = taken.is_more_left or len(chosen) < len(items)
        return self._process(decided, is_more_left=is_more_left, now=batch.now)


class InboxIntake:
    """The state that the steps of a process share.

    ``want_keys`` is called when envelopes wait for keys. In ``journal`` the process notes the envelopes that it works
    on, so that other processes can read which ones it died with.
    """

    def __init__(self, delivery: Delivery, want_keys: Callable[[], None], journal: InFlightJournal) -> None:
        self.delivery = delivery
        self.want_keys = want_keys
        self.journal = journal
        self.query_units = QUERY_SHARE  # what is left of them for the queries of this batch
        self.took_from_inbox = False  # whether the inbox's step of this batch took envelopes
        self.capacity = Buckets()  # for what is kept of envelopes that nothing follows from
        self.priority = Priority(settings.ROUTE_LIMITS[:1], lambda: own_share().part)

    def steps(self) -> list[Step]:
        """Return new steps, in the order in which a batch runs them."""
        return [Inbox(self), Postponed(self)]

    def find_late_queries(self, items: Sequence[Item], costs: Sequence[int]) -> set[int]:
        """Take the units of queries from what this batch has for them, and return the indexes of those beyond it."""
        queries = [i for i, item in enumerate(items) if item.decoded and isinstance(item.decoded.body, Query)]
        answered = set(fitting(costs, queries, units=self.query_units))
        self.query_units -= sum(costs[index] for index in answered)
        return {*queries} - answered

    def suspects(self, *, now: datetime) -> list[bytes]:
        """Return the waiting envelopes that the step `Inbox` must take alone, because processes died with them.

        Give up those that killed another process when they were alone.
        """
        deaths = self.journal.count_deaths()
        if not deaths:
            return []
        found = inbox.still_waiting(deaths.keys())
        self.journal.forget(deaths.keys() - found.keys())
        waiting = [each for each, can_be_taken in found.items() if can_be_taken]
        faults.give_up([each for each in waiting if deaths[each] > DEATHS_BEFORE_ALONE], now=now)
        suspects = [each for each in waiting if deaths[each] == DEATHS_BEFORE_ALONE]
        inbox.recall(suspects)
        return suspects
