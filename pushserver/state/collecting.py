"""Collect the facts of this moment from where `/readyz`, the API and the metrics read them, so that the lights agree
with these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from threading import Lock
from time import monotonic

from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models import Count, Min
from psycopg.errors import QueryCanceled

from kit.db.statements import fetch
from kit.http.notices import Board, Notice
from kit.http.urls import host_of
from kit.metrics.kinds import StoredGauge
from notifications import metrics as delivery_metrics
from notifications import standstill
from notifications.gateways.gorush.config_check.board import BOARD as GORUSH_BOARD
from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.models import Channel, Halt
from pushserver import health
from pushserver.celery import QUEUES
from pushserver.metrics.stock import TIMEOUT_SECONDS
from pushserver.state import facts as f
from pushserver.state.hour import Hour
from pushserver.state.lights import JUDGED_MINUTES, many_lost_replies
from spark_reports.console.formats import percent
from spark_reports.models import Anomaly
from spark_reports.status import State, pinned, status
from waku_bridge import canary, faults, metrics
from waku_bridge.models import (
    LOST_REPLIES,
    CanaryRun,
    DeadLetter,
    InboundEnvelope,
    OutboundReply,
    StoreWatermark,
    StoreWindow,
)
from waku_bridge.node.config_check.board import BOARD as NODE_BOARD
from xmpp_bridge.canary import board as xmpp_canary
from xmpp_bridge.models import App

# Checks ask servers, and gauges count rows; several people may have the dashboard open, which asks every few seconds.
KEPT_SECONDS = 4.0
HOUR = timedelta(hours=1)
# Rows are counted up to this number; counting more is not worth the time.
MOST_COUNTED = 1000
MAX_ANOMALIES = 5
GAUGES = (
    *(metrics.INBOX_DEPTH, metrics.INBOX_OLDEST_AGE_SECONDS),
    *(delivery_metrics.OPEN, delivery_metrics.OLDEST_DUE_AGE_SECONDS),
    *(metrics.REPLIES_PENDING, metrics.REPLIES_OLDEST_AGE_SECONDS),
    delivery_metrics.UNANSWERED_AGE_SECONDS,
)
Checks = Mapping[str, health.Check]


def collect(hour: Hour, *, now: datetime) -> f.Facts:
    """Return all facts from which the lights are decided. ``hour`` is what was counted in the last hour."""
    answers = ANSWERS.recent()
    checks = answers.checks
    nodes = list(_peers(NODE_BOARD, settings.WAKU_NODES, checks, "node"))
    inbox, inbox_age, due, due_age, outbox, outbox_age, overdue = answers.gauges or [0.0] * len(GAUGES)
    hour_ago = now - HOUR
    replies = int(sum(number or 0 for number in hour.column("reply_count")))
    doubted = Channel.objects.filter(deaths_doubted_since__isnull=False)
    return f.Facts(
        now=now,
        reasons={name: check.reason for name, check in checks.items()},
        queues=list(_queues(checks)),
        counted_until=hour.counted_until,
        nodes=nodes,
        stores=list(_stores(checks, read_live={node.host for node in nodes})),
        inbox=f.Waiting(int(inbox), inbox_age),
        dead_letters=DeadLetter.objects.filter(received_at__gte=hour_ago)[:MOST_COUNTED].count(),
        failed=_failed(hour_ago),
        time_to_live=timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS),
        due=f.Waiting(int(due), due_age),
        gorush=list(_peers(GORUSH_BOARD, settings.GORUSH_URLS, checks, "gorush")),
        tries=hour.newest(JUDGED_MINUTES),
        newest_tries=hour.newest(1),
        unknown_errors=UnknownGatewayError.objects.filter(last_seen_at__gte=hour_ago)[:MOST_COUNTED].count(),
        switches=standstill.read(fetch(standstill.SWITCHES)),
        deaths_doubted={str(app): at for app in doubted if (at := app.deaths_doubted_since)},
        outbox=f.Waiting(int(outbox), outbox_age),
        overdue_seconds=overdue,
        replies=replies,
        lost_replies=_lost_replies(hour_ago, most=max(MOST_COUNTED, many_lost_replies(replies))),
        is_canary_expected=canary.is_expected(),
        canary=_canary(checks),
        is_xmpp_canary_expected=xmpp_canary.is_expected(),
        xmpp_canary=_xmpp_canary(checks),
        reports=_reports(checks, now),
        is_database_slow=answers.gauges is None,
        xmpp=_xmpp(hour) if settings.XMPP_COMPONENT_JID else None,
        unreached_since=_unreached_since("gorush"),
    )


def _unreached_since(gateway: str) -> datetime | None:
    halts = Halt.objects.filter(kind=Halt.Kind.UNREACHABLE, gateway=gateway)
    return halts.values_list("since", flat=True).first()


@dataclass(frozen=True, slots=True)
class Answers:
    """The checks of `/readyz` and the values of `GAUGES`, which are None where the database took too long."""

    checks: Checks
    gauges: Sequence[float] | None


class RecentAnswers:
    """The answers of this process, at most a few seconds old."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known = Answers({}, None)
        self._asked_at = float("-inf")

    def recent(self) -> Answers:
        """Return the answers, asked again when they are older than `KEPT_SECONDS`."""
        with self._lock:
            if monotonic() - self._asked_at >= KEPT_SECONDS:
                self._known = Answers(health.run_checks(), _ask(GAUGES))
                self._asked_at = monotonic()
            return self._known

    def forget(self) -> None:
        """Have the next call ask again."""
        self._asked_at = float("-inf")


ANSWERS = RecentAnswers()


def _is_blind(checks: Checks) -> bool:
    """Return whether Redis is away, so that each question to it would take its time-out."""
    return bool(checks["broker"].reason)


def _queues(checks: Checks) -> Iterator[f.Queue]:
    needed = checks["worker"].parts or {}
    wanted = {"reports": settings.REPORTS_NIGHTLY, "canary": canary.is_expected()}
    others = [queue for queue in QUEUES if queue not in needed and wanted.get(queue, True)]
    served = {} if _is_blind(checks) else health.have_workers(others)
    yield from (f.Queue(queue, has_worker) for queue, has_worker in needed.items())
    yield from (f.Queue(queue, has_worker, is_needed=False) for queue, has_worker in served.items())


def _peers(board: Board, urls: Sequence[str], checks: Checks, name: str) -> Iterator[f.Peer]:
    notices = {} if _is_blind(checks) else board.read(urls)
    for host, is_up in (checks[name].parts or {}).items():
        own = [url for url in urls if host_of(url) == host]
        known = [notices[url] for url in own if url in notices]
        troubles = [trouble for notice in known for trouble in _troubles(notice)]
        yield f.Peer(host, is_up, len(known) == len(own), troubles)


def _troubles(notice: Notice) -> Iterator[f.Trouble]:
    for complaint in notice.complaints:
        yield f.Trouble(complaint.what, complaint.action, notice.since.get(complaint.id))


def _stores(checks: Checks, *, read_live: set[str]) -> Iterator[f.Store]:
    urls: Sequence[str] = settings.WAKU_STORE_NODES
    notices = {} if _is_blind(checks) else NODE_BOARD.read(urls)
    rows = StoreWatermark.objects.filter(node__in=urls, pubsub_topic__in=settings.WAKU_PUBSUB_TOPICS)
    read_up_to = dict(rows.values_list("node").annotate(Min("watermark_at")))
    searched = StoreWindow.objects.exclude(reason=StoreWindow.Reason.LATE)
    gaps = dict(searched.values_list("watermark__node").annotate(Count("pk")))
    for host in dict.fromkeys(map(host_of, urls)):
        own = [url for url in urls if host_of(url) == host]
        known = [read_up_to[url] for url in own if url in read_up_to]
        troubles = [trouble for url in own if url in notices for trouble in _troubles(notices[url])]
        yield f.Store(
            host,
            read_up_to=min(known) if len(known) == len(own) else None,
            gaps=sum(gaps.get(url, 0) for url in own),
            troubles=[] if host in read_live else troubles,
        )


def _ask(gauges: Sequence[StoredGauge]) -> list[float] | None:
    """Return the values of the gauges of `/metrics`, in one query. A gauge with labels gives the sum of its values.

    Return None where that takes so long that `/metrics` would not wait either.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = '{TIMEOUT_SECONDS}s'")
            cursor.execute(f"SELECT {', '.join(map(_as_column, gauges))}")
            return [float(value or 0) for value in cursor.fetchone()]
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            return None
        raise


def _as_column(gauge: StoredGauge) -> str:
    return f"(SELECT sum(value) FROM ({gauge.sql}) AS found ({', '.join([*gauge.labelnames, 'value'])}))"


def _failed(hour_ago: datetime) -> f.Failed:
    failed = InboundEnvelope.objects.filter(state=InboundEnvelope.State.FAILED)
    count = failed[:MOST_COUNTED].count()
    fault = faults.newest_waiting() if count else None
    lately = failed.filter(received_at__gte=hour_ago)[:MOST_COUNTED].count() if count else 0
    return f.Failed(count, lately, str(fault) if fault else "", fault.count if fault else 0)


def _lost_replies(since: datetime, *, most: int) -> int:
    """Count lost replies with the partial index that holds no other rows."""
    return OutboundReply.objects.filter(LOST_REPLIES, created_at__gte=since)[:most].count()


def _xmpp(hour: Hour) -> f.Xmpp:
    pushes = int(sum(number or 0 for number in hour.column("xmpp_count")))
    return f.Xmpp(App.objects.filter(is_retired=False).count(), pushes)


def _canary(checks: Checks) -> f.RoundTrip | None:
    last = None if _is_blind(checks) else canary.last()
    if last is None:
        return None
    within = CanaryRun.Link.GORUSH  # its time is within that of the answer
    total_ms = sum(taken or 0 for link, taken in last.timings_ms.items() if link != within)
    return f.RoundTrip(last.finished_at, bool(last.cause), last.words, total_ms, last.is_dry_run)


def _xmpp_canary(checks: Checks) -> f.RoundTrip | None:
    last = None if _is_blind(checks) else xmpp_canary.last()
    if last is None:
        return None
    total_ms = sum(taken or 0 for taken in last.timings_ms.values())
    return f.RoundTrip(last.finished_at, bool(last.cause), last.words, total_ms, is_dry_run=True)


def _reports(checks: Checks, now: datetime) -> f.Reports:
    """Return the state of the reports as `/readyz` tells it, or judge it here when no worker has noted it since the
    start.
    """
    known = None if _is_blind(checks) else pinned()
    found = known or status(now)
    return f.Reports(
        is_off=found.state == State.OFF,
        is_missing=found.is_alarm,
        words=found.words,
        anomalies=list(_anomalies(found.newest_day)) if found.newest_day and found.anomalies else [],
        findings=found.findings,
    )


def _anomalies(day: date) -> Iterator[str]:
    """Yield each anomaly of a day with its figure and its usual band. All figures are shares."""
    for row in Anomaly.objects.filter(day=day).order_by("-z_score")[:MAX_ANOMALIES]:
        place = " ".join(filter(None, (row.stage, row.platform, row.app_topic, row.front_door)))
        usual = f"usually {percent(row.band_low)} to {percent(row.band_high)}"
        yield f"{row.figure.replace('_', ' ')} of {place} {percent(row.value)}, {usual}"
