"""Read from the database what the indicators are judged by, from the same statements as the metrics.

A database that does not answer in time is a fact as well: nobody who asks how the server is waits for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta

import structlog
from django.conf import settings
from django.db import Error, connection, transaction
from django.db.models import Count, Min

from kit.db.postgresql.timeouts import Timeouts
from kit.db.statements import fetch
from kit.expiry.asking import waiting as waiting_expiry
from kit.health.recent import Recent
from kit.http.urls import host_of
from kit.metrics.kinds import StoredGauge
from notifications import gauges as delivery_gauges
from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.models import Channel, Halt
from notifications.queues import standstill
from pushserver.indicators import asking, gorush, waku
from pushserver.indicators.delivery import DeliveryFacts
from pushserver.indicators.gorush import GorushFacts
from pushserver.indicators.hour import Hour
from pushserver.indicators.judging import Stored
from pushserver.indicators.peers import Peer
from pushserver.indicators.registrations import Expiring, Filling
from pushserver.indicators.reports import ReportsFacts
from pushserver.indicators.waiting import Waiting
from pushserver.indicators.waku import WakuFacts
from pushserver.indicators.xmpp import XmppFacts
from registrations.quotas import STORED_REGISTRATIONS, STORED_TOMBSTONES, filled
from spark_reports.console.formats import percent
from spark_reports.models import Anomaly
from spark_reports.nights.status import SAVED, State, status
from waku_bridge import metrics
from waku_bridge.inbound import faults
from waku_bridge.models import (
    LOST_REPLIES,
    DeadLetter,
    InboundEnvelope,
    OutboundReply,
    StoreWatermark,
    StoreWindow,
)
from waku_bridge.node.config_check.saved import NOTICES as NODE_NOTICES
from xmpp_bridge.devices.registering import STORED_DEVICES
from xmpp_bridge.limits import Rates
from xmpp_bridge.models import App

log = structlog.get_logger(__name__)

# `/metrics` waits no longer either.
TIMEOUTS = Timeouts(statement_seconds=2, lock_seconds=2)
# Gauges count rows; several people may have the dashboard open, which asks every few seconds.
KEPT_SECONDS = 4.0
HOUR = timedelta(hours=1)
# Rows are counted up to this number; counting more is not worth the time.
MAX_COUNTED = 1000
MAX_ANOMALIES = 5
GAUGES = (
    *(metrics.INBOX_DEPTH, metrics.INBOX_OLDEST_AGE_SECONDS),
    *(delivery_gauges.OPEN, delivery_gauges.OLDEST_DUE_AGE_SECONDS),
    *(metrics.REPLIES_PENDING, metrics.REPLIES_OLDEST_AGE_SECONDS),
    delivery_gauges.UNANSWERED_AGE_SECONDS,
)


def read(hour: Hour, before: Mapping[str, str], *, now: datetime, is_blind: bool) -> Stored:
    """Return what the database knows. ``hour`` is what was counted in the last hour; ``before`` has the states of what
    was bad a moment ago. Without Redis (``is_blind``) nothing is known of config checks.
    """
    counted = COUNTED.get()
    inbox, inbox_age, due, due_age, outbox, outbox_age, overdue = counted or [0.0] * len(GAUGES)
    hour_ago = now - HOUR
    unreached = Halt.objects.filter(kind=Halt.Kind.UNREACHABLE, gateway="gorush")
    distrusted = Channel.objects.filter(deaths_distrusted_since__isnull=False)
    [(*registrations, devices)] = fetch(f"SELECT {STORED_REGISTRATIONS}, {STORED_TOMBSTONES}, {STORED_DEVICES}")
    expiring = {each.name: Expiring(each.count, each.total, each.found_at) for each in waiting_expiry()}
    return Stored(
        is_slow=not counted,
        counted_until=hour.counted_until,
        waku=WakuFacts(
            stores=list(_stores(is_blind=is_blind)),
            inbox=Waiting(int(inbox), inbox_age) if counted else None,
            dead_letters=DeadLetter.objects.filter(received_at__gte=hour_ago)[:MAX_COUNTED].count(),
            failed=_failed(hour_ago),
            outbox=Waiting(int(outbox), outbox_age) if counted else None,
            **_replies(hour, hour_ago),
        ),
        delivery=DeliveryFacts(
            switches=standstill.read(fetch(standstill.SWITCHES)),
            deaths_distrusted={str(app): at for app in distrusted if (at := app.deaths_distrusted_since)},
            time_to_live=timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS),
            due=Waiting(int(due), due_age) if counted else None,
            overdue_seconds=overdue if counted else None,
        ),
        gorush=GorushFacts(
            unreached_since=unreached.values_list("since", flat=True).first(),
            tries=hour.newest(gorush.JUDGED_MINUTES),
            newest_tries=hour.newest(1),
            counted_until=hour.counted_until,
            before=before,
            unknown_errors=UnknownGatewayError.objects.filter(last_seen_at__gte=hour_ago)[:MAX_COUNTED].count(),
        ),
        xmpp=_xmpp(hour) if settings.XMPP_COMPONENT_JID else XmppFacts(),
        registrations=Filling(
            filled(*registrations),
            settings.MAX_REGISTRATIONS,
            settings.NEW_INSTALLATIONS_PER_DAY,
            expiring.get("registrations"),
        ),
        xmpp_devices=Filling(
            devices,
            settings.XMPP_MAX_DEVICES,
            Rates(**settings.XMPP_RATES).new_devices_per_day,
            expiring.get("devices"),
        ),
        reports=_reports(now, is_blind=is_blind),
    )


def _count() -> list[float]:
    """Return the values of the gauges of `/metrics`, in one query. A gauge with labels gives the sum of its values.

    Return nothing where the database takes too long.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(map(_as_column, GAUGES))}")
            return [float(value or 0) for value in cursor.fetchone()]
    except Error as error:
        log.warning("waiting_not_counted", error=type(error).__name__)
        return []


COUNTED = Recent(_count, lambda: KEPT_SECONDS)


def _as_column(gauge: StoredGauge) -> str:
    return f"(SELECT sum(value) FROM ({gauge.sql}) AS found ({', '.join([*gauge.labelnames, 'value'])}))"


def _stores(*, is_blind: bool) -> Iterator[waku.Store]:
    """Yield the stores by host. What the config check found of a node that is read live stands with the node."""
    urls: Sequence[str] = settings.WAKU_STORE_NODES
    notices = {} if is_blind else NODE_NOTICES.read(urls)
    read_live = set(map(host_of, settings.WAKU_NODES))
    rows = StoreWatermark.objects.filter(node__in=urls, pubsub_topic__in=settings.WAKU_PUBSUB_TOPICS)
    read_up_to = dict(rows.values_list("node").annotate(Min("watermark_at")))
    searched = StoreWindow.objects.exclude(reason=StoreWindow.Reason.LATE)
    gaps = dict(searched.values_list("watermark__node").annotate(Count("pk")))
    for host in dict.fromkeys(map(host_of, urls)):
        own = [url for url in urls if host_of(url) == host]
        known = [read_up_to[url] for url in own if url in read_up_to]
        seen = [] if host in read_live else own
        is_watched = is_blind or all(url in notices for url in seen)
        found = asking.complaints([notices[url] for url in seen if url in notices])
        yield waku.Store(
            Peer(host, is_watched=is_watched, complaints=found),
            min(known) if len(known) == len(own) else None,
            sum(gaps.get(url, 0) for url in own),
        )


def _failed(hour_ago: datetime) -> waku.Failed:
    failed = InboundEnvelope.objects.filter(state=InboundEnvelope.State.FAILED)
    count = failed[:MAX_COUNTED].count()
    fault = faults.newest_waiting() if count else None
    lately = failed.filter(received_at__gte=hour_ago)[:MAX_COUNTED].count() if count else 0
    return waku.Failed(count, lately, str(fault) if fault else "", fault.count if fault else 0)


def _replies(hour: Hour, hour_ago: datetime) -> dict[str, int]:
    """Return the replies of the last hour and how many of them were lost, over the partial index that holds no other
    rows.
    """
    replies = int(sum(number or 0 for number in hour.column("reply_count")))
    limit = max(MAX_COUNTED, waku.many_lost_replies(replies))
    lost = OutboundReply.objects.filter(LOST_REPLIES, created_at__gte=hour_ago)[:limit].count()
    return {"replies": replies, "lost_replies": lost}


def _xmpp(hour: Hour) -> XmppFacts:
    pushes = int(sum(number or 0 for number in hour.column("xmpp_count")))
    return XmppFacts(App.objects.filter(is_retired=False).count(), pushes)


def _reports(now: datetime, *, is_blind: bool) -> ReportsFacts:
    """Return the state of the reports as a worker noted it, or judge it here when none has since the start."""
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
        place = " ".join(filter(None, (row.stage, row.platform, row.app_topic, row.bridge)))
        usual = f"usually {percent(row.band_low)} to {percent(row.band_high)}"
        yield f"{row.figure.replace('_', ' ')} of {place} {percent(row.value)}, {usual}"
