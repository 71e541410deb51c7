"""The topics that we read: those of our own identities, and the query topics, one per registered key hash.

Of query topics there are a table, a bridge's copy in memory, and their keys.

A registration announces its topic in the transaction that stores it. A reader takes in the announcements after fetching
a page. So it knows every topic whose registration was answered before the page was fetched.

The symmetric key of a topic is derived once, at 15 ms of CPU time, and then kept. Anybody can send a useless message on
each registered topic, and so have every key derived. Therefore keys are derived in threads, within a CPU budget, and
never inside a transaction. The threads have the lowest priority: under load, only messages that wait for a key wait
longer.

See docs/reading.md.
"""

import hmac
import os
import sys
import threading
from array import array
from bisect import bisect_left, insort_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from time import monotonic, thread_time

import psycopg
import structlog
from coincurve import PrivateKey
from django.conf import settings
from django.db import transaction

from kit.db.base import write
from kit.processes import once
from registrations import lookup
from registrations.encryption import DecryptionError, Purpose, keyring
from registrations.models import TopicKey
from registrations.statements import ALL_TOPICS, STILL_USED
from waku_bridge.codec import wire
from waku_bridge.codec.keys import Identity
from waku_bridge.metrics import QUERY_TOPICS

log = structlog.get_logger(__name__)

# The server's identities ----------------------------------------------------------------------------------------------
#
# No other module reads their private keys from the settings. There is one identity, except while the server's key is
# changed. Then clients of the old and of the new key are served, each by the identity that it addressed. See
# docs/backup.md, "Changing the server's key".


@cache
def server_identity() -> Identity:
    """Return the identity that new clients address."""
    return Identity(PrivateKey(settings.SERVER_PRIVATE_KEY))


@cache
def server_identities() -> tuple[Identity, ...]:
    """Return all identities that are served. The first is the one that new clients address."""
    others = (Identity(PrivateKey(key)) for key in settings.OTHER_SERVER_PRIVATE_KEYS)
    return tuple(dict.fromkeys((server_identity(), *others)))


def identity_of(public_key: bytes) -> Identity:
    """Return the identity with this key (33 bytes).

    For an empty key, or one that was removed from the settings, it is the server's first identity: an answer that
    another key signed is better than none.
    """
    return next((each for each in server_identities() if each.pub33 == public_key), server_identity())


def canary_identity() -> Identity:
    """Return the identity of the canary's client. It is always the same, so that traces of earlier runs are found."""
    return canary_identities()[0]


@cache
def canary_identities() -> tuple[Identity, ...]:
    """Return the identities that the canary has had, one for each field key in the settings. Reports know them, too,
    which have no key of the server.
    """
    keys = settings.FIELD_ENCRYPTION_KEYS
    return tuple(Identity(PrivateKey(hmac.digest(key, b"canary identity", "sha256"))) for key in keys)


@cache
def identities_by_topic() -> Mapping[str, tuple[Identity, ...]]:
    """Return the identities that clients address on each of our own topics.

    Clients send registrations to the personal topic and requests to the partitioned one. The server accepts both on
    either. Two identities may share a partitioned topic.
    """
    by_topic: dict[str, tuple[Identity, ...]] = {}
    for identity in server_identities():
        for name in (wire.personal_name(identity.pub33), wire.partitioned_name(identity.pub33)):
            topic = wire.content_topic(name)
            by_topic[topic] = (*by_topic.get(topic, ()), identity)
    return by_topic


@cache
def own_content_topics() -> frozenset[str]:
    """Return the topics on which clients address the server itself."""
    return frozenset(identities_by_topic())


# The table of query topics --------------------------------------------------------------------------------------------

CHANNEL = "query_topics"
GONE_CHANNEL = "query_topics_gone"


def listen_to(public_key_hashes: Iterable[bytes], *, now: datetime) -> None:
    """Add the query topics of these key hashes (64 bytes each). The commit announces new ones to the bridges.

    Most registrations are refreshes: their topics are in the table, and are not announced again.
    """
    names = {wire.query_name(public_key_hash) for public_key_hash in public_key_hashes}
    if names and (new := lookup.add_topics({name: _number(name) for name in names}, now=now)):
        _announce(CHANNEL, new)


def _number(name: str) -> int:
    return int.from_bytes(wire.topic(name))


def _announce(channel: str, changed: Sequence[int]) -> None:
    write("SELECT pg_notify(%s, topic::text) FROM unnest(%b::bigint[]) AS topic", [channel, list(changed)])


def stop_listening_to(name: str) -> None:
    """Remove a name. The commit announces the removal to the bridges.

    Its topic may belong to another user, too, so a bridge checks the table before it drops the topic.
    """
    TopicKey.objects.filter(name=name).delete()
    _announce(GONE_CHANNEL, [_number(name)])


def stop_listening_to_nobody() -> Iterator[int]:
    """Remove the names of keys without any registration. Yield how many each step removed."""
    for names in lookup.names_without_registration():
        yield _remove(names) if names else 0


@transaction.atomic
def _remove(names: Sequence[str]) -> int:
    removed = lookup.remove_topics(names)
    _announce(GONE_CHANNEL, removed)
    return len(removed)


# In memory ------------------------------------------------------------------------------------------------------------

OnNew = Callable[[list[str]], None]


class TopicSet:
    """A compact set of topics: a sorted array with 4 bytes of each. A million topics take 4 MB.

    Adding one of them moves half of the array, which takes 0.1 ms then.
    """

    def __init__(self, packed: bytes = b"") -> None:
        """``packed`` has topics of 4 bytes each, big-endian, sorted and without doubles."""
        self._sorted = array("I", packed)
        if sys.byteorder == "little":
            self._sorted.byteswap()

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sorted)

    def __contains__(self, topic: int) -> bool:
        index = bisect_left(self._sorted, topic)
        return index < len(self._sorted) and self._sorted[index] == topic

    def add(self, topic: int) -> bool:
        """Add a topic, and return whether it is new."""
        if is_new := topic not in self:
            insort_left(self._sorted, topic)
        return is_new

    def discard(self, topic: int) -> None:
        """Remove a topic, if it is in the set."""
        if topic in self:
            del self._sorted[bisect_left(self._sorted, topic)]


class QueryTopics:
    """The query topics of a process: one set for all its readers, which its database connection keeps up to date.

    ``on_new`` is called with the content topics that were added since the first load, each once. It should return at
    once, and must not raise.

    The topic of a user who has unregistered stays: its key hash is kept, and a query for it finds nothing. The topic of
    a user who was erased is removed, so it counts as new if that user registers again.
    """

    def __init__(self, on_new: OnNew | None = None) -> None:
        self._on_new = on_new
        self._topics = TopicSet()
        self._is_loaded = False
        self._notices: list[psycopg.Notify] = []
        self.version = 0  # it grows whenever topics are added

    def __contains__(self, content_topic: object) -> bool:
        """Return whether we read this content topic: one of the server's own, or a query topic."""
        topic = wire.topic_number(str(content_topic))
        return topic is not None and (topic in self._topics or content_topic in own_content_topics())

    def __len__(self) -> int:
        return len(self._topics)

    async def load(self, connection: psycopg.AsyncConnection) -> None:
        """Load all topics on a new connection, and listen there for new ones.

        It listens before it loads, so that it misses no topic. Raises psycopg.Error. The set is unchanged then.
        """
        self._notices = []
        connection.add_notify_handler(self._notices.append)
        await connection.execute(f"LISTEN {CHANNEL}".encode())
        await connection.execute(f"LISTEN {GONE_CHANNEL}".encode())
        cursor = await connection.execute(ALL_TOPICS, binary=True)
        [(all_topics,)] = await cursor.fetchall()
        loaded = TopicSet(all_topics)
        new = [topic for topic in loaded if topic not in self._topics] if self._is_loaded else []
        self._topics = loaded
        self._is_loaded = True
        self.version += 1
        log.info("query_topics_loaded", count=len(loaded), new=len(new))
        self._publish(new)

    async def take_news(self, connection: psycopg.AsyncConnection) -> None:
        """Take in every topic that was committed before the last statement of the connection was sent.

        PostgreSQL delivers notifications at the end of each statement. Raises psycopg.Error. All topics have to be
        loaded again then.
        """
        if not self._notices:
            return
        notices = self._notices.copy()
        await self._drop(_announced(notices, GONE_CHANNEL), connection)
        del self._notices[: len(notices)]
        self._publish([topic for topic in _announced(notices, CHANNEL) if self._topics.add(topic)])

    async def _drop(self, gone: Sequence[int], connection: psycopg.AsyncConnection) -> None:
        """Remove those of these topics that no name in the database has.

        A topic may belong to another user as well, or to the same user again, which may have been announced before.
        """
        if gone:
            cursor = await connection.execute(STILL_USED, [gone])
            kept = {topic for (topic,) in await cursor.fetchall()}
            for topic in gone:
                if topic not in kept:
                    self._topics.discard(topic)

    def _publish(self, new: Sequence[int]) -> None:
        QUERY_TOPICS.set(len(self._topics))
        self.version += bool(new)
        if new and self._on_new:
            self._on_new([wire.topic_of_number(topic) for topic in new])


def _announced(notices: Iterable[psycopg.Notify], channel: str) -> list[int]:
    """Return the topics in notices. The release before announced several at once, separated by commas."""
    return [int(topic) for each in notices if each.channel == channel for topic in each.payload.split(",")]


# Their keys -----------------------------------------------------------------------------------------------------------


class CpuBudget:
    """A budget that starts full at ``maximum`` seconds and refills by ``per_second``. Any thread may spend from it.

    Work that has begun is finished: the last expense may overdraw the budget, and it refills from below zero.
    """

    def __init__(self, per_second: float, maximum: float, clock: Callable[[], float] = monotonic) -> None:
        self._per_second, self._maximum, self._clock = per_second, maximum, clock
        self._left, self._at = maximum, clock()
        self._lock = threading.Lock()

    def left(self) -> float:
        """Return how many seconds may be spent now."""
        return self.spend(0.0)

    def spend(self, seconds: float) -> float:
        """Spend CPU time, and return how many seconds are left."""
        with self._lock:
            before, self._at = self._at, self._clock()
            self._left = min(self._left + (self._at - before) * self._per_second, self._maximum) - seconds
            return self._left


# The budget for keys that envelopes wait for: a share of one core, and the seconds that can be saved up, which suffice
# for 16 keys.
URGENT_SHARE = 0.25
URGENT_SECONDS = 0.25
THREADS = min(4, os.cpu_count() or 1)
NEWEST = 200
LOWEST_PRIORITY = 19


@once
def urgent_budget() -> CpuBudget:
    """Return this process's budget for keys that a message needs now."""
    return CpuBudget(URGENT_SHARE, URGENT_SECONDS)


def load_keys(content_topics: Iterable[str]) -> dict[str, list[bytes | None]]:
    """Return the stored keys (32 bytes each) of these content topics.

    Several names may share one topic. Instead of a key that is still to be derived there is None.
    """
    names, rows = _rows(content_topics)
    keys: dict[str, list[bytes | None]] = {}
    for row in rows:
        keys.setdefault(names[row.topic], []).append(_open(row))
    return keys


def derive_keys(content_topics: Iterable[str], *, budget: CpuBudget) -> set[str]:
    """Derive the missing keys of these topics within the budget, and return the topics that still miss one."""
    names, rows = _rows(content_topics)
    missing = [row for row in rows if _open(row) is None]
    derived = _derive(missing, budget)
    return {names[row.topic] for row in missing if row.pk not in derived}


def derive_newest(*, budget: CpuBudget) -> int:
    """Derive keys that no message has needed yet, those of the newest registrations first, and return their number."""
    if budget.left() <= 0:
        return 0
    return len(_derive(list(TopicKey.objects.filter(key_encrypted__isnull=True).order_by("-pk")[:NEWEST]), budget))


def _rows(content_topics: Iterable[str]) -> tuple[dict[int, str], list[TopicKey]]:
    """Return the content topics by their number, and the names registered on them."""
    numbered = ((wire.topic_number(content_topic), content_topic) for content_topic in content_topics)
    names = {topic: content_topic for topic, content_topic in numbered if topic is not None}
    return names, list(TopicKey.objects.filter(topic__in=names.keys()).order_by("pk")) if names else []


def _open(row: TopicKey) -> bytes | None:
    if row.key_encrypted is None:
        return None
    try:
        return keyring().decrypt(Purpose.TOPIC_KEY, row.key_encrypted)
    except DecryptionError:  # its field key was removed from the settings; the key can be derived again
        log.warning("topic_key_derived_again", topic_key_id=row.pk)
        return None


def _derive(rows: Sequence[TopicKey], budget: CpuBudget) -> dict[int, bytes]:
    """Derive and store keys within the budget, and return them by primary key.

    Two processes that derive the same key store the same value.
    """
    keys: dict[int, bytes] = {}
    for start in range(0, len(rows), THREADS):
        if budget.left() <= 0:
            break
        some = rows[start : start + THREADS]
        for row, (key, seconds) in zip(some, _pool().map(_timed_key, [row.name for row in some]), strict=True):
            keys[row.pk] = key
            budget.spend(seconds)
    _store(keys)
    return keys


def _timed_key(name: str) -> tuple[bytes, float]:
    """Return a key and the CPU seconds that it took. PBKDF2 releases the interpreter lock meanwhile."""
    started = thread_time()
    return wire.symmetric_key(name), thread_time() - started


def _store(keys: dict[int, bytes]) -> None:
    sealed = [TopicKey(pk=pk, key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, key)) for pk, key in keys.items()]
    TopicKey.objects.bulk_update(sealed, ["key_encrypted"])


@once
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="topic-key", initializer=_lower_priority)


def _lower_priority() -> None:
    """Lower the priority of this thread alone, which only Linux can do."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
