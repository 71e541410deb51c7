"""Indicators of the server itself: PostgreSQL, Redis, batches, workers and beat. The module is pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from kit.display import counted
from pushserver.console.health.indicators import (
    DATABASE_SILENT,
    REDIS_DOWN,
    Group,
    Indicator,
    Kind,
    State,
    duration,
    listed,
)

DISK = Kind("disk", Group.SERVER, "Disk space", "PushServerDiskFilling")
DATABASE = Kind(
    *("database", Group.SERVER, "PostgreSQL", "PushServerDatabaseDown"),
    decides_readiness=True,
    concerns_all=True,
)
DATABASE_SPEED = Kind("database-speed", Group.SERVER, "PostgreSQL's speed", "PushServerDatabaseDown", concerns_all=True)
BROKER = Kind(*("broker", Group.SERVER, "Redis", "PushServerBrokerDown"), decides_readiness=True, follows=(DATABASE,))
BATCHES = Kind(
    *("batches", Group.SERVER, "Batches", "PushServerQueueWithoutWorker"),
    decides_readiness=True,
    concerns_all=True,
    follows=(DATABASE, BROKER),
)
WORKERS = Kind("workers", Group.SERVER, "Workers", "PushServerQueueWithoutWorker", decides_readiness=True)
BEAT = Kind("beat", Group.WATCH, "Beat", "IndicatorBeat", follows=(Group.SERVER, BROKER, WORKERS))
KEY = Kind("key", Group.SERVER, "Server's key", "PushServerKeyChanged")
KINDS = (KEY, DISK, DATABASE, DATABASE_SPEED, BROKER, BATCHES, WORKERS, BEAT)
FIRST_STEPS = {
    "migrations": "Run `manage.py migrate`.",
    "cannot be written": "Promote the standby, or correct DATABASE_URL, or set `default_transaction_read_only = off`.",
}
HANGS_SECONDS = 3.0  # a batch takes less than one second
BEAT_GONE = timedelta(minutes=3)  # a minute is counted within 15 s of its end


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of Celery. ``is_needed`` is true if messages or their answers need a worker for it."""

    name: str
    has_worker: bool
    is_needed: bool = True


class LostKey(NamedTuple):
    """The key that clients know this server by, and that its settings lack. Staff may have acknowledged that."""

    used_at: datetime
    acknowledged_by: str = ""


def key(lost: LostKey | None) -> Indicator:
    """Judge whether the server still has the key by which clients know it."""
    if lost is None:
        return Indicator(KEY, State.GREEN, "is the one that clients know")
    if lost.acknowledged_by:
        return Indicator(KEY, State.GREEN, f"was changed, as {lost.acknowledged_by} has acknowledged")
    first_step = (
        "List the earlier key in OTHER_SERVER_PRIVATE_KEYS, and restart every process. If it was replaced on purpose, "
        "acknowledge the incident."
    )
    sentence = "is not the one that clients know: they must register again"
    headline = "Phones get no pushes until they register again: the server's key was changed"
    return Indicator(KEY, State.RED, sentence, first_step, headline=headline)


def database(reason: str, disk: str = "") -> Indicator:
    """Judge whether PostgreSQL answers with all migrations applied. ``reason`` is empty, or says why not.

    ``disk`` is the id of the red indicator of its disk, or empty. It explains a full disk only.
    """
    if reason:
        steps = (step for words, step in FIRST_STEPS.items() if words in reason)
        first_step = next(steps, "Start PostgreSQL, or correct DATABASE_URL.")
        if reason.startswith("the disk"):
            reason, first_step = _with_step(reason)
        cause = disk if reason.startswith("the disk") else ""
        return Indicator(
            DATABASE, State.RED, reason, first_step, headline=f"Nothing is processed: {reason}", cause=cause
        )
    return Indicator(DATABASE, State.GREEN, "answers, migrations are applied")


def _with_step(reason: str) -> tuple[str, str]:
    """Return a reason that names its remedy after a colon, and that remedy as a sentence."""
    sentence, _, step = reason.rstrip(".").partition(": ")
    return sentence, f"{step[:1].upper()}{step[1:] or 'See the logs'}."


def database_speed(reason: str, refusal: str = "", *, is_slow: bool) -> Indicator:
    """Judge whether PostgreSQL counts the backlog in time. ``refusal`` is its reason for doing nothing else in time."""
    if reason:
        return Indicator(DATABASE_SPEED, State.GREY, DATABASE_SILENT)
    if is_slow:
        first_step = "Look for long transactions and other load on PostgreSQL."
        sentence = refusal or "takes too long to count the backlog"
        late = f"Messages may be late: {refusal or 'PostgreSQL is slow'}"
        return Indicator(DATABASE_SPEED, State.RED, sentence, first_step, late=late)
    return Indicator(DATABASE_SPEED, State.GREEN, "counts the backlog in time")


# Why Redis cannot be used, and what to do then.
BROKER_AWAY = "Redis does not answer"
UNVERIFIED = "Redis has no valid certificate for the host of REDIS_URL"
UNAUTHENTICATED = "Redis refuses the account or password of REDIS_URL"
LOADING = "Redis is loading its data"
REPLICA = "Redis is a replica, and refuses writes"
OUT_OF_MEMORY = "Redis has reached its maxmemory, and refuses writes"
UNSAVED = "Redis cannot write to its disk, and refuses writes"
REFUSING = "Redis refuses what workers do there"
NO_CHANNELS = "the account of REDIS_URL may not use Celery's channels"
NO_KEYS = "the account of REDIS_URL may not use Celery's keys"
NO_COMMANDS = "the account of REDIS_URL may not run Celery's commands"
# By a word of Redis' refusal.
MISSING_RIGHTS = {"channel": NO_CHANNELS, "key": NO_KEYS}
BROKER_STEPS = {
    BROKER_AWAY: "Start Redis, or correct REDIS_URL.",
    UNVERIFIED: "Name its authority in SSL_CERT_FILE, and Redis by a name of its certificate.",
    UNAUTHENTICATED: "Correct REDIS_URL, and restart every process.",
    LOADING: "Wait until it has read its file.",
    REPLICA: "Name the primary in REDIS_URL, or make this server the primary: `REPLICAOF NO ONE`.",
    OUT_OF_MEMORY: "Raise `maxmemory`, and look at who else uses this Redis.",
    UNSAVED: "Make room on the disk of Redis: its log has the error.",
    REFUSING: "The log of the workers and that of Redis have the reason.",
    NO_CHANNELS: "Give the account its channels: `ACL SETUSER name allchannels`.",
    NO_KEYS: "Give the account its keys: `ACL SETUSER name allkeys`.",
    NO_COMMANDS: "Give the account its commands: `ACL SETUSER name +@all -@admin -@dangerous +info`.",
}
WITHOUT_BROKER = (
    " Messages are processed meanwhile, but a process of `batches` that ends is not replaced, and no scheduled task "
    "runs."
)


def broker(reason: str, disk: str = "") -> Indicator:
    """Judge whether Redis does what workers need. ``reason`` is empty, or a key of `BROKER_STEPS`.

    ``disk`` is the id of the red indicator of its disk, or empty.
    """
    if reason:
        cause = disk if reason == UNSAVED else ""
        return Indicator(BROKER, State.RED, reason, BROKER_STEPS[reason] + WITHOUT_BROKER, cause=cause)
    return Indicator(BROKER, State.GREEN, "answers, and takes what workers write")


def batches(silent_seconds: Sequence[float] | None, waits_for: str = "") -> Indicator:
    """Judge the processes of batches by their last statements. A working process runs one every second.

    ``waits_for`` is the fault for which processes wait at their start, or empty.
    """
    if silent_seconds is None:
        return Indicator(BATCHES, State.GREY, "not known while PostgreSQL does not answer")
    if not silent_seconds and waits_for:
        sentence, _, todo = waits_for.rstrip(".").partition(": ")
        headline = f"Nothing is processed: {sentence}"
        return Indicator(
            BATCHES, State.RED, f"the workers wait: {sentence}", f"{todo[:1].upper()}{todo[1:]}.", headline=headline
        )
    if not silent_seconds:
        first_step = "Start the worker: `celery -A pushserver.worker worker -Q batches -P prefork`."
        headline = "Nothing is processed: no worker for batches"
        return Indicator(BATCHES, State.RED, "no worker processes batches", first_step, headline=headline)
    hanging = [seconds for seconds in silent_seconds if seconds > HANGS_SECONDS]
    processes = counted(len(silent_seconds), "process", "processes")
    if not hanging:
        return Indicator(BATCHES, State.GREEN, f"{processes} at work")
    have = "has" if len(hanging) == 1 else "have"
    sentence = f"{len(hanging)} of {processes} {have} done nothing for {duration(max(hanging))}"
    first_step = "Restart the worker of `batches`: its processes are stopped, or wait endlessly."
    if len(hanging) < len(silent_seconds):
        return Indicator(BATCHES, State.YELLOW, sentence, first_step)
    headline = f"Nothing is processed: the workers have hung for {duration(min(hanging))}"
    return Indicator(BATCHES, State.RED, sentence, first_step, headline=headline)


def workers(queues: Sequence[Queue], *, is_redis_down: bool) -> Indicator:
    """Judge whether each queue has a worker. A missing one is red if messages need its queue."""
    if is_redis_down:
        return Indicator(WORKERS, State.GREY, REDIS_DOWN)
    away = [queue for queue in queues if not queue.has_worker]
    if not away:
        return Indicator(WORKERS, State.GREEN, "every queue has one")
    state = State.RED if any(queue.is_needed for queue in away) else State.YELLOW
    names = [queue.name for queue in away]
    commands = listed([f"`celery -A pushserver.worker worker -Q {name}`" for name in names])
    first_step = f"Start {commands}. The log of the ended worker has the reason."
    late = "Queries about new users wait: no worker for keys" if "keys" in names else ""
    return Indicator(WORKERS, state, f"no worker for {listed(names)}", first_step, late=late)


def beat(counted_until: datetime | None, queues: Sequence[Queue], now: datetime) -> Indicator:
    """Judge beat by the newest minute that was counted, because beat has no heartbeat."""
    if counted_until is None:
        return Indicator(BEAT, State.GREY, "has counted nothing yet")
    if now - counted_until <= BEAT_GONE:
        return Indicator(BEAT, State.GREEN, "runs")
    if any(queue.name == "maintenance" and not queue.has_worker for queue in queues):
        return Indicator(BEAT, State.GREY, "not known without a worker for maintenance")
    first_step = "Start the worker for `maintenance` again, which has beat. No check, purge or report runs meanwhile."
    return Indicator(BEAT, State.RED, f"has scheduled nothing since {counted_until:%H:%M}", first_step, counted_until)
