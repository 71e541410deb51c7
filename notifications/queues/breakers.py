"""What failures say about an app and its addresses: trips, whether dead tokens are believed, disabled routes.

The circuit breaker of an app trips it when it delivers nothing. It does not judge what the gateway answered, because
nobody knows all words of Apple, Google and the proxies on the way. It reads the newest sends of the app since its last
halt, those of all workers together, and only when a result gives reason to. So a fleet that works pays nothing for it.
Failures of a few senders or at a few addresses do not count. Apps without any delivery share a queue and have no
breaker.

Dead tokens trip nothing. With a wrong set-up, Apple and Google refuse good tokens as dead. When too many different
proven tokens of an app are refused as dead, no death is believed: the routes stay active, and their pushes are sent
again later. The app is not halted, so that it recovers without an operator. Deaths are believed again when the share of
refused tokens falls, as the repeated pushes show. Until the first delivery to an app, all its tokens count.

Anybody can register made-up tokens and have pushes sent to them. So only proven addresses count, and each dead token
counts once: an attacker has as many proven tokens as phones.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import LiteralString, NamedTuple

import structlog
from django.db.models import Case, DateTimeField, DurationField, ExpressionWrapper, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce, Least

from kit.db.base import fetch, table
from kit.telemetry import count
from notifications.messages import ANSWERS, DEVICE_LIMITED, DRY_RUN, FAILURES, AppKey, Outcome, Result
from notifications.metrics import ROUTES_DISABLED
from notifications.policy import delivers_nothing, is_dying
from notifications.queues import halts, queues
from notifications.queues.claim import Claim
from notifications.queues.queues import Queues
from registrations.models import RegistrationEvent, Route

log = structlog.get_logger(__name__)

# The sends of an app that are judged: the newest ones that ended within this time.
JUDGED_WITHIN = timedelta(minutes=5)
SAMPLE = 100
# The sends that count are picked among this multiple of the sample, which bounds the cost of a flood of others.
LOOKED_THROUGH = 5
# No send takes longer. It bounds the days that are read.
LONGEST_SEND_SECONDS = 600
ANSWERED: LiteralString = ", ".join(f"'{outcome}'" for outcome in ANSWERS)
DEATHS_WINDOW = timedelta(hours=1)
# The number of newest sends that are read of an app that sends more within the window.
DEATHS_LOOKED_THROUGH = 10_000


# Apps that deliver nothing --------------------------------------------------------------------------------------------


class Send(NamedTuple):
    """The result of one send that failed."""

    code: str
    error: str
    sender_digest: bytes
    address_digest: bytes


def trip_what_delivers_nothing(results: Iterable[tuple[Claim, Result]], known: Queues, *, now: datetime) -> None:
    """Trip the apps whose newest sends, these included, all failed."""
    failed = {claim.app for claim, result in results if claim.is_route_proven and _counts(result)}
    # Every worker writes halts in this order, so that none waits in a circle.
    for app in sorted(failed & known.delivered.keys() - known.tripped):
        sends = _failed_in_a_row(app, now=now)
        if delivers_nothing([send.address_digest for send in sends], [send.sender_digest for send in sends]):
            halts.begin(halts.Kind.TRIPPED, app, reason=_reason(sends), now=now)


def _counts(result: Result) -> bool:
    """Return whether a result may show that the app delivers nothing. `_FAILED_IN_A_ROW` has the same condition."""
    is_sent = not (result.is_untried or result.is_unreached)
    return is_sent and result.outcome in FAILURES and result.code != DEVICE_LIMITED


def _reason(failed: Sequence[Send]) -> str:
    """Return how many sends failed, with their commonest answer. Its text is redacted: see `Result.error`."""
    [((code, error), _)] = Counter((send.code, send.error) for send in failed).most_common(1)
    return f"the last {len(failed)} sends failed: {code}" + (f" ({error})" if error else "")


# In the order in which the sends ended. Pushes that end long after others that began later are no newer news. The
# notifications of sends before the last answer are not read: mostly there are none of later ones.
_FAILED_IN_A_ROW = f"""
    WITH newest AS MATERIALIZED (
        SELECT id, notification_id, outcome, code, error, ended_at FROM notifications_endedattempt
        WHERE token_type = %(token_type)s AND app_topic = %(app_topic)s AND ended_at >= %(start)s
            AND began_at IS NOT NULL AND code NOT IN ('{DRY_RUN}', '{DEVICE_LIMITED}')
            AND started_at >= greatest(%(start)s - interval '{LONGEST_SEND_SECONDS} seconds', (
                SELECT judged_from FROM notifications_channel
                WHERE token_type = %(token_type)s AND app_topic = %(app_topic)s
            ))
        ORDER BY started_at DESC, id DESC LIMIT %(looked_through)s
    )
    SELECT failed.code, failed.error, request.sender_digest, route.address_digest
    FROM newest AS failed
    JOIN notifications_notification AS n
        ON n.id = failed.notification_id AND n.ended_on >= %(start)s::date - 1
    LEFT JOIN notifications_notificationrequest AS request
        ON request.id = n.request_id AND request.ended_on >= (n.created_at - interval '1 day')::date
    JOIN {table(Route)} AS route ON route.id = n.route_id AND route.is_proven
    WHERE failed.ended_at > coalesce(
        (SELECT max(ended_at) FROM newest WHERE outcome IN ({ANSWERED})), '-infinity'
    )
    ORDER BY failed.ended_at DESC, failed.id DESC LIMIT %(limit)s
"""


def _failed_in_a_row(app: AppKey, *, now: datetime) -> list[Send]:
    """Return the newest sends that failed without an answer between them, the last ended first."""
    parameters = {
        **app._asdict(),
        "start": now - JUDGED_WITHIN,
        "looked_through": SAMPLE * LOOKED_THROUGH,
        "limit": SAMPLE,
    }
    return [Send._make(row) for row in fetch(_FAILED_IN_A_ROW, parameters)]


# Dead tokens ----------------------------------------------------------------------------------------------------------

# Of each token what was said of it last.
_COUNT_DEAD = f"""
    SELECT count(*) FILTER (WHERE is_dead), count(*) FROM (
        SELECT DISTINCT ON (route.address_digest) attempt.outcome = '{Outcome.DEAD}'
            AND attempt.is_guarded AS is_dead
        FROM (
            SELECT notification_id, outcome, is_guarded, started_at AS at, id FROM notifications_endedattempt
            WHERE token_type = %(token_type)s AND app_topic = %(app_topic)s AND outcome IS NOT NULL
                AND started_at >= %(start)s
            ORDER BY started_at DESC LIMIT %(limit)s
        ) AS attempt
        JOIN notifications_notification AS n ON n.id = attempt.notification_id AND n.ended_on >= %(start)s::date - 1
        JOIN {table(Route)} AS route ON route.id = n.route_id
        WHERE route.is_proven OR NOT %(is_delivered)s
        ORDER BY route.address_digest, attempt.at DESC, attempt.id DESC
    ) AS token
"""


def find_distrusted(results: Sequence[tuple[Claim, Result]], known: Queues, *, now: datetime) -> set[AppKey]:
    """Return the apps whose tokens are not believed to be dead. The results of the batch are stored already."""
    dead = [claim for claim, result in results if is_guarded_death(result)]
    telling = {claim.app for claim in dead if claim.is_route_proven or claim.app not in known.delivered}
    mending = known.distrusted & {c.app for c, r in results if r.outcome is Outcome.DELIVERED and not r.is_dry_run}
    judged = {
        app: _are_deaths_distrusted(app, known, now=now) for app in sorted(mending | (telling - known.distrusted))
    }
    for app, is_so in judged.items():
        row = queues.unlocked(app).filter(deaths_distrusted_since__isnull=is_so)
        if is_so == (app in known.distrusted) or not row.update(deaths_distrusted_since=now if is_so else None):
            continue
        if is_so:
            log.error("deaths_distrusted", **app._asdict())
        else:
            log.info("deaths_believed_again", **app._asdict())
    return {app for app in {claim.app for claim in dead} if judged.get(app, app in known.distrusted)}


def is_guarded_death(result: Result) -> bool:
    """Return whether a token was refused as dead by a verdict that a wrong set-up gives, too."""
    return result.outcome is Outcome.DEAD and result.is_guarded


def _are_deaths_distrusted(app: AppKey, known: Queues, *, now: datetime) -> bool:
    parameters = {"start": now - DEATHS_WINDOW, "limit": DEATHS_LOOKED_THROUGH, "is_delivered": app in known.delivered}
    [(dead, all_)] = fetch(_COUNT_DEAD, app._asdict() | parameters)
    return is_dying(dead, all_)


# Routes that are disabled ---------------------------------------------------------------------------------------------

# Dead ones are disabled at once, failing ones after days. The clock of a failing route ignores its provider's outages.
# The time between two of its failures counts only when the app delivered something in between. Then it counts for
# at most MAX_COUNTED, because a route without an attempt for longer may have been fine. All other time moves
# `failing_since` forward. During an outage nothing of the app is delivered, so it stops the clocks of all its
# routes at the first failure after its last success.

MAX_COUNTED = timedelta(hours=6)
FAILING = "failing"
BY_OPERATOR = "operator"
# A route that fails for this long, while other routes of its app work, is disabled.
FAILING_AFTER = timedelta(hours=72)
Kind = RegistrationEvent.Kind
_REASONS = {Kind.TOKEN_DIED: "dead", Kind.EXPIRED: "failing"}


def note_failure(route_ids: Iterable[int], *, app_success_at: datetime | None, now: datetime) -> None:
    """Advance the clocks of these routes of one app, and disable those that have failed for too long."""
    routes = Route.objects.filter(pk__in=set(route_ids))
    routes.filter(failing_since__isnull=False).update(
        failing_since=F("failing_since") + _uncounted(app_success_at, now), last_failure_at=now
    )
    routes.filter(failing_since__isnull=True).update(failing_since=now, last_failure_at=now)
    _disable(routes.filter(failing_since__lte=now - FAILING_AFTER), FAILING, Kind.EXPIRED, now=now)


def _uncounted(app_success_at: datetime | None, now: datetime) -> Case:
    """Return the part of the time since the last failure that does not count against the route."""
    since_last = ExpressionWrapper(Value(now, DateTimeField()) - F("last_failure_at"), DurationField())
    counted = Least(since_last, Value(MAX_COUNTED, DurationField()))
    did_others_arrive = Q(last_failure_at__lt=app_success_at) if app_success_at else Q(pk__in=[])
    return Case(
        When(did_others_arrive, then=ExpressionWrapper(since_last - counted, DurationField())),
        default=since_last,
        output_field=DurationField(),
    )


def disable_dead(route_id: int, generation: int, address_digest: bytes, code: str, *, now: datetime) -> None:
    """Disable a route whose token is dead, if its address is still the one of the push.

    The client may have registered a new token meanwhile. After a fail-over, another route may have the id.
    """
    dead = Route.objects.filter(pk=route_id, generation=generation, address_digest=address_digest)
    _disable(dead, code, Kind.TOKEN_DIED, now=now)


def _disable(routes: QuerySet[Route], reason: str, kind: RegistrationEvent.Kind, *, now: datetime) -> None:
    ids = list(routes.filter(state=Route.State.ACTIVE).select_for_update(no_key=True).values_list("pk", flat=True))
    if ids:
        Route.objects.filter(pk__in=ids).update(state=Route.State.DISABLED, disabled_reason=reason, disabled_at=now)
        record_events(ids, kind, now=now)
        count(ROUTES_DISABLED, {(_REASONS[kind],): len(ids)})


def record_events(route_ids: Collection[int], kind: RegistrationEvent.Kind, *, now: datetime) -> None:
    """Write an event about each of these routes, under the pseudonym of its registration or else its own."""
    named = Coalesce("registration__pseudonym", "pseudonym")
    routes = Route.objects.filter(pk__in=route_ids).order_by("pk").annotate(named=named)
    RegistrationEvent.objects.bulk_create(
        RegistrationEvent.about(route, kind, pseudonym=route.named, at=now)
        for route in routes.only("token_type", "app_topic", "bridge")
        if route.named
    )
