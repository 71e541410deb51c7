"""The operator's side of Waku: its indicators, pages and metrics, and the rows of the canary that reports leave out."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Any, ClassVar, LiteralString

from django.conf import settings
from django.db.models import Min

from kit.db.base import fetch, table
from kit.db.partitions import UNDER_WAY
from kit.display import host_of
from notifications.models import NotificationRequest
from pushserver.console.canary.waku import canary
from pushserver.console.checks.engine import complaints
from pushserver.console.checks.nodes import CLOCK, NOTICES, about_clock, configured
from pushserver.console.checks.peers import UNREACHABLE, Complaint, Peer
from pushserver.console.health import canaries
from pushserver.console.health.indicators import Indicator
from pushserver.console.health.waiting import Tile, Waiting
from pushserver.console.parts import Evidence, KeyUse, ListPage, Operations, PeerPage
from pushserver.console.waku import indicators, metrics
from pushserver.console.waku.indicators import Failed, Reached, Store, WakuFacts
from registrations.models import Grant, Registration
from waku_bridge.inbox import faults
from waku_bridge.messages import BRIDGE, LEADER
from waku_bridge.models import (
    LOST_REPLIES,
    DeadLetter,
    InboundEnvelope,
    OutboundReply,
    StoreWatermark,
)
from waku_bridge.query_topics import server_identities
from waku_bridge.reading.live import LAST_READ, LastRead

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
# Rows are counted up to this number, because counting more would take too long.
MAX_COUNTED = 1000
SECTION = "Waku"
COUNT_BY_NEWEST_GRANT: LiteralString = f"""
    SELECT server_public_key, count(*) FROM (
        SELECT DISTINCT ON (registration_id) server_public_key
        FROM registrations_grant JOIN registrations_registration AS registration ON registration.id = registration_id
        WHERE registration.state = '{Registration.State.ACTIVE}' ORDER BY registration_id, granted_at DESC
    ) AS newest GROUP BY server_public_key
"""


def _describe(memory: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    longest = memory["longest_page"]
    return [
        ("version", memory["version"] or "not known"),
        ("health", memory["health"] or "not reported"),
        ("cluster and shards", memory["shards"] or "not reported"),
        ("longest page", f"{longest} messages" if longest else "shorter than 30 messages"),
    ]


def _count_by_newest_grant() -> dict[bytes, int]:
    """Return by server key (33 bytes) the number of registered installations whose newest grant is for that server."""
    return {bytes(public_key): number for public_key, number in fetch(COUNT_BY_NEWEST_GRANT)}


class WakuOperations(Operations):
    name = document = BRIDGE
    is_bridge = True
    app_label = "waku_bridge"
    label = "Waku"
    checks = ("waku_bridge.tasks.check_nodes", "waku_bridge.tasks.run_canary")
    kinds = indicators.KINDS
    gauges = (
        *(metrics.INBOX_DEPTH, metrics.INBOX_OLDEST_AGE_SECONDS),
        *(metrics.REPLIES_PENDING, metrics.REPLIES_OLDEST_AGE_SECONDS),
    )
    metric_modules: ClassVar[Mapping[str, str]] = {
        "The bridge, the inbox and replies": "waku_bridge.metrics",
        "Nodes and the canary of Waku": "pushserver.console.waku.metrics",
    }
    peer_page = PeerPage(
        title=indicators.NODES_PAGE.title,
        icon="hub",
        url_name=indicators.NODES_PAGE.url_name,
        path="nodes",
        urls=configured,
        notices=NOTICES,
        kinds=[indicators.NODE.id, indicators.STORE.id],
        nothing="No Waku node is configured: set WAKU_NODES.",
        describe=_describe,
    )
    list_pages = (
        ListPage(SECTION, "Envelopes", "mail", "waku_bridge.inboundenvelope"),
        ListPage(SECTION, "Envelope faults", "bug_report", "waku_bridge.envelopefault"),
        ListPage(SECTION, "Replies", "reply", "waku_bridge.outboundreply"),
        ListPage(SECTION, "Dead letters", "dangerous", "waku_bridge.deadletter"),
        ListPage(SECTION, "Canary runs", "sync", "waku_bridge.canaryrun"),
        ListPage("Rarely used", "Store watermarks", "water", "waku_bridge.storewatermark"),
    )
    # A reply counts in the minute in which the message came that it answers. One that was published again has only the
    # time of its last publication, so it gives no latency. `OFFSET` has PostgreSQL find each reply by its key.
    replies = f"""
        SELECT CASE WHEN reply.repeat_count = 0 THEN
            greatest(0, extract(epoch FROM reply.published_at - envelope.received_at) * 1000) END AS ms
        FROM {table(InboundEnvelope)} AS envelope CROSS JOIN LATERAL (
            SELECT repeat_count, published_at FROM {table(OutboundReply)}
            WHERE envelope_hash = envelope.hash AND ended_on IN ({{days}}, '{UNDER_WAY}')
                AND published_at IS NOT NULL AND NOT is_discarded OFFSET 0
        ) AS reply
        WHERE envelope.received_at >= %(begin)s AND envelope.received_at < %(end)s
            AND envelope.ended_on IN ({{days}}, '{UNDER_WAY}')
    """

    def reach(self, asked: Any, leaders: Mapping[str, float] | None, *, is_blind: bool) -> Reached:
        read = {} if is_blind else LAST_READ.read_all(settings.WAKU_NODES)
        is_up = {url: url in read for url in settings.WAKU_NODES}
        nodes = NOTICES.peers(is_up, is_blind=is_blind, seen={url: clock_of(found) for url, found in read.items()})
        silent_seconds = None if leaders is None else leaders.get(LEADER, inf)
        return Reached(list(nodes), canary.facts(is_blind=is_blind), silent_seconds)

    def judge_reached(self, reached: Reached, *, is_redis_down: bool) -> Iterator[Indicator]:
        yield indicators.bridge(reached)
        yield from indicators.nodes(reached, is_redis_down=is_redis_down)
        yield canaries.judge(indicators.CANARY, reached.canary, is_redis_down=is_redis_down)

    def read(self, evidence: Evidence) -> WakuFacts:
        hour_ago = evidence.now - HOUR
        inbox, outbox = self._queues(evidence.gauges)
        limit = max(MAX_COUNTED, indicators.many_lost_replies(evidence.replies))
        return WakuFacts(
            stores=list(_stores(is_blind=evidence.is_blind)),
            inbox=inbox,
            dead_letters=DeadLetter.objects.filter(received_at__gte=hour_ago)[:MAX_COUNTED].count(),
            failed=_failed(hour_ago),
            outbox=outbox,
            replies=evidence.replies,
            # A partial index holds exactly these rows.
            lost_replies=OutboundReply.objects.filter(LOST_REPLIES, created_at__gte=hour_ago)[:limit].count(),
        )

    def _queues(self, gauges: Mapping[str, float] | None) -> tuple[Waiting | None, Waiting | None]:
        if gauges is None:
            return None, None
        inbox, inbox_age, outbox, outbox_age = (gauges[gauge.name] for gauge in self.gauges)
        return Waiting(int(inbox), inbox_age), Waiting(int(outbox), outbox_age)

    def judge_stored(self, stored: WakuFacts, reached: Reached, now: datetime) -> Iterator[Indicator]:
        yield from (indicators.store(store, now) for store in stored.stores)
        yield indicators.inbox(stored.inbox, now)
        yield indicators.dead_letters(stored.dead_letters, now)
        yield indicators.failed(stored.failed)
        yield indicators.replies(stored.outbox, now)
        yield indicators.lost_replies(stored)

    def purge(self, *, now: datetime) -> Iterator[int]:
        return canary.purge(now=now)

    def own_keys(self) -> Sequence[bytes]:
        return [identity.pub33 for identity in server_identities()]

    def has_clients_of(self, key: bytes) -> bool:
        return Grant.objects.filter(server_public_key=key).exists()

    def key_use(self) -> KeyUse:
        own = self.own_keys()
        others = "have granted none of these keys: senders do not find them"
        return KeyUse("installations", own, _count_by_newest_grant(), others)

    def knows_newest_clients(self, number: int) -> bool:
        granted = set(Grant.objects.order_by("-pk").values_list("server_public_key", flat=True)[:number])
        return not granted or any(identity.pub33 in granted for identity in server_identities())

    def tiles(self, stored: WakuFacts | None) -> Iterator[Tile]:
        inbox, outbox = (stored.inbox, stored.outbox) if stored else (None, None)
        state = indicators.state_of_inbox(inbox)
        yield Tile(indicators.INBOX, "Oldest envelope in the inbox", inbox, "waiting", state, indicators.INBOX_PAGE)
        state = indicators.state_of_outbox(outbox)
        yield Tile(indicators.REPLIES, "Oldest reply in the outbox", outbox, "waiting", state, indicators.OUTBOX_PAGE)


def clock_of(read: LastRead) -> dict[str, Complaint | None]:
    """Return the complaint about a node's clock by the id of its rule, or None where the clock is right.

    Return an empty dict where the node did not report the time. The finding of the config check stands then.
    """
    return {} if read.skew_seconds is None else {CLOCK: about_clock(read.skew_seconds)}


def _stores(*, is_blind: bool) -> Iterator[Store]:
    """Yield the stores by host. Complaints about a node that is read live belong to the node's own indicator."""
    urls: Sequence[str] = settings.WAKU_STORE_NODES
    notices = {} if is_blind else NOTICES.read(urls)
    read_live = set(map(host_of, settings.WAKU_NODES))
    rows = StoreWatermark.objects.filter(node__in=urls, pubsub_topic__in=settings.WAKU_PUBSUB_TOPICS)
    read_up_to = dict(rows.values_list("node").annotate(Min("watermark_at")))
    for host in dict.fromkeys(map(host_of, urls)):
        own = [url for url in urls if host_of(url) == host]
        known = [read_up_to[url] for url in own if url in read_up_to]
        seen = [] if host in read_live else own
        is_watched = is_blind or all(url in notices for url in seen)
        checked = [notices[url] for url in seen if url in notices]
        read = min(known) if len(known) == len(own) else None
        # What was read last was a minute old.
        has_answered_since = read is not None and all(read + MINUTE > notice.looked_at for notice in checked)
        found = [one for one in complaints(checked) if not (has_answered_since and one[0].id == UNREACHABLE)]
        yield Store(Peer(host, is_watched=is_watched, complaints=found), read)


def _failed(hour_ago: datetime) -> Failed:
    failed = InboundEnvelope.objects.filter(state=InboundEnvelope.State.FAILED)
    count = failed[:MAX_COUNTED].count()
    fault = faults.newest_waiting() if count else None
    lately = failed.filter(received_at__gte=hour_ago)[:MAX_COUNTED].count() if count else 0
    minute = {"received_at__gte": hour_ago + HOUR - MINUTE}
    newest = failed.filter(**minute)[:MAX_COUNTED].count() if lately else 0
    taken = NotificationRequest.objects.filter(**minute, bridge=BRIDGE)[:MAX_COUNTED].count() if newest else 0
    return Failed(count, lately, str(fault) if fault else "", fault.count if fault else 0, newest, taken)
