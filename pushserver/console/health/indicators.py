"""The indicators of the server itself: their judges, the pages to which they lead, and the table of all. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, inf
from typing import Any, NamedTuple

from kit.display import counted, exact
from notifications.messages import DRY_RUN, FAILURES
from pushserver.console.health.judges import Queue, Waiting, filling
from pushserver.console.health.verdicts import (
    BAD,
    DATABASE_SILENT,
    Facts,
    Group,
    Kind,
    Page,
    State,
    Verdict,
    duration,
    explained,
    listed,
    rows,
)

# Pages of the console to which indicators lead -----------------------------------------------------------------------
DRAIN_PAGE = Page("Drain", "drain", "notifications.operate_drain")
STUCK_PAGE = rows("Stuck notifications", "notifications.notification", "progress=stuck")
ATTEMPTS_PAGE = rows("Attempts", "notifications.attempt")
FAILED_ATTEMPTS_PAGE = rows("Failed attempts", "notifications.attempt", "failed=yes")
CHANNELS_PAGE = rows("Apps", "notifications.channel")
TRIPPED_PAGE = rows("Tripped apps", "notifications.channel", "halted=tripped")
PAUSED_PAGE = rows("Paused apps", "notifications.channel", "halted=paused")
HALTED_PAGE = rows("Halted apps", "notifications.channel", "halted=yes")
OPEN_PAGE = rows("Open notifications", "notifications.notification", "progress=open")
ENDED_PAGE = rows("Notifications", "notifications.notification")
NEWEST_REQUESTS_PAGE = rows("Newest requests", "notifications.notificationrequest")
REQUESTS_PAGE = rows("Requests that wait", "notifications.notificationrequest", "state__exact=waiting")
REGISTRATIONS_PAGE = rows("Registrations", "registrations.registration")
REPORTS_PAGE = Page("Last night", "reports:overview", "spark_reports.view_publishedday")
INCIDENTS_PAGE = rows("Incidents", "pushserver.incident")
RUNS_PAGE = rows("Runs", "spark_reports.reportrun")

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


# Disk space: the free space of volumes, now and at the pace of the last day ------------------------------------------
SIZE_OF_DATABASE = "size database"
# Free MiB below which PostgreSQL cannot make the next segment of its log, and below which somebody has to act: a start
# needs as much. Of a volume smaller than SMALL_MIB, such as one in memory for metrics, that is a quarter. Above it, a
# volume is low below a tenth of its size, and at most below LOW_MIB.
FULL_MIB, RED_MIB, LOW_MIB, SMALL_MIB = 16, 128, 1024, 256
# Time until a volume is full, at the pace of the last day.
RED_HOURS, YELLOW_HOURS = 6.0, 7 * 24.0


class Past(NamedTuple):
    """The first and the last value of a flow within a day, in MiB, with the times of their hours."""

    first_at: datetime
    first: int
    last_at: datetime
    last: int

    @property
    def growth_per_day(self) -> float:
        """Return the growth in MiB per day, or 0 if less than an hour is known."""
        days = (self.last_at - self.first_at) / timedelta(days=1)
        return (self.last - self.first) / days if days else 0.0


class Volume(NamedTuple):
    """The volume of these data of ours. ``is_needed`` says that messages need it, and not only reports."""

    name: str
    free_mib: int
    size_mib: int
    is_needed: bool = True

    @property
    def flow(self) -> str:
        """Return the name under which the history keeps its free space."""
        return f"free {self.name}"


def disk(facts: Facts) -> Verdict:
    """Judge the free space of the volumes, now and at the pace of the last day. The worst volume decides.

    A full one has no headline of its own, but PostgreSQL has, which then refuses what it is asked.
    """
    volumes: Sequence[Volume] = facts["volumes"]
    past: Mapping[str, Past] = facts.get("past", {})
    judged = ((state, volume) for volume in volumes if (state := _state_of_volume(volume, past)) in BAD)
    worst = min(judged, key=lambda found: (BAD.index(found[0]), found[1].free_mib), default=None)
    if worst is None:
        left = [f"{size_of(volume.free_mib)} for {volume.name}" for volume in volumes]
        sentence = f"{listed(left)} left" if left else "no volume is seen"
        return Verdict(State.GREEN, f"{sentence}{_growth(past)}")
    state, volume = worst
    first_step = "Make room there, or extend it. Never delete files in PostgreSQL's `pg_wal`."
    sentence = f"the disk of {volume.name} has {size_of(volume.free_mib)} left of {size_of(volume.size_mib)}"
    if volume.free_mib < FULL_MIB:
        sentence = f"the disk of {volume.name} is full"
    elif (hours := hours_left(volume, past)) < YELLOW_HOURS:
        sentence += f", and is full in {duration(hours * 3600)} at the pace of the last day"
    return Verdict(state, sentence, first_step)


def _state_of_volume(volume: Volume, past: Mapping[str, Past]) -> State:
    """Return the state of one volume. One that only reports need stops no message."""
    red_mib = RED_MIB if volume.size_mib >= SMALL_MIB else volume.size_mib / 4
    low_mib, hours = max(red_mib, min(LOW_MIB, volume.size_mib / 10)), hours_left(volume, past)
    if volume.is_needed and (volume.free_mib < red_mib or hours < RED_HOURS):
        return State.RED
    return State.YELLOW if volume.free_mib < low_mib or hours < YELLOW_HOURS else State.GREEN


def hours_left(volume: Volume, past: Mapping[str, Past]) -> float:
    """Return the hours until a volume is full at the pace of the last day. It is infinite if it does not fill."""
    known = past.get(volume.flow)
    return 24 * volume.free_mib / -known.growth_per_day if known and known.growth_per_day < 0 else inf


def _growth(past: Mapping[str, Past]) -> str:
    """Return the size and growth of the database, whose disk may be one that this process does not see."""
    known = past.get(SIZE_OF_DATABASE)
    if known is None:
        return ""
    return f"; the database has {size_of(known.last)}, and grows by {size_of(max(0.0, known.growth_per_day))} a day"


def size_of(mib: float) -> str:
    """Return a size for people. A large one that hardly changes has the same words."""
    return f"{mib:,.0f} MiB" if mib < 1024 else f"{mib / 1024:,.{0 if mib >= 10 * 1024 else 1}f} GiB"


RUNNING, DRAINED, TRIPPED, PAUSED = "running", "drained", "tripped", "paused"
OVERDUE_YELLOW = 3.0  # seconds
# Shares of failures in the last minutes.
FAILING_RED, FAILING_YELLOW = 0.5, 0.1
# An app that was failing still is, above this share of the limit.
STILL_FAILING = 0.5
JUDGED_MINUTES = 3
FEW_TRIES = 20
OTHERWISE = "docs/delivery.md explains this class. The error rule says where the code comes from."
# Attempts by app, outcome and code.
ChannelTries = Mapping[tuple[str, str, str], int]


# What stopped delivery or an app --------------------------------------------------------------------------------------
class Switch(NamedTuple):
    """Delivery as a whole while it is drained, or one app. ``by`` is empty when the server itself acted.

    Only apps that something was delivered to count: made-up apps neither stop the server nor keep it running.
    ``devices`` is the kind of device that its pushes go to, for people.
    """

    state: str
    name: str
    by: str
    why: str
    since: datetime
    devices: str

    @property
    def is_on(self) -> bool:
        return self.state == RUNNING

    @property
    def is_halted(self) -> bool:
        return self.state in {TRIPPED, PAUSED}

    @property
    def stopper(self) -> str:
        return self.by or "a breaker"

    @property
    def words(self) -> str:
        """Return what is stopped, by whom and why. Only staff may read it."""
        state = "stopped" if self.state == DRAINED else f"{self.name} {self.state}"
        return f"{state} by {self.stopper} since {exact(self.since)}: {self.why or 'no reason given'}"


class Failing(NamedTuple):
    """An app whose last sends all failed, or the apps of a platform that nothing was delivered to yet.

    ``answer`` is the commonest code, with the gateway's redacted text where there is one.
    """

    name: str
    failures: int
    since: datetime
    answer: str


def sending(facts: Facts) -> Verdict:
    """Judge whether pushes are sent. It is red also if an operator stopped delivery, so that the next operator sees at
    once that nobody is notified. A red gateway, or a red way to it, explains that none is sent.
    """
    stopped = _stops(facts["switches"])
    if not stopped:
        away = _away(facts)
        return away or _failing(facts)
    is_drained = stopped[0].state == DRAINED
    action = "Start it" if is_drained else "Resume the apps"
    since = max(switch.since for switch in stopped)  # the last stop counts
    by = " and ".join(dict.fromkeys(switch.stopper for switch in stopped))
    return Verdict(
        State.RED,
        "; ".join(switch.words for switch in stopped),
        f"{action} again: waiting pushes expire {duration(facts['time_to_live'])} after their request.",
        since,
        own_page=DRAIN_PAGE if is_drained else HALTED_PAGE,
        headline=f"No pushes are sent: stopped by {by} since {exact(since)}",
    )


def _stops(switches: Sequence[Switch]) -> list[Switch]:
    """Return what keeps every push from being sent: the drain, or the halts of all apps. Mostly there is none."""
    drains = [switch for switch in switches if switch.state == DRAINED]
    return drains or ([] if any(switch.is_on for switch in switches) else list(switches))


def _away(facts: Facts) -> Verdict | None:
    """Return the verdict that follows from the first red gateway, or None."""
    gateways = [kind for part in facts["parts"] for kind in part.kinds if kind.group == Group.OUT and kind.concerns_all]
    for found in (found for kind in gateways for found in kind.verdicts(facts)):
        if found.state == State.RED and found.headline:
            sentence = found.headline[:1].lower() + found.headline[1:]
            return Verdict(State.RED, sentence, found.first_step, found.since, cause=found.id)
    return None


def _failing(facts: Facts) -> Verdict:
    """Judge whether what is sent gets through. A halt of an app has an indicator of its own."""
    halted = {switch.name for switch in facts["switches"] if switch.is_halted}
    failing: list[Failing] = [app for app in facts["failing"] if app.name not in halted]
    if not failing:
        return Verdict(State.GREEN, "pushes are sent")
    sentence = "; ".join(
        f"{app.name}: the last {app.failures} sends failed, mostly with {app.answer}" for app in failing
    )
    first_step = (
        "Look at its attempts: what does the gateway answer? Waiting pushes are sent again less and less often."
    )
    return Verdict(State.YELLOW, sentence, first_step, min(app.since for app in failing))


def channels(facts: Facts) -> Verdict:
    """Judge the apps by the worst halted one, and name each halted app."""
    switches: Sequence[Switch] = facts["switches"]
    halted = sorted(
        (switch for switch in switches if switch.is_halted),
        key=lambda channel: (channel.state != TRIPPED, channel.since),
    )
    running = sum(switch.is_on for switch in switches)
    if not halted:
        known = f"{running} running"
        return Verdict(State.GREEN, known) if running else Verdict(State.GREY, "nothing was delivered yet")
    first, states = halted[0], {channel.state for channel in halted}
    page = {TRIPPED: TRIPPED_PAGE, PAUSED: PAUSED_PAGE}[first.state] if len(states) == 1 else HALTED_PAGE
    state, first_step = {
        TRIPPED: (
            State.RED,
            "Repair the set-up at Apple, Google or the gateway. The app resumes when a probe succeeds.",
        ),
        PAUSED: (
            State.YELLOW,
            "Resume it when the work is done. Its waiting pushes expire meanwhile, each after its time to live.",
        ),
    }[first.state]
    sentence, headline = "; ".join(channel.words for channel in halted), _stopped_words(switches, halted, facts["now"])
    cause = "sending" if {*halted} == {*_stops(switches)} else ""  # all are halted
    return Verdict(state, sentence, first_step, first.since, own_page=page, headline=headline, cause=cause)


def _stopped_words(switches: Iterable[Switch], halted: Iterable[Switch], now: datetime) -> str:
    """Return one line on which pushes are not sent, since when and why.

    They are those of all apps of a kind of device, or those of the app that was stopped last.
    """
    running = {switch.devices for switch in switches if switch.is_on}
    last = max(halted, key=lambda switch: (switch.devices not in running, switch.since))
    pushes = f"Pushes of {last.name}" if last.devices in running else f"{last.devices} pushes"
    return f"{pushes} stopped {duration((now - last.since).total_seconds())} ago: {last.state} by {last.stopper}"


def dead_tokens(facts: Facts) -> Verdict:
    """Judge whether dead tokens are disabled. Where a wrong set-up must be the reason, they are not.

    The fact has the apps whose dead tokens are ignored, with the time since when.
    """
    distrusted: Mapping[str, datetime] = facts["dead-tokens"]
    if not distrusted:
        return Verdict(State.GREEN, "dead tokens are disabled")
    names = listed(sorted(distrusted))
    sentence = (
        f"too many tokens of {names} are refused as dead: a wrong set-up is likelier, so no token is disabled and "
        f"pushes are retried"
    )
    first_step = "Check environment, project and topic at Apple, Google and the gateway. It recovers by itself."
    late = f"Pushes of {names} fail: a wrong set-up is likely"
    return Verdict(State.RED, sentence, first_step, min(distrusted.values()), late=late)


# Results: the share of failures of each app in the last minutes ------------------------------------------------------
def results(facts: Facts) -> Verdict:
    """Judge each app. ``tries`` counts the last JUDGED_MINUTES, and ``newest_tries`` the newest of them."""
    tries, until = facts["tries"], facts["counted_until"]
    during = (until - timedelta(minutes=JUDGED_MINUTES), until) if until else None
    states = {channel: _state_of_channel(channel, facts) for channel in sorted({channel for channel, _, _ in tries})}
    bad = [(state, channel) for state in BAD for channel, known in states.items() if known == state]
    if not bad:
        total, failed = _failures(tries)
        sentence = f"{failed.total():,} of {total:,} attempts failed in the last {JUDGED_MINUTES} minutes"
        nothing = f"no push was attempted in the last {JUDGED_MINUTES} minutes"
        return Verdict(State.GREEN, sentence if total else nothing, during=during)
    sentence = "; ".join(f"{channel}: {_failing_words(tries, channel)}" for _, channel in bad)
    state, worst = bad[0]
    (_, code), _ = _failures(tries, worst)[1].most_common(1)[0]
    advice = next(filter(None, (part.advice(code) for part in facts["parts"])), OTHERWISE)
    late = f"Most pushes of {worst} fail" if state == State.RED else ""
    tripped = {switch.name for switch in facts["switches"] if switch.state == TRIPPED}
    cause = "channels" if tripped.issuperset(channel for _, channel in bad) else ""
    return Verdict(state, sentence, advice, late=late, during=during, cause=cause)


def _failures(tries: ChannelTries, only: str = "") -> tuple[int, Counter[tuple[str, str]]]:
    """Return the number of attempts, and the failed ones by outcome and code, in all apps or in one.

    Attempts of the canary that its gateway dropped do not count, because they say nothing about real pushes.
    """
    failed: Counter[tuple[str, str]] = Counter()
    total = 0
    for (channel, outcome, code), number in tries.items():
        if channel == (only or channel) and code != DRY_RUN:
            total += number
            if outcome in FAILURES:
                failed[outcome, code] += number
    return total, failed


def _state_of_channel(channel: str, facts: Facts) -> State:
    """Return the state of one app. ``before`` has the states of the indicators that were bad in the last snapshot.

    It gets worse if the last minutes and the newest of them are above the limit. It gets better as soon as the newest
    minute is clearly below the limit. So neither a moment of failures nor a moment without any changes it.
    """
    before = facts["before"].get("results", State.GREEN)
    total, failed = _failures(facts["tries"], channel)
    if total < FEW_TRIES:
        return State.GREEN
    recent = failed.total() / total
    newest_total, newest_failed = _failures(facts["newest_tries"], channel)
    newest = newest_failed.total() / newest_total if newest_total else recent
    for state, limit in ((State.RED, FAILING_RED), (State.YELLOW, FAILING_YELLOW)):
        was_there = before in (state, State.RED)
        if min(recent, newest) > limit or (was_there and newest > limit * STILL_FAILING):
            return state
    return State.GREEN


def _failing_words(tries: ChannelTries, channel: str) -> str:
    total, failed = _failures(tries, channel)
    (outcome, code), _ = failed.most_common(1)[0]
    commonest = f"{outcome} ({code})" if code else outcome
    recent = f"in the last {JUDGED_MINUTES} minutes"
    return f"{failed.total():,} of {total:,} attempts failed {recent}, most of them {commonest}"


# Queues of pushes -----------------------------------------------------------------------------------------------------
def _due_words(due: Waiting) -> str:
    if not due.oldest_seconds:
        return "nothing is overdue"
    return f"the longest waiting notification has been due for {duration(due.oldest_seconds)}"


def _answer_words(overdue: Waiting) -> str:
    if overdue.oldest_seconds <= OVERDUE_YELLOW:
        return "no request waits for its answer"
    return f"a request has waited for its answer for {duration(overdue.oldest_seconds)} too long"


# A notification behind a halt is not due.
DUE = Queue(
    name="delivery",
    count="pushserver_notifications_open",
    age="pushserver_notifications_oldest_due_age_seconds",
    red=60.0,
    yellow=10.0,
    subject="Pushes",
    first_step="Check the workers of the queue `batches`: are there enough? Then check whether a gateway is slow.",
    words=_due_words,
    title="Longest due notification",
    word="open",
    page=OPEN_PAGE,
)
OVERDUE = Queue(
    name="answers",
    age="pushserver_requests_overdue_age_seconds",
    red=10.0,
    yellow=OVERDUE_YELLOW,
    subject="Answers",
    first_step="Check the workers of the queue `batches`: none of them sends answers.",
    words=_answer_words,
)


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
        return Verdict(State.YELLOW, found.words, first_step, own_page=RUNS_PAGE)
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
    Kind(
        "database-speed",
        SERVER,
        "PostgreSQL's speed",
        "PushServerDatabaseDown",
        database_speed,
        concerns_all=True,
        follows=("database",),
    ),
    Kind("broker", SERVER, "Redis", "PushServerBrokerDown", broker, decides_readiness=True, follows=("database",)),
    Kind(
        *("batches", SERVER, "Batches", "PushServerQueueWithoutWorker", batches),
        decides_readiness=True,
        concerns_all=True,
        follows=("database", "broker"),
    ),
    Kind(
        *("workers", SERVER, "Workers", "PushServerQueueWithoutWorker", workers),
        decides_readiness=True,
        follows=("broker",),
    ),
    Kind("beat", WATCH, "Beat", "IndicatorBeat", beat, follows=(SERVER, "broker", "workers")),
    Kind(
        *("registrations", IN, "Registrations", "PushServerRegistrationsFilling"),
        filling("registrations", setting="MAX_REGISTRATIONS", rows="registrations"),
        REGISTRATIONS_PAGE,
    ),
    Kind("sending", OUT, "Sending", "PushServerNoPushes", sending, CHANNELS_PAGE, concerns_all=True),
    Kind(
        "delivery",
        OUT,
        "Delivery",
        "PushServerDeliveryLate",
        DUE,
        STUCK_PAGE,
        concerns_all=True,
        follows=(SERVER, "sending"),
    ),
    Kind(
        *("channels", OUT, "Apps", "PushServerChannelTripped", channels, CHANNELS_PAGE),
        yellow_runbook="PushServerChannelPaused",
    ),
    Kind("dead-tokens", OUT, "Dead tokens", "PushServerDeathsDoubted", dead_tokens, CHANNELS_PAGE),
    Kind("answers", OUT, "Answers", "PushServerAnswersOverdue", OVERDUE, REQUESTS_PAGE, follows=(SERVER, OUT)),
    Kind(
        "results",
        OUT,
        "Results of pushes",
        "PushServerPushesFail",
        results,
        FAILED_ATTEMPTS_PAGE,
        follows=("sending",),
    ),
    Kind("traffic", WATCH, "Traffic", "IndicatorTraffic", traffic, NEWEST_REQUESTS_PAGE, follows=(SERVER, IN, OUT)),
    Kind("reports", WATCH, "Reports", "PushServerReportsMissing", reports, REPORTS_PAGE),
    Kind("anomalies", WATCH, "Anomalies", "IndicatorAnomalies", anomalies, REPORTS_PAGE),
)


def kinds_of(parts: Sequence[Any]) -> list[Kind]:
    """Return the kinds of the server and of these parts, causes before effects."""
    known = [*KINDS, *(kind for part in parts for kind in part.kinds)]
    groups = list(Group)
    return sorted(known, key=lambda kind: (groups.index(kind.group), not kind.decides_readiness))


def kind_of(indicator: str, ids: Iterable[str]) -> str:
    """Return which of these ids of kinds an indicator has, or an empty text. Its id begins with that of its kind."""
    return max((own for own in ids if f"{indicator}-".startswith(f"{own}-")), key=len, default="")


def judge(facts: Facts) -> list[Verdict]:
    """Return all indicators, causes before effects."""
    return explained([verdict for kind in kinds_of(facts["parts"]) for verdict in kind.verdicts(facts)])


def readiness(facts: Facts) -> list[Verdict]:
    """Return the indicators that decide whether the server is ready. They need no table of the database."""
    kinds = [kind for kind in kinds_of(facts["parts"]) if kind.decides_readiness]
    return [verdict for kind in kinds for verdict in kind.verdicts(facts)]
