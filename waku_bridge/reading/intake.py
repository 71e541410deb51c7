"""The intake: the step that every reading path shares, which writes a page of messages into the inbox.

A page costs one statement for each `inbox.SLICE_BYTES` of it, its commit, and one notice that wakes a worker. A node
that has both a relay cache and a store delivers every message twice. So the bridge remembers the hashes of all messages
that it read, for us or not, to leave them out when it reads a store. It computes these hashes itself, because the hash
that a store gives for a message is only a claim.

The bridge has an asynchronous database connection of its own. Every statement runs in autocommit, with values that the
server binds in binary, and with prepared plans. With each answer PostgreSQL delivers the topics that were registered
before it, so learning of them costs no statement.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import psycopg
import structlog
from django.db import close_old_connections

from kit.backoff import Backoff
from kit.batches.marks import AT_FIRST, BEGINNING, OVERLAP
from kit.buckets.bucket import Buckets, Charge, per_minute
from kit.db.clock import clock
from kit.db.connections import connection_parameters
from kit.db.reasons import STATEMENT_TIMEOUT
from kit.metrics import count
from kit.processes.leader import Term
from kit.tracing import Role, is_on, step
from waku_bridge.inbox import inbox
from waku_bridge.messages import Envelope
from waku_bridge.metrics import (
    DEAD_LETTERS,
    ENVELOPES_PROCESSED,
    INBOX_ENVELOPES,
    MESSAGES_MATCHED,
    MESSAGES_READ,
    MESSAGES_SKIPPED,
)
from waku_bridge.models import DeadLetter
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.pages import Reader, Rejected, SeenHashes, Selection, select

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

NS_PER_SECOND = 10**9

# A database that does not answer within this time counts as unreachable.
STATEMENT_SECONDS = 10.0
# It includes the loading of all topics: a million of them take seconds.
CONNECT_SECONDS = 60.0
# The statement for a page without envelopes: its answer brings the topics that were registered before it.
NOTHING = "SELECT 1"
CONNECTION_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
}


class Session:
    """The database connection that all readers of a bridge share. Their statements run one after another.

    ``number`` grows with each new connection. A new connection may lead to another server, which was promoted without
    the last commits of its predecessor. So two memories are cleared with each connection: ``seen``, the hashes of the
    messages that were read, and ``misnamed``, for each node the wrong hashes that its store gives to some of these.
    """

    def __init__(self, topics: QueryTopics) -> None:
        self.topics = topics
        self.seen = SeenHashes()
        self.misnamed: defaultdict[str, SeenHashes] = defaultdict(SeenHashes)
        self.number = 0
        self._connection: psycopg.AsyncConnection | None = None
        self._lock = asyncio.Lock()

    async def execute(
        self, sql: str, values: Sequence[Any] | Mapping[str, Any] = (), *, number: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a statement, take in the topics that were registered before it, and return its rows.

        Raises psycopg.Error. The statement may have been committed even so, and the next one opens a new connection.
        With a ``number`` the statement is sent on the connection of that number or not at all. After the return,
        the connection stays the same until the caller awaits something else.
        """
        async with self._lock:
            if number is not None and (self._connection is None or number != self.number):
                raise psycopg.OperationalError("the connection ended meanwhile")
            try:
                connection = self._connection or await self._connect()
                async with asyncio.timeout(STATEMENT_SECONDS):
                    cursor = await connection.execute(sql.encode(), values, prepare=True, binary=True)
                    rows = await cursor.fetchall() if cursor.description else []
                    await self.topics.take_news(connection)
            except psycopg.errors.SerializationFailure:
                raise  # another worker has ended a row meanwhile, and the connection is good
            except TimeoutError as error:
                await self._disconnect()
                raise psycopg.OperationalError("the database does not answer") from error
            except BaseException:
                await self._disconnect()
                raise
        return rows

    async def connect(self) -> int:
        """Return the number of the connection, and open it first where there is none. Raises psycopg.Error."""
        if self._connection is None:
            await self.execute(NOTHING)
        return self.number

    async def close(self) -> None:
        async with self._lock:
            await self._disconnect()

    async def _connect(self) -> psycopg.AsyncConnection:
        async with asyncio.timeout(CONNECT_SECONDS):
            parameters = {**CONNECTION_OPTIONS, **connection_parameters()}
            self._connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
            self.number += 1
            await self.topics.load(self._connection)
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.close()
            self._connection = None
            self.seen.clear()
            self.misnamed.clear()


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of a page.

    ``new`` has the hashes of the envelopes that no path had brought before. ``hashes`` has those of all messages in
    the page that can be read.
    """

    selection: Selection
    new: list[bytes]
    hashes: set[bytes]


class Intake:
    """The way into the inbox, shared by all readers of a process.

    The inbox remembers hashes for the time ``keep`` and takes no message that is older. `Bound` sets and clears
    ``has_capacity``.
    """

    def __init__(self, session: Session, *, keep: timedelta) -> None:
        self.session = session
        self.keep = keep
        self._dead_letters = DeadLetters()
        self.has_capacity = asyncio.Event()
        self.has_capacity.set()

    async def take(self, page: Sequence[Any], reader: Reader, *, received_at: datetime) -> Taken:
        """Wait until the inbox has capacity, store the envelopes of the page, wake the workers, and remember the page.

        All of it goes through one connection. Raises psycopg.Error or django.db.Error. The caller may then pass the
        same page again.
        """
        await self.has_capacity.wait()
        selection, new = await self._store(page, reader, received_at)
        hashes = {*(envelope.hash for envelope in selection.envelopes), *selection.foreign()}
        self.session.seen.add(hashes)
        _count(page, selection, reader)
        _trace(new, reader, received_at)
        return Taken(selection, new, hashes)

    async def known(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Return the hashes among these whose envelopes came before, so that they need not be fetched."""
        rows = await self.session.execute(inbox.KNOWN, [list(hashes)]) if hashes else []
        known = {message_hash for (message_hash,) in rows}
        self.session.seen.add(known)
        return known

    async def _store(self, page: Sequence[Any], reader: Reader, received_at: datetime) -> tuple[Selection, list[bytes]]:
        """Select the envelopes of a page and insert them.

        Content topics may become ours before the statement runs. Then the rest of the page is selected once more.
        """
        new: list[bytes] = []
        whole = Selection(reader.pubsub_topic, [], [], list(page))
        number = await self.session.connect()
        while True:
            version = self.session.topics.version
            selection = self._select(whole.unknown_messages, reader.pubsub_topic, received_at)
            if selection.rejected:
                # Dead letters come first, so that an error in them cannot follow the commit of an envelope.
                await in_thread(self._dead_letters.keep, selection.rejected, reader, now=received_at)
            new += await self._insert(selection.envelopes, reader, received_at, number)
            whole = Selection(
                reader.pubsub_topic,
                whole.envelopes + selection.envelopes,
                whole.rejected + selection.rejected,
                selection.unknown_messages,
            )
            if self.session.topics.version == version:
                return whole, new

    async def _insert(
        self, envelopes: Sequence[Envelope], reader: Reader, received_at: datetime, number: int
    ) -> list[bytes]:
        if not envelopes:
            await self.session.execute(NOTHING, number=number)
            return []
        new: set[bytes] = set()
        for part in inbox.slices(envelopes):
            values = inbox.insert_values(part, source=reader.node, path=inbox.Path(reader.path), now=received_at)
            rows = await self.session.execute(inbox.INSERT, values, number=number)
            new |= {message_hash for (message_hash,) in rows}
        INBOX_ENVELOPES.labels("new").inc(len(new))
        INBOX_ENVELOPES.labels("duplicate").inc(len(envelopes) - len(new))
        return [each for each in dict.fromkeys(envelope.hash for envelope in envelopes) if each in new]

    def _select(self, page: Sequence[Any], pubsub_topic: str, received_at: datetime) -> Selection:
        oldest_ns = int((received_at - self.keep).timestamp()) * NS_PER_SECOND
        now_ns = int(received_at.timestamp()) * NS_PER_SECOND
        return select(page, pubsub_topic, self.session.topics, oldest_ns=oldest_ns, now_ns=now_ns)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function, which blocks, in a thread.

    Each thread has a database connection of its own. An earlier call may have left it broken, so it is checked first.
    """

    def work() -> T:
        close_old_connections()
        return function(*args, **kwargs)

    return await asyncio.to_thread(work)


def _trace(new: Iterable[bytes], reader: Reader, received_at: datetime) -> None:
    """Begin the traces of these envelopes at the time when their page came."""
    began_ns = int(received_at.timestamp() * NS_PER_SECOND)
    for message_hash in new if is_on() else ():
        attributes = {"node": reader.name, "path": reader.path}
        step("read", message_hash, attributes, began_ns=began_ns, role=Role.CONSUMER, is_first=True)


def _count(page: Sequence[Any], selection: Selection, reader: Reader) -> None:
    if page:
        MESSAGES_READ.labels(reader.name, reader.path).inc(len(page))
        MESSAGES_MATCHED.labels(reader.name, reader.path).inc(len(selection.envelopes))
    if selection.rejected:
        reasons = Counter(rejected.reason for rejected in selection.rejected)
        for reason, number in reasons.items():
            MESSAGES_SKIPPED.labels(reason).inc(number)
        log.warning("messages_skipped", node=reader.name, pubsub_topic=reader.pubsub_topic, **reasons)


# Long enough for every message of an honest client. With ENVELOPE_RETENTION_DAYS at 3 a bridge keeps 177 MB at most.
MAX_RAW_CHARACTERS = 4 * 1024
MAX_PER_MINUTE = 10
# Characters per minute that are compared with known letters, as live path and stores bring each message several
# times. It costs a tenth of a second of CPU time at most.
MAX_LOOKED_AT_CHARACTERS = 16 * 1024**2
LETTERS = Charge("letters", per_minute(MAX_PER_MINUTE))
CHARACTERS = Charge("characters", per_minute(MAX_LOOKED_AT_CHARACTERS))


class DeadLetters:
    """Dead letters: messages that may have been for us and cannot be read, kept for operators.

    Anybody can publish any number of them, so at most `MAX_PER_MINUTE` of one process are kept, not counting
    repetitions. All appear in the count of skipped messages. Readers share one instance, each from a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._buckets = Buckets()
        self._now = 0.0
        self._capacity = 0  # how many letters may be stored now

    def keep(self, rejected: Iterable[Rejected], reader: Reader, *, now: datetime) -> None:
        """Store as many of these messages as the limits allow."""
        letters = (_letter(each, reader, now) for each in rejected)
        with self._lock:
            self._now = now.timestamp()
            self._capacity = int(self._buckets.left(LETTERS, now=self._now))
            self._store(letters)

    def _store(self, letters: Iterator[DeadLetter]) -> None:
        looked_at = {letter.digest: letter for letter in self._within_limits(letters)}
        stored = DeadLetter.objects.filter(digest__in=looked_at).values_list("digest", flat=True) if looked_at else ()
        known = {bytes(digest) for digest in stored}
        new = islice((letter for digest, letter in looked_at.items() if digest not in known), self._capacity)
        rows = sorted(new, key=lambda row: row.digest)
        if rows:
            DeadLetter.objects.bulk_create(rows, ignore_conflicts=True)
            count(DEAD_LETTERS, ((row.reason,) for row in rows))
        self._buckets.spend(LETTERS, len(rows), now=self._now)
        self._buckets.keep()

    def _within_limits(self, letters: Iterator[DeadLetter]) -> Iterator[DeadLetter]:
        while self._may_store() and (letter := next(letters, None)):
            characters = max(letter.size_bytes, MAX_RAW_CHARACTERS)  # comparing a short letter has a cost, too
            self._buckets.spend(CHARACTERS, characters, now=self._now)
            yield letter

    def _may_store(self) -> bool:
        return self._capacity > 0 and self._buckets.left(CHARACTERS, now=self._now) > 0


def _letter(rejected: Rejected, reader: Reader, now: datetime) -> DeadLetter:
    raw = _json(rejected.raw)
    return DeadLetter(
        digest=sha256(raw.encode()).digest(),
        reason=rejected.reason,
        pubsub_topic=reader.pubsub_topic,
        content_topic=rejected.content_topic,
        raw=raw[:MAX_RAW_CHARACTERS],
        size_bytes=len(raw),
        source=reader.node,
        path=reader.path,
        received_at=now,
    )


def _json(raw: Any) -> str:
    """Return the message in ASCII, its keys sorted, without ``proof``: relay writes that field and the store does not.

    Return an empty text where the message cannot be serialised.
    """
    if isinstance(raw, dict):
        raw = {name: value for name, value in raw.items() if name != "proof"}
    try:
        return json.dumps(raw, sort_keys=True)
    except (RecursionError, ValueError):
        return ""  # nested a thousand levels deep


BOUND_SECONDS = 1.0
# Longest pause while the database fails. Each failure costs the bridge its connection and all topics loaded over it.
MAX_BOUND_SECONDS = 5.0
# Envelopes of one state that a statement drops at most. Where more are to be dropped, the next statement follows at
# once.
MAX_DROPPED = 5000


class Bound:
    """The bound of the inbox: at most ``limit`` envelopes wait unopened, as many postponed, and as many for a key.

    The bridge keeps it, so it holds also without a worker. An envelope that was not opened yet may be about a proven
    address, so none of these is dropped. While more than the limit of them wait, the bridge takes in no page, and the
    stores keep new messages. Of the others, the oldest are dropped. It costs one statement a second, on indexes alone.
    """

    def __init__(self, intake: Intake, *, limit: int) -> None:
        self._intake = intake
        self._limit = limit
        self._backoff = Backoff(MAX_BOUND_SECONDS)
        self._nothing_before = BEGINNING  # no unopened envelope is older

    async def run(self, term: Term) -> None:
        """Enforce the bound until the term is over, and then release readers that wait for capacity."""
        try:
            while not term.is_over:
                await term.pause(await self._enforce())
        finally:
            self._intake.has_capacity.set()

    async def _enforce(self) -> float:
        """Drop envelopes beyond the limit, note whether the inbox has capacity, and return the pause in seconds."""
        values = {
            "now": clock.now(),
            "limit": self._limit,
            "max_dropped": MAX_DROPPED,
            "nothing_before": self._nothing_before,
        }
        try:
            [(dropped, is_full, oldest, now)] = await self._intake.session.execute(inbox.BOUND, values)
        except psycopg.Error as error:  # the readers log what is wrong with the database
            # The statement read too many dead index entries, because some session keeps an old snapshot open.
            if isinstance(error.__cause__, TimeoutError) or error.sqlstate == STATEMENT_TIMEOUT:
                self._nothing_before = max(self._nothing_before, clock.now() - OVERLAP - AT_FIRST)
            return max(self._backoff.next(), BOUND_SECONDS)
        self._backoff.works()
        now = clock.set(now)
        self._nothing_before = min(oldest or now, now - OVERLAP)
        if dropped:
            log.warning("envelopes_dropped", reason=inbox.OVERLOAD, count=dropped)
            ENVELOPES_PROCESSED.labels("unknown", inbox.OVERLOAD).inc(dropped)
        self._note(is_full=is_full)
        return 0.0 if dropped >= MAX_DROPPED else BOUND_SECONDS

    def _note(self, *, is_full: bool) -> None:
        has_capacity = self._intake.has_capacity
        if is_full and has_capacity.is_set():
            log.error("inbox_full", limit=self._limit)
            has_capacity.clear()
        elif not is_full and not has_capacity.is_set():
            log.info("inbox_has_room")
            has_capacity.set()
