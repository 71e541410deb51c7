"""Waku for operators: its indicators, pages and metrics, and the keys of this server that clients know."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, LiteralString

from django.conf import settings
from django.db.models import Min

from kit.db.base import fetch, table
from kit.db.clock import HOUR, MINUTE
from kit.db.partitions import UNDER_WAY
from kit.display import host_of
from notifications.models import NotificationRequest
from pushserver.console.canary.waku import canary
from pushserver.console.checks.engine import complaints
from pushserver.console.checks.nodes import CLOCK, NOTICES, about_clock, configured
from pushserver.console.checks.peers import UNREACHABLE, Complaint, Peer
from pushserver.console.health.verdicts import Facts
from pushserver.console.part import KeyUse, ListPage, Part, PeerPage
from pushserver.console.waku import metrics
from pushserver.console.waku.indicators import KINDS, NODES_PAGE, Failed, Store, many_lost_replies
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
# A reply counts in the minute in which the message came that it answers. One that was published again has only the
# time of its last publication, so it gives no latency. `OFFSET` has PostgreSQL find each reply by its key.
REPLIES: LiteralString = f"""
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


# Facts ----------------------------------------------------------------------------------------------------------------
def reach(facts: Facts) -> Mapping[str, Any]:
    """Return the nodes, each with whether it was read lately, and the last run of the canary.

    ``bridge_seconds`` is the time since the last statement of the bridge. It is infinite without a bridge, and missing
    while PostgreSQL does not answer.
    """
    is_blind = bool(facts["broker"])
    read = {} if is_blind else LAST_READ.read_all(settings.WAKU_NODES)
    is_up = {url: url in read for url in settings.WAKU_NODES}
    nodes = NOTICES.peers(is_up, is_blind=is_blind, seen={url: clock_of(found) for url, found in read.items()})
    silent = {"bridge_seconds": facts["leaders"].get(LEADER, inf)} if "leaders" in facts else {}
    return {"nodes": list(nodes), "canary": canary.facts(is_blind=is_blind), **silent}


def clock_of(read: LastRead) -> dict[str, Complaint | None]:
    """Return the complaint about a node's clock by the id of its rule, or None where the clock is right.

    Return an empty dict where the node did not report the time. The finding of the config check stands then.
    """
    return {} if read.skew_seconds is None else {CLOCK: about_clock(read.skew_seconds)}


def read(facts: Facts) -> Mapping[str, Any]:
    """Return the stores, and the numbers of messages and replies of the last hour that went wrong."""
    hour_ago = facts["now"] - HOUR
    _, replies = facts["hour"].of_bridge(BRIDGE)
    limit = max(MAX_COUNTED, many_lost_replies(replies))
    return {
        "stores": list(_stores(is_blind=bool(facts["broker"]))),
        "dead-letters": DeadLetter.objects.filter(received_at__gte=hour_ago)[:MAX_COUNTED].count(),
        "failed": _failed(hour_ago),
        "replies_sent": replies,
        # A partial index holds exactly these rows.
        "lost-replies": OutboundReply.objects.filter(LOST_REPLIES, created_at__gte=hour_ago)[:limit].count(),
    }


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


# Keys -----------------------------------------------------------------------------------------------------------------
def own_keys() -> list[bytes]:
    """Return the public keys of this server, that of new clients first."""
    return [identity.pub33 for identity in server_identities()]


def has_clients_of(key: bytes) -> bool:
    """Return whether any client has granted this key."""
    return Grant.objects.filter(server_public_key=key).exists()


def key_use() -> KeyUse:
    """Return by server key (33 bytes) the number of registered installations whose newest grant is for that server."""
    counts = {bytes(public_key): number for public_key, number in fetch(COUNT_BY_NEWEST_GRANT)}
    return KeyUse("installations", own_keys(), counts, "have granted none of these keys: senders do not find them")


def knows_newest_clients(number: int) -> bool:
    """Return whether any of the newest grants is for a key that this server still has."""
    granted = set(Grant.objects.order_by("-pk").values_list("server_public_key", flat=True)[:number])
    return not granted or not granted.isdisjoint(own_keys())


WAKU = Part(
    name=BRIDGE,
    label="Waku",
    is_bridge=True,
    app_label="waku_bridge",
    kinds=KINDS,
    canary=canary,
    reach=reach,
    read=read,
    gauges=(
        *(metrics.INBOX_DEPTH, metrics.INBOX_OLDEST_AGE_SECONDS),
        *(metrics.REPLIES_PENDING, metrics.REPLIES_OLDEST_AGE_SECONDS),
    ),
    replies=REPLIES,
    admin_module="pushserver.console.waku.admin",
    metric_modules={
        "The bridge, the inbox and replies": "waku_bridge.metrics",
        "Nodes and the canary of Waku": "pushserver.console.waku.metrics",
    },
    own_keys=own_keys,
    has_clients_of=has_clients_of,
    key_use=key_use,
    knows_newest_clients=knows_newest_clients,
    peer_page=PeerPage(
        title=NODES_PAGE.title,
        icon="hub",
        url_name=NODES_PAGE.url_name,
        path="nodes",
        urls=configured,
        notices=NOTICES,
        kinds=["node", "store"],
        nothing="No Waku node is configured: set WAKU_NODES.",
    ),
    list_pages=(
        ListPage(SECTION, "Envelopes", "mail", "waku_bridge.inboundenvelope"),
        ListPage(SECTION, "Envelope faults", "bug_report", "waku_bridge.envelopefault"),
        ListPage(SECTION, "Replies", "reply", "waku_bridge.outboundreply"),
        ListPage(SECTION, "Dead letters", "dangerous", "waku_bridge.deadletter"),
        ListPage("Rarely used", "Store watermarks", "water", "waku_bridge.storewatermark"),
    ),
)
