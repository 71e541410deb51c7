"""The sentence that a person would say about each report, made from its figures.

It is about the newest day of a page. It is empty if that day has no figures.
"""

from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.functions import Abs

from kit.display import counted
from pushserver.console.reports import formats as f
from pushserver.console.reports.choice import Choice
from spark_reports.jobs.tables import PLACE, TOKEN_CHURN, USUAL_DAYS, Kind
from spark_reports.models import Anomaly, ErrorRate, FailureSignature, Latency, LoadProfile, TokenChurn, TokenLifetime
from spark_reports.nights.summary import LOST, Summary, churn_by_day, churn_rate, sums_by_stage

TOGETHER = ("platform", "bridge")  # latency also has rows for all platforms and for all bridges
# What the events of a stage are, the most telling stage first.
EVENTS = {
    "dispatch": ("push", "pushes"),
    "request": ("request", "requests"),
    "registration": ("registration", "registrations"),
    "query": ("query", "queries"),
    "reply": ("reply", "replies"),
    "inbox": ("other message", "other messages"),
}
DURATIONS = {
    "deliver": ("push was delivered", "pushes were delivered"),
    "answer": ("request was answered", "requests were answered"),
    "gateway": ("attempt was answered", "attempts were answered"),
    "queue": ("push went out", "pushes went out"),
    "reply": ("reply was published", "replies were published"),
    "decide": ("message was decided", "messages were decided"),
}
MANY, MUCH, LONG = ("many", "more", "fewer"), ("much", "more", "less"), ("long", "longer", "shorter")
WEEK = "in the week before"
NOT_KNOWN = "What is usual is not known yet: {} of {} days."
AGE_WEEKS = 4


def compared(
    value: float, usual: float | None, degree: tuple[str, str, str], then: str = WEEK, *, is_unusual: bool = False
) -> str:
    """Return in words how a figure compares with a usual one. One that is unusual is never about as usual."""
    much, more, less = degree
    if usual is None:
        return "with no earlier days to compare with"
    if value > 1.75 * usual and usual:
        times = round(value / usual)
        return f"{'twice' if times == 2 else f'{times:,} times'} as {much} as {then}"
    if value > 1.25 * usual and usual:
        return f"half as {much} again as {then}"
    if 0.8 * usual <= value <= 1.25 * usual and not is_unusual:
        return f"about as {much} as {then}"
    return f"{more if value > usual else less} than {then}"


def anomalies(figure: str, choice: Choice) -> QuerySet[Any]:
    """Return the anomalies of a figure, newest first."""
    return choice.rows(Anomaly).filter(figure=figure).order_by("-day", "stage", *PLACE)


def _worst(figure: str, choice: Choice) -> Anomaly | None:
    """Return the anomaly of the last day that most events are about."""
    unusual = anomalies(figure, choice).filter(day=choice.last_day)
    return unusual.order_by(Abs(F("events") - F("usual") * F("total")).desc()).first()


def of_all(choice: Choice, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return those rows that are of all platforms, and of all bridges, together, if the page has no such filter."""
    return rows.filter(**{name: "all" for name in TOGETHER if name not in choice.filters})


def error_rates(choice: Choice) -> str:
    if worst := _worst("error_rate", choice):
        _, events = EVENTS.get(worst.stage, ("", worst.stage))
        words = compared(worst.value, worst.usual, MANY, "usual", is_unusual=True)
        return f"{f.percent(worst.value)} of {events} failed, {words}{_cause(choice, worst)}."
    found = {row["stage"]: row for row in sums_by_stage(choice.rows_of_last_day(ErrorRate).filter(hour=None))}
    if not (stage := next((stage for stage in EVENTS if stage in found), "")):
        return ""
    row, week = found[stage], sums_by_stage(choice.week_before(ErrorRate).filter(hour=None, stage=stage))
    words = compared(row["rate"], week[0]["rate"] if week else None, MANY)
    return f"{f.percent(row['rate'])} of {counted(row['total'], *EVENTS[stage])} failed, {words}."


def _cause(choice: Choice, worst: Anomaly) -> str:
    """Return the most frequent failure behind a rate that is too high, and whom it is about."""
    place = {name: getattr(worst, name) for name in ("stage", *PLACE)}
    failed = choice.rows_of_last_day(ErrorRate).filter(hour=None, is_failure=True, **place)
    first = failed.order_by("-events", "code").first() if worst.value > worst.usual else None
    return f": {first.code or first.outcome}{_of_app(worst)}" if first else _of_app(worst)


def _of_app(row: Any) -> str:
    app = row.app_topic or row.platform
    return f" of {app}" if app != "none" else ""


def token_churn(choice: Choice) -> str:
    rows, days = choice.rows_of_last_day(TokenChurn), churn_by_day(choice.rows_of_last_day(TokenChurn))
    if not days:
        return ""
    if worst := _worst("churn_rate", choice):
        [row] = rows.filter(**{name: getattr(worst, name) for name in PLACE}).values(*LOST)[:1] or [{}]
        most = f": most {max(row, key=lambda name: row[name])}" if row and worst.value > worst.usual else ""
        lost = f"{f.percent(worst.value)} of the device tokens{_of_app(worst)} were lost"
        return f"{lost}, {compared(worst.value, worst.usual, MANY, 'usual', is_unusual=True)}{most}."
    rate, usual = churn_rate(days), churn_rate(churn_by_day(choice.week_before(TokenChurn)))
    came, went = (sum(days[0][name] for name in TOKEN_CHURN.of_kind(kind)) for kind in (Kind.FLOW_IN, Kind.FLOW_OUT))
    flows = f"{came:,} came and {went:,} went."
    if rate is None:
        return f"The day began without device tokens; {flows}"
    tokens = counted(days[0]["active_at_start"], "device token was", "device tokens were")
    return f"{f.percent(rate)} of {tokens} lost, {compared(rate, usual, MANY)}; {flows}"


def token_lifetime(choice: Choice) -> str:
    rows = list(choice.rows_of_last_day(TokenLifetime).filter(age_weeks__lte=AGE_WEEKS))
    if not rows:
        return ""
    age = max(row.age_weeks for row in rows)
    a_week_ago = choice.last_day - timedelta(days=USUAL_DAYS)
    before = choice.week_before(TokenLifetime).filter(day=a_week_ago, age_weeks=age)
    share, usual = _surviving([row for row in rows if row.age_weeks == age]), _surviving(list(before))
    words = compared(share or 0.0, usual, MANY, "a week before")
    return f"{f.percent(share)} of device tokens live for {counted(age, 'week')} or longer, {words}."


def _surviving(rows: Sequence[TokenLifetime]) -> float | None:
    tokens = sum(row.tokens for row in rows)
    return sum(row.survival * row.tokens for row in rows) / tokens if tokens else None


def latency(choice: Choice) -> str:
    found = {row.stage: row for row in of_all(choice, choice.rows_of_last_day(Latency))}
    if not (stage := next((stage for stage in DURATIONS if stage in found), "")):
        return ""
    row = found[stage]
    week = of_all(choice, choice.week_before(Latency)).filter(stage=stage).values_list("p99_ms", flat=True)
    usual = median(week) if week else None
    events, longest = counted(row.events, *DURATIONS[stage]), f.milliseconds(row.p99_ms)
    half = f"Half of {events} within {f.milliseconds(row.p50_ms)}, and 99 %" if row.events > 1 else events
    return f"{half} within {longest}, {compared(row.p99_ms, usual, LONG)}."


def failure_signatures(choice: Choice) -> str:
    rows = list(choice.rows_of_last_day(FailureSignature).order_by("-is_rising", "-events", "signature"))
    if not rows:
        return ""
    new, rising = sum(row.is_new for row in rows), sum(row.is_rising and not row.is_new for row in rows)
    first = f"{f.plain(rows[0].signature)} ({counted(rows[0].events, 'time')})"
    kinds = [(new, "new"), (rising, "more frequent than usual")]
    if found := [f"{counted(number, 'failure is', 'failures are')} {kind}" for number, kind in kinds if number]:
        return f"{', '.join(found)}: most of all {first}."
    total, days = sum(row.events for row in rows), choice.days_of_week_before
    if not days:
        return f"{counted(total, 'failure')}, {compared(total, None, MANY)}: most of all {first}."
    usual = sum(choice.week_before(FailureSignature).values_list("events", flat=True)) / days
    words = compared(total, usual, MANY, f"on a day {WEEK}")
    return f"No failure is new or rising, and there were {words}: most of all {first}."


def load_profile(choice: Choice) -> str:
    row = choice.rows_of_last_day(LoadProfile).order_by("role").first()
    if not row:
        return ""
    week = choice.week_before(LoadProfile).filter(role=row.role).values_list("top_share", flat=True)
    share = f"1 % of the {row.role}s had {f.percent(row.top_share)} of the notifications"
    tried = f"; each push took {f.ratio(row.retry_amplification)} attempts" if row.retry_amplification else ""
    return f"{share}, {compared(row.top_share, median(week) if week else None, MUCH)}{tried}."


def headline(night: Summary, choice: Choice) -> str:
    """Return a night in a few sentences: its worst figure, and what else is to be looked at."""
    if night.published is None:
        return f"There are no reports of {night.day}."
    say = token_churn if {row.figure for row in night.anomalies} == {"churn_rate"} else error_rates
    others, doubts = len(night.anomalies) - 1, len(night.findings)
    sentences = (
        say(choice) or "Nothing happened.",
        f"{counted(others, 'other figure is', 'other figures are')} unusual." if others > 0 else "",
        f"{counted(doubts, 'check')} of the data failed." if doubts else "",
        "" if night.knows_usual or not night.stages else NOT_KNOWN.format(night.usual_days, USUAL_DAYS),
    )
    return " ".join(filter(None, sentences))
