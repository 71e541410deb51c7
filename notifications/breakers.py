"""Breakers: what an app's own sends say about its set-up.

They judge errors of configuration, for which an operator must act. Dead tokens trip nothing (`deaths`). They read the
newest sends of the app since a halt of it ended last, those of all workers together, and only when a result gives
reason to. So a fleet that works pays nothing for them.

Anybody can register made-up tokens and have them sent to. So only sends to proven addresses count, and failures that a
few senders asked for, or that a few addresses met, say nothing. Apps that nothing was delivered to share their queue,
and have no breaker.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from kit.db.statements import fetch, table
from notifications import halts
from notifications.delivery.claim import Claim
from notifications.messages import ChannelKey, Outcome, Result
from notifications.policy import MIN_SENDERS, is_misconfigured
from notifications.queues import Queues
from registrations.models import Route

CONFIG_SAMPLE = 100
# Of so many times the sample the sends that count are picked, so that a flood of others costs no more than that.
LOOKED_THROUGH = 5


class Send(NamedTuple):
    """The result of one send. ``sender_digest`` is None for requests that are older than it."""

    outcome: str
    sender_digest: bytes | None
    address_digest: bytes


def judge(results: Iterable[tuple[Claim, Result]], known: Queues, *, now: datetime) -> None:
    """Trip the apps whose sends, these included, say so."""
    # Every worker writes halts in this order, so that none waits in a circle.
    for app, code in sorted(_config_codes(results, known).items()):
        if app not in known.tripped:
            _trip_when_misconfigured(app, code, now=now)


def _config_codes(results: Iterable[tuple[Claim, Result]], known: Queues) -> dict[ChannelKey, str]:
    """Return the newest code of each app refused for its set-up. What was not even tried says nothing about it."""
    return {
        claim.channel: result.code
        for claim, result in results
        if result.outcome is Outcome.CONFIG and not result.is_untried
        if claim.is_route_proven and claim.channel in known.delivered
    }


def _trip_when_misconfigured(app: ChannelKey, code: str, *, now: datetime) -> None:
    newest = _newest(app, now=now)
    outcomes = [send.outcome for send in newest]
    refused = [send for send in newest if send.outcome == Outcome.CONFIG]
    if is_misconfigured(outcomes, minimum=settings.CONFIG_TRIP_COUNT) and _are_many(refused):
        halts.trip(app, reason=f"{len(refused)} of {len(outcomes)} sends refused: {code}", now=now)


def _are_many(sends: Sequence[Send]) -> bool:
    """Return whether more than a few senders asked for these, and for more than a few addresses."""
    digests = [send.sender_digest for send in sends]
    senders = len({digest for digest in digests if digest}) + digests.count(None)
    addresses = len({send.address_digest for send in sends})
    return min(senders, addresses) >= min(MIN_SENDERS, settings.CONFIG_TRIP_COUNT)


_NEWEST = f"""
    SELECT attempt.outcome, request.sender_digest, route.address_digest
    FROM (
        SELECT id, notification_id, outcome, started_at FROM notifications_attempt
        WHERE token_type = %(token_type)s AND apn_topic = %(apn_topic)s AND outcome IS NOT NULL
            AND started_at >= greatest(%(start)s, (
                SELECT judged_from FROM notifications_channel
                WHERE token_type = %(token_type)s AND apn_topic = %(apn_topic)s
            ))
        ORDER BY started_at DESC, id DESC LIMIT %(looked_through)s
    ) AS attempt
    JOIN notifications_notification AS n ON n.id = attempt.notification_id
    JOIN notifications_notificationrequest AS request ON request.id = n.request_id
    JOIN {table(Route)} AS route ON route.id = n.route_id
    WHERE route.is_proven
    ORDER BY attempt.started_at DESC, attempt.id DESC LIMIT %(limit)s
"""


def _newest(app: ChannelKey, *, now: datetime) -> list[Send]:
    """Return the newest sends that count, the newest first."""
    parameters = {
        **app._asdict(),
        "start": now - timedelta(seconds=settings.CONFIG_TRIP_SECONDS),
        "looked_through": CONFIG_SAMPLE * LOOKED_THROUGH,
        "limit": CONFIG_SAMPLE,
    }
    return [Send._make(row) for row in fetch(_NEWEST, parameters)]
