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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import psycopg
import structlog
from django.db import close_old_connections

from kit.buckets.bucket import Buckets, Charge, per_minute
from kit.db.base import connection_parameters
from kit.db.clock import clock
from kit.http import Backoff
from kit.processes.leader import Term
from kit.telemetry import Role, count, is_on, step
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
from waku_bridge.reading.pages import NS_PER_SECOND, Page, Rejected, SeenHashes

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

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
    the last commits of its predecessor. So ``seen``, the hashes of the messages that were read, is cleared with each
    connection.
    """

    def __init__(self, topics: QueryTopics) -> None:
        self.topics = topics
        self.seen = SeenHashes()
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

    async def take(self, page: Page) -> None:
        """Wait until the inbox has capacity, store the envelopes of the page, wake the workers, and remember the page.

        All of it goes through one connection. Raises psycopg.Error or django.db.Error. The caller may then pass the
        same messages again, in a new page.
        """
        await self.has_capacity.wait()
        number, version = await self.session.connect(), None
        while version != self.session.topics.version:  # content topics may have become ours before the statement ran
            version = self.session.topics.version
            envelopes, rejected = page.select(self.session.topics, keep=self.keep)
            if rejected:
                # Dead letters come first, so that an error in them cannot follow the commit of an envelope.
                await in_thread(self._dead_letters.keep, rejected, page)
            await self._insert(envelopes, page, number)
        page.hash_all()
        self.session.seen.add(page.hashes)
        _count(page)

    async def _insert(self, envelopes: Sequence[Envelope], page: Page, number: int) -> None:
        if not envelopes:
            await self.session.execute(NOTHING, number=number)
            return
        new: set[bytes] = set()
        for part in inbox.slices(envelopes):
            path = inbox.Path(page.reader.path)
            values = inbox.insert_values(part, source=page.reader.node, path=path, received_at=page.received_at)
            new.update(
                message_hash for (message_hash,) in await self.session.execute(inbox.INSERT, values, number=number)
            )
        INBOX_ENVELOPES.labels("new").inc(len(new))
        INBOX_ENVELOPES.labels("duplicate").inc(len(envelopes) - len(new))
        page.new += [each for each in dict.fromkeys(envelope.hash for envelope in envelopes) if each in new]


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function, which blocks, in a thread.

    Each thread has a database connection of its own. An earlier call may have left it broken, so it is checked first.
    """

    def work() -> T:
        close_old_connections()
        return function(*args, **kwargs)

    # `asyncio.to_thread` copies the context, so that Django would make a connection to Redis for each call.
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _count(page: Page) -> None:
    """Count a page, and begin the traces of its new envelopes at the time when it came."""
    reader = page.reader
    if read := len(page.envelopes) + len(page.rejected) + len(page.others):
        MESSAGES_READ.labels(reader.name, reader.path).inc(read)
        MESSAGES_MATCHED.labels(reader.name, reader.path).inc(len(page.envelopes))
    if page.rejected:
        reasons = Counter(reason for _, reason in page.rejected)
        for reason, number in reasons.items():
            MESSAGES_SKIPPED.labels(reason).inc(number)
        log.warning("messages_skipped", node=reader.name, pubsub_topic=reader.pubsub_topic, **reasons)
    began_ns = int(page.received_at.timestamp() * NS_PER_SECOND)
    for message_hash in page.new if is_on() else ():
        attributes = {"node": reader.name, "path": reader.path}
        step("read", message_hash, attributes, began_ns=began_ns, role=Role.CONSUMER, is_first=True)


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

    def keep(self, rejected: Iterable[Rejected], page: Page) -> None:
        """Store as many of these messages as the limits allow."""
        with self._lock:
            now = page.received_at.timestamp()
            limit = int(self._buckets.left(LETTERS, now=now))
            letters = self._within_limits(rejected, page, now) if limit > 0 else {}
            stored = DeadLetter.objects.filter(digest__in=letters).values_list("digest", flat=True) if letters else ()
            known = {bytes(digest) for digest in stored}
            new = [letter for digest, letter in letters.items() if digest not in known][:limit]
            if new:
                DeadLetter.objects.bulk_create(sorted(new, key=lambda row: row.digest), ignore_conflicts=True)
                count(DEAD_LETTERS, ((row.reason,) for row in new))
            self._buckets.spend(LETTERS, len(new), now=now)
            self._buckets.keep()

    def _within_limits(self, rejected: Iterable[Rejected], page: Page, now: float) -> dict[bytes, DeadLetter]:
        letters: dict[bytes, DeadLetter] = {}
        for raw, reason in rejected:
            if self._buckets.left(CHARACTERS, now=now) <= 0:
                break
            letter = _letter(raw, reason, page)
            letters[letter.digest] = letter
            characters = max(letter.size_bytes, MAX_RAW_CHARACTERS)  # comparing a short letter has a cost, too
            self._buckets.spend(CHARACTERS, characters, now=now)
        return letters


def _letter(raw: Any, reason: str, page: Page) -> DeadLetter:
    text = _json(raw)
    content_topic = raw.get("contentTopic") if isinstance(raw, dict) else None
    return DeadLetter(
        digest=sha256(text.encode()).digest(),
        reason=reason,
        pubsub_topic=page.reader.pubsub_topic,
        content_topic=content_topic if isinstance(content_topic, str) else "",
        raw=text[:MAX_RAW_CHARACTERS],
        size_bytes=len(text),
        source=page.reader.node,
        path=page.reader.path,
        received_at=page.received_at,
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

    async def run(self, term: Term) -> None:
        """Enforce the bound until the term is over, and then release readers that wait for capacity."""
        try:
            while not term.is_over:
                await term.pause(await self._enforce())
        finally:
            self._intake.has_capacity.set()

    async def _enforce(self) -> float:
        """Drop envelopes beyond the limit, note whether the inbox has capacity, and return the pause in seconds."""
        values = {"now": clock.now(), "limit": self._limit, "max_dropped": MAX_DROPPED}
        try:
            [(dropped, is_full, now)] = await self._intake.session.execute(inbox.BOUND, values)
        except psycopg.Error:  # the readers log what is wrong with the database
            return max(self._backoff.next(), BOUND_SECONDS)
        self._backoff.works()
        clock.set(now)
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
