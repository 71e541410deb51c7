"""The symmetric keys of query topics: 15 ms of CPU each, made when a message first needs one or before, then kept.

Messages that nobody can open cost their sender nothing, and one on each registered topic asks for every key there is.
So keys are made in threads, never inside a transaction or before others have been served, and out of a budget. The
threads have the lowest priority: a message that waits for a key waits longer under load, and no other does.
"""

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import thread_time

import structlog

from kit.processes.once import once
from registrations.keys.encryption import DecryptionError, Purpose
from registrations.keys.keyring import keyring
from registrations.models import TopicKey
from waku_bridge.codec import topics
from waku_bridge.query_topics.budget import CpuBudget

log = structlog.get_logger(__name__)

# The share is of one core, in the process that derives keys when envelopes wait for them. What is saved up makes 16
# keys.
URGENT_SHARE = 0.25
URGENT_SECONDS = 0.25
THREADS = min(4, os.cpu_count() or 1)
NEWEST = 200
LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of some content topics.

    ``known`` has the keys (32 bytes) by content topic, since several names may share one. ``missing`` are the content
    topics with a name whose key is still to be derived.
    """

    known: dict[str, list[bytes]]
    missing: set[str]


@once
def urgent_budget() -> CpuBudget:
    """Return what this process may spend on keys that a message needs now."""
    return CpuBudget(URGENT_SHARE, URGENT_SECONDS)


def load_keys(content_topics: Iterable[str]) -> Keys:
    """Return the keys of these content topics that are stored."""
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
    """Make the missing keys of these topics, as far as the budget goes, and return the topics that still miss one."""
    names, rows = _rows(content_topics)
    missing = [row for row in rows if _open(row) is None]
    derived = _derive(missing, budget)
    return {names[row.topic] for row in missing if row.pk not in derived}


def derive_newest(*, budget: CpuBudget) -> int:
    """Make keys that no message has needed yet, those of the newest registrations first, and return how many."""
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
    except DecryptionError:  # its field key was taken out of the settings; the key can be made again
        log.warning("topic_key_derived_again", topic_key_id=row.pk)
        return None


def _derive(rows: Sequence[TopicKey], budget: CpuBudget) -> dict[int, bytes]:
    """Make and store keys, as many as the budget allows, and return them by primary key.

    Two processes that make the same key store the same.
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
    """Return a key and the CPU seconds that it took. PBKDF2 lets other threads run meanwhile."""
    started = thread_time()
    return topics.symmetric_key(name), thread_time() - started


def _store(keys: dict[int, bytes]) -> None:
    sealed = [TopicKey(pk=pk, key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, key)) for pk, key in keys.items()]
    TopicKey.objects.bulk_update(sealed, ["key_encrypted"])


@once
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="topic-key", initializer=_step_back)


def _step_back() -> None:
    """Lower the priority of this thread alone, which only Linux can do."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
