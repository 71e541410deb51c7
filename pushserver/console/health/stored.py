"""Reader of the facts in the database by which indicators are judged. It uses the statements of the metrics.

A database that does not answer in time is a fact as well: no reader of indicators waits for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import LiteralString

import structlog
from django.conf import settings
from django.db import Error, connection, transaction

from kit.db.base import fetch, table
from kit.db.sessions import Timeouts
from kit.expiry.models import waiting
from kit.telemetry import StoredGauge
from notifications.messages import DEVICE_LIMITED, DRY_RUN, FAILURES
from notifications.models import Channel, EndedAttempt, Halt
from notifications.queues.breakers import ANSWERED
from notifications.queues.queues import SUCCESS_NOTED_EVERY
from pushserver.console.health import traffic
from pushserver.console.health.history import DELIVERED, Figure, Hour, Key
from pushserver.console.health.indicators import (
    DRAINED,
    JUDGED_MINUTES,
    RUNNING,
    Failing,
    Flow,
    LostKey,
    Switch,
    kinds_of,
)
from pushserver.console.health.judges import Filled, Queue, Waiting
from pushserver.console.health.recent import Recent
from pushserver.console.health.traffic import MINUTE
from pushserver.console.health.verdicts import Facts
from pushserver.console.models import Incident, ServerStart
from pushserver.console.notifications import metrics as delivery_gauges
from pushserver.console.parts import parts_in_use
from pushserver.console.reports.formats import percent
from registrations.messages import devices_of
from registrations.statements import STORED_REGISTRATIONS
from spark_reports.models import Anomaly
from spark_reports.nights.status import SAVED, status

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


def read(asked: Facts, hour: Hour, before: Mapping[str, str]) -> Facts:
    """Return all facts: those that were ``asked``, and those in the database.

    ``hour`` has the counts of the last hour, and ``before`` the states of the indicators that were bad in the last
    snapshot.
    """
    counted = COUNTED.get()
    facts = Facts(asked, hour=hour, before=before, counted_until=hour.counted_until, is_slow=counted is None)
    facts |= _waiting(facts, counted or {})
    facts |= {"tries": hour.newest(JUDGED_MINUTES), "newest_tries": hour.newest(1)}
    facts |= {"key": lost_key(), "time_to_live": settings.NOTIFICATION_TTL_SECONDS}
    facts |= {"switches": switches(), "failing": failing(now=facts["now"])}
    distrusted = Channel.objects.filter(deaths_distrusted_since__isnull=False)
    facts["dead-tokens"] = {str(channel): channel.deaths_distrusted_since for channel in distrusted}
    [(registrations,)] = fetch(f"SELECT {STORED_REGISTRATIONS}")
    facts["registrations"] = Filled(registrations, settings.MAX_REGISTRATIONS, waiting("registrations"))
    facts |= _traffic(hour)
    # As a worker saved it. If none has since the start, it is judged here.
    found = (None if facts["broker"] else SAVED.read()) or status(facts["now"])
    facts |= {"reports": found, "anomalies": list(_anomalies(found.newest_day)) if found.newest_day else []}
    for part in facts["parts"]:
        facts |= part.read(facts)
    return facts


def _waiting(facts: Facts, counted: Mapping[str, float]) -> Mapping[str, Waiting]:
    """Return what waits in each queue, by the ids of their kinds, as far as it was counted in time."""
    queues = {kind.id: kind.judge for kind in kinds_of(facts["parts"]) if isinstance(kind.judge, Queue)}
    return {
        name: Waiting(int(counted.get(queue.count, 0)), counted[queue.age])
        for name, queue in queues.items()
        if queue.age in counted
    }


def _traffic(hour: Hour) -> Mapping[str, object]:
    """Return the flows of requests and pushes, and the number of days to compare them with."""
    if hour.counted_until is None:
        return {"flows": [], "days": 0}
    usual = traffic.read_usual(hour.counted_until - MINUTE)
    flows = [
        Flow(
            f"request has arrived through {part.label}",
            f"requests have arrived through {part.label}",
            usual.get(traffic.requests_of(part.name), ()),
            _known(hour.counts.requests(part.name)),
        )
        for part in parts_in_use()
        if part.is_bridge
    ]
    for devices, names in traffic.kinds_of_devices().items():
        one, many = f"{devices} push has been delivered", f"{devices} pushes have been delivered"
        delivered = hour.counts.column(Figure.ATTEMPTS, partial(_is_delivered, tuple(f"{name} " for name in names)))
        flows.append(Flow(one, many, usual.get(traffic.pushes_to(devices), ()), _known(delivered)))
    return {"flows": flows, "days": max(map(len, usual.values()), default=0)}


def _is_delivered(names: tuple[str, ...], key: Key) -> bool:
    """Return whether attempts to an app were delivered, and its name begins with the name of a kind of token."""
    return key.outcome == DELIVERED and f"{key.subject} ".startswith(names)


def _known(column: Sequence[float | None]) -> list[int]:
    return [int(number) for number in column if number is not None]


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


def _anomalies(day: date) -> Iterator[str]:
    """Yield each anomaly of a day with its figure and its usual range. All figures are shares."""
    for row in Anomaly.objects.filter(day=day).order_by("-z_score")[:MAX_ANOMALIES]:
        location = " ".join(filter(None, (row.stage, row.platform, row.app_topic, row.bridge)))
        usual = f"usually {percent(row.band_low)} to {percent(row.band_high)}"
        yield f"{row.figure.replace('_', ' ')} of {location} {percent(row.value)}, {usual}"


# What keeps pushes from being sent: the drain, halts of apps, and apps whose sends all fail ----------------------
SWITCHES: LiteralString = f"""
    SELECT kind, coalesce(token_type, 0), app_topic, by, reason, since FROM notifications_halt
    WHERE kind IN ('{DRAINED}', '{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}') AND ended_at IS NULL
    UNION ALL
    SELECT '{RUNNING}', token_type, app_topic, '', '', last_success_at FROM notifications_channel AS app
    WHERE NOT EXISTS (
        SELECT FROM notifications_halt AS halt
        WHERE halt.kind IN ('{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}') AND halt.token_type = app.token_type
            AND halt.app_topic = app.app_topic AND halt.ended_at IS NULL
    )
"""


# Failures of an app in a row that are too few for its breaker (`breakers`), as in a small fleet or at night.
FEW_FAILURES = 3
FAILURES_WITHIN = timedelta(hours=1)
_FAILED: LiteralString = " UNION ALL ".join(
    f"""(
        SELECT token_type, app_topic, code, error, began_at, ended_at FROM {table(EndedAttempt)}
        WHERE outcome = '{outcome}' AND started_at >= date_trunc('day', %(since)s) ORDER BY id DESC LIMIT 100
    )"""
    for outcome in FAILURES
)
# All apps of a platform that nothing was delivered to count as one, without a name, because clients choose the names. A
# delivery to any app of the platform clears them (exact to the minute), so that made-up apps show no failure of ours.
_FAILING = f"""
    WITH failed AS MATERIALIZED ({_FAILED}), app AS MATERIALIZED (
        SELECT token_type, app_topic, (
            SELECT ended_at FROM {table(EndedAttempt)} AS answered
            WHERE answered.token_type = channel.token_type AND answered.app_topic = channel.app_topic
                AND outcome IN ({ANSWERED}) AND began_at IS NOT NULL AND code <> '{DRY_RUN}' AND started_at >= %(since)s
            ORDER BY started_at DESC LIMIT 1
        ) AS answered_at
        FROM notifications_channel AS channel
        WHERE (token_type, app_topic) IN (SELECT token_type, app_topic FROM failed)
    ), platform AS (
        SELECT token_type, max(last_success_at) + interval '{SUCCESS_NOTED_EVERY.seconds} seconds' AS answered_at
        FROM notifications_channel GROUP BY token_type
    )
    SELECT failed.token_type, app.app_topic, count(*), min(failed.ended_at),
        mode() WITHIN GROUP (ORDER BY concat(code, ' (' || nullif(error, '') || ')'))
    FROM failed
    LEFT JOIN app USING (token_type, app_topic)
    LEFT JOIN platform ON platform.token_type = failed.token_type
    WHERE began_at IS NOT NULL AND code <> '{DEVICE_LIMITED}' AND ended_at >= %(since)s AND ended_at > coalesce(
        CASE WHEN app.token_type IS NULL THEN platform.answered_at ELSE app.answered_at END, '-infinity'
    )
    GROUP BY failed.token_type, app.app_topic HAVING count(*) >= {FEW_FAILURES}
"""


def failing(*, now: datetime) -> list[Failing]:
    """Return the apps whose last sends, at least `FEW_FAILURES` within the last hour, all failed."""
    return [
        Failing(_name(kind, topic), count, since.astimezone(UTC), answer)
        for kind, topic, count, since, answer in fetch(_FAILING, {"since": now - FAILURES_WITHIN})
    ]


def _name(kind: int, topic: str | None) -> str:
    if topic is None:
        return f"{devices_of(kind)} apps without a delivery"
    return str(Channel(token_type=kind, app_topic=topic))


def switches() -> list[Switch]:
    """Return what is stopped, and the apps that run."""
    return [
        Switch(state, _name(kind, topic), by, why, since.astimezone(UTC), devices_of(kind))
        for state, kind, topic, by, why, since in fetch(SWITCHES)
    ]


# The server's key -----------------------------------------------------------------------------------------------------
def present_keys() -> str:
    """Return the public keys of the settings, as `ServerStart` has them."""
    return ",".join(key.hex() for part in parts_in_use() for key in part.own_keys())


# Their values may hold a token or a password, whatever they are meant for.
MAY_HOLD_SECRETS = {"EMAIL_USER", "SPARK_MASTER", "TRACE_PAGE"}


def present_settings() -> str:
    """Return the settings that are no secrets and hold none, as `ServerStart` has them.

    Those of embedded servers are left out: their ports are other ones after each start.
    """
    env, left_out = settings.ENVIRONMENT, MAY_HOLD_SECRETS | settings.EMBEDDED.keys()
    known = {
        row.name: env.values.get(row.name, "") for row in env.table if not row.used_by and row.name not in left_out
    }
    return ",".join(f"{name}:{sha256(value.encode()).hexdigest()[:8]}" for name, value in known.items())


def lost_key() -> LostKey | None:
    """Return the key that clients still use and the settings lack. Staff may have acknowledged that.

    A key that was the first one no more was taken out on purpose, as docs/backup.md says.
    """
    present = present_keys()
    for start in ServerStart.objects.exclude(keys__in=["", present]).order_by("-started_at"):
        first, *_ = keys = start.keys.split(",")
        if set(keys) - set(present.split(",")):
            return _lost(first, start.started_at) if first not in present.split(",") else None
    return None


def _lost(key: str, used_at: datetime) -> LostKey | None:
    """Return the key of a start, unless no client uses it. After an acknowledgement that is not asked: it reads all."""
    taken_care_of = Incident.objects.filter(indicator="key", acknowledged_at__gt=used_at)
    by = taken_care_of.values_list("acknowledged_by", flat=True).last() or ""
    is_used = bool(by) or any(part.has_clients_of(bytes.fromhex(key)) for part in parts_in_use())
    return LostKey(by) if is_used else None
