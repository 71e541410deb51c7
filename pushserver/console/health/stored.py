"""Reader of the facts in the database by which indicators are judged. It uses the statements of the metrics.

A database that does not answer in time is a fact as well: no reader of indicators waits for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta

import structlog
from django.conf import settings
from django.db import Error, connection, transaction

from kit.db.base import fetch
from kit.db.sessions import Timeouts
from kit.expiry.models import waiting
from kit.telemetry import StoredGauge
from notifications.models import Channel
from pushserver.console.health import keys
from pushserver.console.health.filling import Filling
from pushserver.console.health.history import hours
from pushserver.console.health.history.traffic import MINUTE
from pushserver.console.health.hour import Hour
from pushserver.console.health.judging import Stored
from pushserver.console.health.kinds import results
from pushserver.console.health.kinds.delivery import DeliveryFacts
from pushserver.console.health.kinds.reports import ReportsFacts
from pushserver.console.health.kinds.results import ResultFacts
from pushserver.console.health.kinds.traffic import Flow, TrafficFacts
from pushserver.console.health.recent import Recent
from pushserver.console.health.waiting import Waiting
from pushserver.console.notifications import gauges as delivery_gauges
from pushserver.console.notifications import standstill
from pushserver.console.parts import Evidence, parts_in_use
from pushserver.console.reports.formats import percent
from registrations.statements import STORED_REGISTRATIONS
from spark_reports.models import Anomaly
from spark_reports.nights.status import SAVED, State, status

log = structlog.get_logger(__name__)

# `/metrics` has the same timeout.
TIMEOUTS = Timeouts(statement_seconds=2, lock_seconds=2)
# Seconds for which counts are reused. Several dashboards may be open, each of which reads them every few seconds.
KEPT_SECONDS = 2.0
MAX_ANOMALIES = 5
OWN_GAUGES = (
    delivery_gauges.OPEN,
    delivery_gauges.OLDEST_DUE_AGE_SECONDS,
    delivery_gauges.UNANSWERED_AGE_SECONDS,
)


def read(hour: Hour, before: Mapping[str, str], *, now: datetime, is_blind: bool) -> Stored:
    """Return the facts in the database.

    ``hour`` has the counts of the last hour, and ``before`` the states of the indicators that were bad in the last
    snapshot. Without Redis (``is_blind``) the results of config checks are unknown.
    """
    counted = COUNTED.get()
    return Stored(
        is_slow=counted is None,
        counted_until=hour.counted_until,
        lost_key=keys.lost(),
        delivery=_delivery(counted, now=now),
        traffic=_traffic(hour),
        results=ResultFacts(hour.newest(results.JUDGED_MINUTES), hour.newest(1), hour.counted_until, before),
        registrations=_registrations(),
        reports=_reports(now, is_blind=is_blind),
        parts={
            part: part.read(Evidence(now, counted, *hour.of_bridge(part.name), is_blind)) for part in parts_in_use()
        },
    )


def _delivery(counted: Mapping[str, float] | None, *, now: datetime) -> DeliveryFacts:
    distrusted = Channel.objects.filter(deaths_distrusted_since__isnull=False)
    due, due_age, overdue = ((counted or {}).get(gauge.name, 0.0) for gauge in OWN_GAUGES)
    return DeliveryFacts(
        switches=standstill.read(fetch(standstill.SWITCHES)),
        failing=standstill.failing(now=now),
        deaths_distrusted={str(app): at for app in distrusted if (at := app.deaths_distrusted_since)},
        time_to_live=timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS),
        due=None if counted is None else Waiting(int(due), due_age),
        overdue_seconds=None if counted is None else overdue,
    )


def _traffic(hour: Hour) -> TrafficFacts:
    if hour.counted_until is None:
        return TrafficFacts()
    usual = hours.read_usual(hour.counted_until - MINUTE)
    flows = [
        Flow(
            f"request has arrived through {part.label}",
            f"requests have arrived through {part.label}",
            usual.get(hours.requests_of(part), ()),
            _known(hour.requests_by(part.name)),
        )
        for part in parts_in_use()
        if part.is_bridge
    ]
    for devices, names in hours.kinds_of_devices().items():
        one, many = f"{devices} push has been delivered", f"{devices} pushes have been delivered"
        flows.append(Flow(one, many, usual.get(hours.pushes_to(devices), ()), _known(hour.delivered_to(names))))
    return TrafficFacts(flows, max(map(len, usual.values()), default=0))


def _known(column: Sequence[float | None]) -> list[int]:
    return [int(number) for number in column if number is not None]


def _registrations() -> Filling:
    [(registrations,)] = fetch(f"SELECT {STORED_REGISTRATIONS}")
    return Filling(
        "MAX_REGISTRATIONS",
        "registrations",
        registrations,
        settings.MAX_REGISTRATIONS,
        waiting("registrations"),
    )


def gauges() -> list[StoredGauge]:
    """Return the gauges that indicators are judged by."""
    return [*OWN_GAUGES, *(gauge for part in parts_in_use() for gauge in part.gauges)]


def _count() -> dict[str, float] | None:
    """Return the values of the gauges by name, in one query, or None if the database takes too long.

    The value of a gauge with labels is the sum of its values.
    """
    asked = gauges()
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(map(_as_column, asked))}")
            return {gauge.name: float(value or 0) for gauge, value in zip(asked, cursor.fetchone(), strict=True)}
    except Error as error:
        log.warning("waiting_not_counted", error=type(error).__name__)
        return None


COUNTED = Recent(_count, lambda: KEPT_SECONDS)


def _as_column(gauge: StoredGauge) -> str:
    return f"(SELECT sum(value) FROM ({gauge.sql}) AS found ({', '.join([*gauge.labelnames, 'value'])}))"


def _reports(now: datetime, *, is_blind: bool) -> ReportsFacts:
    """Return the state of the reports as a worker saved it. If none has since the start, judge it here."""
    known = None if is_blind else SAVED.read()
    found = known or status(now)
    return ReportsFacts(
        is_off=found.state == State.OFF,
        is_missing=found.is_alarm,
        sentence=found.words,
        anomalies=list(_anomalies(found.newest_day)) if found.newest_day and found.anomalies else [],
        findings=found.findings,
    )


def _anomalies(day: date) -> Iterator[str]:
    """Yield each anomaly of a day with its figure and its usual band. All figures are shares."""
    for row in Anomaly.objects.filter(day=day).order_by("-z_score")[:MAX_ANOMALIES]:
        location = " ".join(filter(None, (row.stage, row.platform, row.app_topic, row.bridge)))
        usual = f"usually {percent(row.band_low)} to {percent(row.band_high)}"
        yield f"{row.figure.replace('_', ' ')} of {location} {percent(row.value)}, {usual}"
