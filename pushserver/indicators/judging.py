"""The one list of health indicators, made of the facts of all apps. The module does no I/O: facts in, indicators out.

Readiness is judged by what the servers around us answered and the cache holds (`Reached`) alone, so that `/readyz`
answers within seconds whatever state the database is in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kit.health.indicators import Indicator, Kind, State
from pushserver.indicators import canaries, delivery, gorush, registrations, reports, server, waku, xmpp
from pushserver.indicators.canaries import Canary
from pushserver.indicators.delivery import DeliveryFacts
from pushserver.indicators.gorush import GorushFacts
from pushserver.indicators.peers import DATABASE_SILENT, Peer
from pushserver.indicators.registrations import Filling
from pushserver.indicators.reports import ReportsFacts
from pushserver.indicators.waku import WakuFacts
from pushserver.indicators.xmpp import XmppFacts

# Causes before effects: an earlier one may be the reason for a later one.
KINDS: tuple[Kind, ...] = (
    *server.KINDS,
    *(waku.NODE, waku.STORE, waku.INBOX, waku.DEAD_LETTERS, waku.FAILED),
    registrations.REGISTRATIONS,
    *(xmpp.XMPP, xmpp.XMPP_APPS, registrations.XMPP_DEVICES),
    *(delivery.SENDING, delivery.DELIVERY),
    *(gorush.GORUSH, gorush.REACH, delivery.CHANNELS, delivery.DEAD_TOKENS, gorush.RESULTS, gorush.UNKNOWN_ERRORS),
    *(delivery.ANSWERS, waku.REPLIES, waku.LOST_REPLIES),
    *(waku.CANARY, xmpp.CANARY),
    *reports.KINDS,
)
OF_XMPP = (xmpp.XMPP_APPS, registrations.XMPP_DEVICES)
FROM_DATABASE = [
    kind
    for kind in KINDS
    if not kind.decides_readiness and kind not in (server.DATABASE_SPEED, waku.CANARY, xmpp.CANARY)
]


@dataclass(frozen=True, slots=True)
class Reached:
    """What the servers around us answered and the cache holds. ``database``, ``broker`` and ``component`` say why
    each is of no use, and are empty where it is; ``component`` is None where there is no XMPP.

    ``incidents`` has since when each indicator is bad, as far as it was noted.
    """

    database: str = ""
    broker: str = ""
    queues: Sequence[server.Queue] = ()
    nodes: Sequence[Peer] = ()
    gorush_servers: Sequence[Peer] = ()
    component: str | None = None
    canary: Canary = field(default_factory=Canary)
    xmpp_canary: Canary = field(default_factory=Canary)
    incidents: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database knows. It is slow where it did not count in time what waits."""

    is_slow: bool = False
    counted_until: datetime | None = None
    waku: WakuFacts = field(default_factory=WakuFacts)
    delivery: DeliveryFacts = field(default_factory=DeliveryFacts)
    gorush: GorushFacts = field(default_factory=GorushFacts)
    xmpp: XmppFacts = field(default_factory=XmppFacts)
    registrations: Filling = field(default_factory=Filling)
    xmpp_devices: Filling = field(default_factory=Filling)
    reports: ReportsFacts = field(default_factory=ReportsFacts)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of one moment. ``stored`` is None while the database does not answer in time."""

    now: datetime
    reached: Reached
    stored: Stored | None


def judge(facts: Facts) -> list[Indicator]:
    """Return all indicators, causes before effects."""
    reached, stored = facts.reached, facts.stored
    is_slow = stored is None or stored.is_slow
    found = [*readiness(reached), server.database_speed(reached.database, is_slow=is_slow), *_canaries(facts)]
    if stored:
        found += _from_database(stored, facts)
    else:
        kinds = [kind for kind in FROM_DATABASE if kind not in OF_XMPP or reached.component is not None]
        found += [Indicator(kind, State.GREY, DATABASE_SILENT) for kind in kinds]
    return sorted(found, key=lambda indicator: KINDS.index(indicator.kind))


def readiness(reached: Reached) -> Iterator[Indicator]:
    """Yield the indicators that decide whether the server is ready."""
    is_redis_away = bool(reached.broker)
    yield server.database(reached.database)
    yield server.broker(reached.broker)
    yield server.workers(reached.queues, is_redis_away=is_redis_away)
    yield from waku.nodes(reached.nodes, is_redis_away=is_redis_away)
    if reached.component is not None:
        yield xmpp.connection(reached.component, is_redis_away=is_redis_away)
    yield from gorush.gorushes(reached.gorush_servers, is_redis_away=is_redis_away)


def _canaries(facts: Facts) -> Iterator[Indicator]:
    reached, is_redis_away = facts.reached, bool(facts.reached.broker)
    is_any_halted = bool(facts.stored and facts.stored.delivery.halted)
    known = {"is_redis_away": is_redis_away, "is_any_halted": is_any_halted}
    yield canaries.judge(waku.CANARY, reached.canary, **known)
    if reached.component is not None:
        yield canaries.judge(xmpp.CANARY, reached.xmpp_canary, **known)


def _from_database(stored: Stored, facts: Facts) -> Iterator[Indicator]:
    now, reached = facts.now, facts.reached
    yield server.beat(stored.counted_until, reached.queues, now)
    yield from (waku.store(store, now) for store in stored.waku.stores)
    yield waku.inbox(stored.waku.inbox, now)
    yield waku.dead_letters(stored.waku.dead_letters, now)
    yield waku.failed(stored.waku.failed)
    yield registrations.registrations(stored.registrations)
    yield delivery.sending(stored.delivery)
    yield delivery.delivery(stored.delivery.due, now)
    yield gorush.reach(stored.gorush.unreached_since, reached.gorush_servers)
    yield delivery.channels(stored.delivery)
    yield delivery.dead_tokens(stored.delivery.deaths_distrusted)
    yield gorush.results(stored.gorush)
    yield gorush.unknown_errors(stored.gorush.unknown_errors, now)
    yield delivery.answers(stored.delivery.overdue_seconds, now)
    yield waku.replies(stored.waku.outbox, now)
    yield waku.lost_replies(stored.waku, now)
    yield reports.reports(stored.reports)
    yield reports.anomalies(stored.reports)
    if reached.component is not None:
        yield xmpp.apps(stored.xmpp)
        yield registrations.xmpp_devices(stored.xmpp_devices)
