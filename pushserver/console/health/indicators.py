"""The indicators of the server itself, but those of `pushes`: their judges, and the table of all. It does no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple

from kit.display import counted
from pushserver.console.health import pages
from pushserver.console.health.judges import filling
from pushserver.console.health.pushes import PUSHES
from pushserver.console.health.space import disk
from pushserver.console.health.verdicts import (
    DATABASE_SILENT,
    Facts,
    Group,
    Kind,
    State,
    Verdict,
    duration,
    explained,
    listed,
)

# Without a worker for one of these queues messages or their answers are not processed. Reports can wait.
NEEDED_QUEUES = ("maintenance", "keys")
HANGS_SECONDS = 3.0  # a batch takes less than one second
BEAT_GONE = timedelta(minutes=3)  # a minute is counted within 15 s of its end
DATABASE_STEPS = {
    "migrations": "Run `manage.py migrate`.",
    "cannot be written": "Promote the standby, or correct DATABASE_URL, or set `default_transaction_read_only = off`.",
}
WITHOUT_BROKER = (
    " Messages are processed meanwhile, but a process of `batches` that ends is not replaced, and no scheduled task "
    "runs."
)


class LostKey(NamedTuple):
    """The key that clients know this server by, and that its settings lack. Staff may have acknowledged that."""

    acknowledged_by: str = ""


# The server -----------------------------------------------------------------------------------------------------------
def key(facts: Facts) -> Verdict:
    """Judge whether the server still has the key by which clients know it."""
    lost: LostKey | None = facts["key"]
    if lost is None:
        return Verdict(State.GREEN, "is the one that clients know")
    if lost.acknowledged_by:
        return Verdict(State.GREEN, f"was changed, as {lost.acknowledged_by} has acknowledged")
    first_step = (
        "List the earlier key in OTHER_SERVER_PRIVATE_KEYS, and restart every process. If it was replaced on purpose, "
        "acknowledge the incident."
    )
    sentence = "is not the one that clients know: they must register again"
    headline = "Phones get no pushes until they register again: the server's key was changed"
    return Verdict(State.RED, sentence, first_step, headline=headline)


def database(facts: Facts) -> Verdict:
    """Judge whether PostgreSQL answers with all migrations applied. The fact is empty, or says why not."""
    reason: str = facts["database"]
    if not reason:
        return Verdict(State.GREEN, "answers, migrations are applied")
    steps = (step for words, step in DATABASE_STEPS.items() if words in reason)
    first_step, cause = next(steps, "Start PostgreSQL, or correct DATABASE_URL."), ""
    if reason.startswith("the disk"):
        reason, first_step = with_step(reason)
        cause = _full_disk_of("PostgreSQL", facts)
    return Verdict(State.RED, reason, first_step, headline=f"Nothing is processed: {reason}", cause=cause)


def with_step(reason: str) -> tuple[str, str]:
    """Return a reason that names its remedy after a colon, and that remedy as a sentence."""
    sentence, _, step = reason.rstrip(".").partition(": ")
    return sentence, f"{step[:1].upper()}{step[1:] or 'See the logs'}."


def _full_disk_of(name: str, facts: Facts) -> str:
    """Return the id of a red disk, if a volume that we see has the data of this name. Else its server is elsewhere."""
    volumes = facts.get("volumes", ())
    has_it = any(name in volume.name for volume in volumes)
    return DISK.id if has_it and disk(facts).state == State.RED else ""


def database_speed(facts: Facts) -> Verdict:
    """Judge whether PostgreSQL counts the backlog in time, or has a reason for doing nothing in time."""
    if facts["database"]:
        return Verdict(State.GREY, DATABASE_SILENT)
    if not facts["is_slow"]:
        return Verdict(State.GREEN, "counts the backlog in time")
    refusal = facts.get("refusal", "")
    first_step = "Look for long transactions and other load on PostgreSQL."
    sentence = refusal or "takes too long to count the backlog"
    return Verdict(State.RED, sentence, first_step, late=f"Messages may be late: {refusal or 'PostgreSQL is slow'}")


def broker(facts: Facts) -> Verdict:
    """Judge whether Redis does what workers need. The fact is empty, or says why not."""
    if not facts["broker"]:
        return Verdict(State.GREEN, "answers, and takes what workers write")
    sentence, first_step = with_step(facts["broker"])
    cause = _full_disk_of("Redis", facts) if "write to its disk" in sentence else ""
    return Verdict(State.RED, sentence, first_step + WITHOUT_BROKER, cause=cause)


def batches(facts: Facts) -> Verdict:
    """Judge the processes of batches by the seconds since their last statements. A working one sends one every second.

    While processes wait at their start, ``waits_for`` is the fault.
    """
    silent_seconds: Sequence[float] | None = facts.get("silent_seconds")
    if silent_seconds is None:
        return Verdict(State.GREY, "not known while PostgreSQL does not answer")
    if not silent_seconds and facts["waits_for"]:
        sentence, first_step = with_step(facts["waits_for"])
        headline = f"Nothing is processed: {sentence}"
        return Verdict(State.RED, f"the workers wait: {sentence}", first_step, headline=headline)
    if not silent_seconds:
        first_step = "Start the worker: `celery -A pushserver.worker worker -Q batches -P prefork`."
        headline = "Nothing is processed: no worker for batches"
        return Verdict(State.RED, "no worker processes batches", first_step, headline=headline)
    hanging = [seconds for seconds in silent_seconds if seconds > HANGS_SECONDS]
    processes = counted(len(silent_seconds), "process", "processes")
    if not hanging:
        return Verdict(State.GREEN, f"{processes} at work")
    have = "has" if len(hanging) == 1 else "have"
    sentence = f"{len(hanging)} of {processes} {have} done nothing for {duration(max(hanging))}"
    first_step = "Restart the worker of `batches`: its processes are stopped, or wait endlessly."
    if len(hanging) < len(silent_seconds):
        return Verdict(State.YELLOW, sentence, first_step)
    headline = f"Nothing is processed: the workers have hung for {duration(min(hanging))}"
    return Verdict(State.RED, sentence, first_step, headline=headline)


def workers(facts: Facts) -> Verdict:
    """Judge whether each queue has a worker. A missing one is red if messages need its queue."""
    away = [queue for queue, has_worker in facts.cached("queues").items() if not has_worker]
    if not away:
        return Verdict(State.GREEN, "every queue has one")
    state = State.RED if any(queue in NEEDED_QUEUES for queue in away) else State.YELLOW
    commands = listed([f"`celery -A pushserver.worker worker -Q {queue}`" for queue in away])
    first_step = f"Start {commands}. The log of the ended worker has the reason."
    late = "Queries about new users wait: no worker for keys" if "keys" in away else ""
    return Verdict(state, f"no worker for {listed(away)}", first_step, late=late)


def beat(facts: Facts) -> Verdict:
    """Judge beat by the newest minute that was counted, because beat has no heartbeat."""
    counted_until = facts["counted_until"]
    if counted_until is None:
        return Verdict(State.GREY, "has counted nothing yet")
    if facts["now"] - counted_until <= BEAT_GONE:
        return Verdict(State.GREEN, "runs")
    if not facts["queues"].get("maintenance", True):
        return Verdict(State.GREY, "not known without a worker for maintenance")
    first_step = "Start the worker for `maintenance` again, which has beat. No check, purge or report runs meanwhile."
    return Verdict(State.RED, f"has scheduled nothing since {counted_until:%H:%M}", first_step, counted_until)


# Traffic: whether requests and pushes are as many as usual at this hour -----------------------------------------------
FEW_DAYS = 5
# An absence is judged over a period in which this number is usual. By chance it happens less than once in
# millions of periods.
EXPECTED = 40
MIN_MINUTES, MAX_MINUTES = 3, 60
FEW = 3  # per minute: fewer are no sign of a recovery
SILENT_SHARE, QUIET_SHARE = 0.05, 0.25
# A minute is counted within 15 s of its end.
NOT_COUNTED = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests through one bridge, or pushes to one kind of device.

    ``one`` and ``many`` name it in sentences: "request has arrived through Waku", "requests have arrived through Waku".
    ``usual`` are its sums in this hour of other days, in ascending order, and ``minutes`` its numbers in the minutes of
    the last hour that have been counted, the newest last.
    """

    one: str
    many: str
    usual: Sequence[int] = ()
    minutes: Sequence[int] = ()

    @property
    def usual_per_minute(self) -> float:
        """Return the lower quartile of the days of five weeks, so that a weekend does not count as silence."""
        return self.usual[len(self.usual) // 4] / 60 if self.usual else 0.0

    @property
    def judged_minutes(self) -> int:
        """Return the number of minutes in which `EXPECTED` are usual, or 0 if too little is known."""
        needed = ceil(EXPECTED / self.usual_per_minute) if self.usual_per_minute else MAX_MINUTES + 1
        return max(needed, MIN_MINUTES) if needed <= MAX_MINUTES else 0

    @property
    def silent_minutes(self) -> int:
        """Return the number of newest minutes without any. It is at most the number of counted minutes."""
        return next((n for n, number in enumerate(reversed(self.minutes)) if number), len(self.minutes))

    @property
    def share(self) -> float:
        """Return the share of the usual number in the judged minutes.

        It is 1 if too little is known, and as soon as the newest minute has a usual number.
        """
        if not 0 < self.judged_minutes <= len(self.minutes):
            return 1.0
        if self.minutes[-1] >= max(self.usual_per_minute / 2, FEW):
            return 1.0
        return sum(self.minutes[-self.judged_minutes :]) / (self.usual_per_minute * self.judged_minutes)

    @property
    def words(self) -> str:
        """Return the missing flow, with its usual rate."""
        rate = self.usual_per_minute
        usual = f"usual is {f'{rate:,.0f} a minute' if rate >= 2 else f'{rate * 60:,.0f} an hour'}"
        if self.silent_minutes >= MIN_MINUTES:
            return f"No {self.one} for {self.silent_minutes} min; {usual}"
        number = counted(sum(self.minutes[-self.judged_minutes :]), self.one, self.many)
        return f"Only {number} in {self.judged_minutes} min; {usual}"


def traffic(facts: Facts) -> Verdict:
    """Judge all flows by the counted minutes. The quietest flow decides the state."""
    days, counted_until = facts["days"], facts["counted_until"]
    if days < FEW_DAYS:
        return Verdict(State.GREY, f"not known yet: {days} of {FEW_DAYS} days to compare with")
    if counted_until is None or facts["now"] - counted_until > NOT_COUNTED:
        return Verdict(State.GREY, "not known while nothing is counted")
    bad: list[Flow] = sorted(
        (flow for flow in facts["flows"] if flow.share <= QUIET_SHARE), key=lambda flow: flow.share
    )
    if not bad:
        return Verdict(State.GREEN, "as much as is usual at this hour")
    first_step = (
        "If the canary is fine, this server works. Look for a new release of the client, an outage of the network "
        "or of a gateway, or clients that moved to another server."
    )
    state = State.RED if bad[0].share <= SILENT_SHARE else State.YELLOW
    since = counted_until - timedelta(minutes=max(bad[0].silent_minutes, bad[0].judged_minutes))
    headline = bad[0].words if state == State.RED else ""
    return Verdict(state, "; ".join(flow.words for flow in bad), first_step, since, headline=headline)


# Reports --------------------------------------------------------------------------------------------------------------
def reports(facts: Facts) -> Verdict:
    """Judge whether the reports of the last night exist. The fact is their `spark_reports.nights.status.Status`."""
    found: Any = facts["reports"]
    if found.is_alarm:
        first_step = (
            "Repair the fault that the run names. The night is then repeated by itself, or on demand from Last night."
        )
        return Verdict(State.YELLOW, found.words, first_step, own_page=pages.RUNS)
    return Verdict(State.OFF if found.state == State.OFF else State.GREEN, found.words)


def anomalies(facts: Facts) -> Verdict:
    """Judge the newest night by its anomalies, then by findings about the data."""
    found: Sequence[str] = facts["anomalies"]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        first_step = "Check whether a release, an outage or a wrong set-up explains it."
        return Verdict(State.YELLOW, f"unusual: {found[0]}{more}", first_step)
    if findings := facts["reports"].findings:
        sentence = f"{counted(findings, 'finding')} about the data of the newest night"
        return Verdict(State.YELLOW, sentence, "The page of the night names each finding.")
    return Verdict(State.OFF if facts["reports"].state == State.OFF else State.GREEN, "none in the newest night")


# All of them ----------------------------------------------------------------------------------------------------------
SERVER, IN, OUT, WATCH = Group
DISK = Kind("disk", SERVER, "Disk space", "PushServerDiskFilling", disk)
DATABASE = Kind(
    "database", SERVER, "PostgreSQL", "PushServerDatabaseDown", database, decides_readiness=True, concerns_all=True
)
KINDS = (
    Kind("key", SERVER, "Server's key", "PushServerKeyChanged", key),
    DISK,
    DATABASE,
    Kind("database-speed", SERVER, "PostgreSQL's speed", "PushServerDatabaseDown", database_speed, concerns_all=True),
    Kind("broker", SERVER, "Redis", "PushServerBrokerDown", broker, decides_readiness=True, follows=("database",)),
    Kind(
        *("batches", SERVER, "Batches", "PushServerQueueWithoutWorker", batches),
        decides_readiness=True,
        concerns_all=True,
        follows=("database", "broker"),
    ),
    Kind("workers", SERVER, "Workers", "PushServerQueueWithoutWorker", workers, decides_readiness=True),
    Kind("beat", WATCH, "Beat", "IndicatorBeat", beat, follows=(SERVER, "broker", "workers")),
    Kind(
        *("registrations", IN, "Registrations", "PushServerRegistrationsFilling"),
        filling("registrations", setting="MAX_REGISTRATIONS", rows="registrations"),
        pages.REGISTRATIONS,
    ),
    *PUSHES,
    Kind("traffic", WATCH, "Traffic", "IndicatorTraffic", traffic, pages.NEWEST_REQUESTS, follows=(SERVER, IN, OUT)),
    Kind("reports", WATCH, "Reports", "PushServerReportsMissing", reports, pages.REPORTS),
    Kind("anomalies", WATCH, "Anomalies", "IndicatorAnomalies", anomalies, pages.REPORTS),
)


def kinds_of(parts: Sequence[Any]) -> list[Kind]:
    """Return the kinds of the server and of these parts, causes before effects."""
    known = [*KINDS, *(kind for part in parts for kind in part.kinds)]
    groups = list(Group)
    return sorted(known, key=lambda kind: (groups.index(kind.group), not kind.decides_readiness))


def judge(facts: Facts) -> list[Verdict]:
    """Return all indicators, causes before effects."""
    return explained([verdict for kind in kinds_of(facts["parts"]) for verdict in kind.verdicts(facts)])


def readiness(facts: Facts) -> list[Verdict]:
    """Return the indicators that decide whether the server is ready. They need no table of the database."""
    kinds = [kind for kind in kinds_of(facts["parts"]) if kind.decides_readiness]
    return [verdict for kind in kinds for verdict in kind.verdicts(facts)]
