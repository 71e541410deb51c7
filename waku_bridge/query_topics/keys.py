"""The symmetric keys of query topics: each is derived once, at 15 ms of CPU time, and then kept.

Anybody can send a useless message on each registered topic, and so have every key derived. Therefore keys are derived
in threads, within a CPU budget, and never inside a transaction. The threads have the lowest priority: under load, only
messages that wait for a key wait longer.
"""

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import thread_time

import structlog

from kit.processes import once
from registrations.encryption import DecryptionError, Purpose, keyring
from registrations.models import TopicKey
from waku_bridge.codec import topics
from waku_bridge.query_topics.budget import CpuBudget

log = structlog.get_logger(__name__)

# The budget for keys that envelopes wait for: a share of one core, and the seconds that can be saved up, which suffice
# for 16 keys.
URGENT_SHARE = 0.25
URGENT_SECONDS = 0.25
THREADS = min(4, os.cpu_count() or 1)
NEWEST = 200
LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of some content topics.

    ``known`` has a list of keys (32 bytes each) by content topic, since several names may share one topic. ``missing``
    has the content topics with a name whose key is still to be derived.
    """

    known: dict[str, list[bytes]]
    missing: set[str]


@once
def urgent_budget() -> CpuBudget:
    """Return this process's budget for keys that a message needs now."""
    return CpuBudget(URGENT_SHARE, URGENT_SECONDS)


def load_keys(content_topics: Iterable[str]) -> Keys:
    """Return the stored keys of these content topics."""
    names, rows = _rows(content_topics)
    keys = Keys({}, set())
    for row in rows:
        key = _open(row)
        if key is None:
            keys.missing.add(names[row.topic])
        else:
            keys.known.setdefault(names[row.topic], []).append(key)
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
    numbered = ((topics.number(content_topic), content_topic) for content_topic in content_topics)
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
    return topics.symmetric_key(name), thread_time() - started


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
