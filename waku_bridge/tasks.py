"""The periodic tasks of Waku: keys of query topics, and removal of old rows."""

import threading
from datetime import timedelta
from itertools import count
from time import sleep

import structlog
from celery import shared_task
from django.conf import settings
from django.db import Error, connection
from kombu.exceptions import OperationalError

from kit.batches.batch import wake
from kit.db.clock import database_now
from kit.db.partitions import run_for_a_while
from kit.db.reasons import reason
from kit.expiry.models import waiting
from kit.processes.tasks import MessageTask
from registrations.retention import remove_tombstones
from waku_bridge import query_topics, removal
from waku_bridge.inbox import inbox
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


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in some hours
def expire_registrations() -> None:
    """Walk through all registrations once. End those that expired, and remove old tombstones and unused topics."""
    now = database_now()
    expired = sum(removal.expire(now=now, keep=timedelta(days=settings.REGISTRATION_EXPIRY_DAYS)))
    if waiting("registrations"):
        return  # the clock may be wrong, and without tombstones a replay of old registrations would be accepted
    removed = {
        "expired": expired,
        "tombstones": sum(remove_tombstones(now=now, keep=KEEP_TOMBSTONES)),
        "query_topics": sum(query_topics.stop_listening_to_nobody()),
    }
    if any(removed.values()):
        log.info("registrations_expired", **removed)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """Remove rows that are older than the settings promise. The next run goes on where the time limit ends this one."""
    keep = timedelta(days=settings.ENVELOPE_RETENTION_DAYS)
    if removed := run_for_a_while(removal.purge(now=database_now(), keep=keep)):
        log.info("purged", envelopes=removed)
