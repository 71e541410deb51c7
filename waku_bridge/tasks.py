"""The periodic tasks of Waku: keys of query topics, and removal of old rows."""

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain, count
from time import sleep

import structlog
from celery import shared_task
from django.conf import settings
from django.db import Error, connection, transaction
from kombu.exceptions import OperationalError

from kit.batches.batch import wake
from kit.db.clock import DAY, database_now
from kit.db.partitions import WRITTEN_ONCE, DayTable, delete_in_chunks, run_for_a_while
from kit.db.reasons import reason
from kit.expiry.models import waiting
from kit.processes.tasks import MessageTask
from notifications.acceptance import acceptance
from registrations import retention
from waku_bridge import query_topics
from waku_bridge.inbox import inbox
from waku_bridge.models import DeadLetter, EnvelopeFault
from waku_bridge.query_topics import CpuBudget, derive_newest, urgent_budget

# Limit of the envelopes with a pending key that one run takes up.
PENDING_LIMIT = 2000
# The period of `derive_topic_keys`.
KEYS_PERIOD_SECONDS = 10.0
# The share of one core for deriving keys of query topics in advance. Each key takes 15 ms.
KEYS_CPU_SHARE = 0.1
# Limit of the CPU time of one run for keys that envelopes wait for.
WANTED_KEYS_SECONDS = 2.5
# While the broker is unreachable: seconds between two runs that derive keys in the process that wants them.
UNSCHEDULED_SECONDS = 1.0
# Held by the thread that schedules the deriving of keys, so that there is one such thread at a time.
ASKING_FOR_KEYS = threading.Lock()

# The version of a registration that ended is kept for this long, so that an older one stays refused.
KEEP_TOMBSTONES = timedelta(days=400)
log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because keys are derived periodically as well
def derive_wanted_keys() -> None:
    """Derive the keys that envelopes have just begun to wait for, within the budget for urgent keys."""
    _call_back_pending(urgent_budget())


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def derive_topic_keys() -> None:
    """Derive the keys that envelopes wait for first, then those that a message may need later."""
    _call_back_pending(CpuBudget(0, WANTED_KEYS_SECONDS))
    derive_newest(budget=CpuBudget(0, KEYS_CPU_SHARE * KEYS_PERIOD_SECONDS))


def _call_back_pending(budget: CpuBudget) -> None:
    if inbox.derive_needed_keys(budget=budget, limit=PENDING_LIMIT):
        wake("Inbox")


def want_keys() -> None:
    """Schedule the deriving of keys that envelopes wait for, without waiting for a broker that hangs."""
    if ASKING_FOR_KEYS.acquire(blocking=False):
        threading.Thread(target=_ask_for_keys, name="want-keys", daemon=True).start()


def _ask_for_keys() -> None:
    """Schedule a task that derives keys. While the broker is unreachable, derive them here, in the same budget."""
    try:
        for run in count():
            if _is_scheduled() or not inbox.need_keys():
                return
            if not run:
                log.warning("keys_not_scheduled")
            _call_back_pending(urgent_budget())
            sleep(UNSCHEDULED_SECONDS)
    except Error as error:
        log.warning("keys_not_derived", reason=reason(error))
    finally:
        connection.close()
        ASKING_FOR_KEYS.release()


def _is_scheduled() -> bool:
    try:
        derive_wanted_keys.apply_async(expires=KEYS_PERIOD_SECONDS, retry=False)
    except OperationalError:
        return False
    return True


# Removal of old rows, a day at a time, and of registrations that expired ----------------------------------------------
#
# The hash of an envelope identifies a copy from another node or from a store. It must be kept longer than any of these
# keeps the message, so the setting has a minimum.

HASHES = DayTable("waku_bridge_envelopehash", "sent_on", skew_days=1, storage=WRITTEN_ONCE)
ENVELOPES = DayTable("waku_bridge_endedenvelope", "ended_on", storage=WRITTEN_ONCE)
REPLIES = DayTable("waku_bridge_endedreply", "ended_on", storage=WRITTEN_ONCE)


def remove_old(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Create the partitions of the next days, and remove the rows that are older than ``keep``.

    These are envelopes and replies that ended, faults, dead letters, and the hashes of messages that are refused for
    their age. Yield how many rows each step removed, as far as that is known.
    """
    for table in (HASHES, ENVELOPES, REPLIES):
        table.make_ahead(now=now)
    return chain(
        # They are kept a day longer, because a page may be stored a while after it was read.
        HASHES.drop_before(now - keep - DAY),
        ENVELOPES.drop_before(now - keep),
        REPLIES.drop_before(now - keep),
        delete_in_chunks(EnvelopeFault.objects.filter(last_seen_at__lt=now - keep).order_by("last_seen_at")),
        delete_in_chunks(DeadLetter.objects.filter(received_at__lt=now - keep).order_by("received_at")),
    )


def end_unused(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Unregister installations that were neither repeated nor reached for ``keep``, and yield the number of each step.

    A client repeats its registration whenever its device, its contacts or its chats change, and a push that arrives
    proves that the device exists. A registration without either for months is abandoned, or was made up.

    Above a limit, nothing is unregistered until an operator allows it: see `registrations.retention.may_expire`.
    """
    if not retention.may_expire(now=now, keep=keep):
        return
    for step in retention.walk():
        with transaction.atomic():
            expired = retention.expire(step, now=now, keep=keep)
            acceptance.withdraw(expired, now=now)
        yield len(expired)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in some hours
def expire_registrations() -> None:
    """Walk through all registrations once. End those that expired, and remove old tombstones and unused topics."""
    now = database_now()
    expired = sum(end_unused(now=now, keep=timedelta(days=settings.REGISTRATION_EXPIRY_DAYS)))
    if waiting("registrations"):
        return  # the clock may be wrong, and without tombstones a replay of old registrations would be accepted
    removed = {
        "expired": expired,
        "tombstones": sum(retention.remove_tombstones(now=now, keep=KEEP_TOMBSTONES)),
        "query_topics": sum(query_topics.stop_listening_to_nobody()),
    }
    if any(removed.values()):
        log.info("registrations_expired", **removed)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """Remove rows that are older than the settings promise. The next run goes on where the time limit ends this one."""
    keep = timedelta(days=settings.ENVELOPE_RETENTION_DAYS)
    if removed := run_for_a_while(remove_old(now=database_now(), keep=keep)):
        log.info("purged", envelopes=removed)
