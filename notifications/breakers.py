"""Breakers: what a channel's own sends say about its set-up.

They read the newest sends of the channel since it last changed its state, those of all workers together, and only when
a result gives reason to. So a fleet that works pays nothing for them.

Anybody can register made-up tokens and have them sent to. So in a channel that was delivered to, only those sends count
whose address was delivered to as well, and failures that a few senders asked for say nothing. In a channel that nothing
was delivered to, which a stranger may stop and harm nobody, all sends count but those whose failure may be the token's.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from kit.db.statements import fetch
from notifications import channels
from notifications.delivery.claim import Claim
from notifications.messages import ChannelKey, Outcome, Result
from notifications.models import Channel
from notifications.policy import MIN_SENDERS, is_dying, is_misconfigured

CONFIG_SAMPLE = 100
# The dead are counted in the sends of the last hour, or of a busy channel in this many of the newest.
DEAD_SAMPLE = 2000
DEAD_WINDOW = timedelta(hours=1)
# Of so many times the sample the sends that count are picked, so that a flood of others costs no more than that.
LOOKED_THROUGH = 5


class Send(NamedTuple):
    """The result of one send. ``sender_digest`` is None for requests that are older than it."""

    outcome: str
    is_guarded: bool
    sender_digest: bytes | None


def judge(results: Sequence[tuple[Claim, Result]], known: channels.Known, *, now: datetime) -> set[ChannelKey]:
    """Trip the channels whose sends, these included, say so. Return the channels whose guarded
    deaths are not believed.
    """
    dead = [(claim, result) for claim, result in results if result.outcome is Outcome.DEAD and result.is_guarded]
    guarded = {claim.channel for claim, _ in dead}
    telling = {claim.channel for claim, _ in dead if claim.is_route_proven or not _is_proven(known.get(claim.channel))}
    doubted = {channel for channel in guarded if _is_tripped(known.get(channel))}
    for channel in sorted(telling - doubted):
        if _trip_when_dying(channel, known.get(channel), now=now):
            doubted.add(channel)
    # Every worker locks channels in this order, so that none waits in a circle.
    for channel, codes in sorted(_config_codes(results, known).items()):
        if not _is_tripped(known.get(channel)):
            _trip_when_misconfigured(channel, codes, known.get(channel), now=now)
    return doubted


def _is_tripped(channel: channels.ChannelRow | None) -> bool:
    return channel is not None and channel.state == Channel.State.TRIPPED


def _is_proven(channel: channels.ChannelRow | None) -> bool:
    return channel is not None and channel.last_success_at is not None


def _config_codes(results: Iterable[tuple[Claim, Result]], known: channels.Known) -> dict[ChannelKey, str]:
    """Return the newest code of each channel refused for its set-up. What was not even tried says nothing about it."""
    refused = [(c, r) for c, r in results if r.outcome is Outcome.CONFIG and not r.is_untried]
    return {
        claim.channel: result.code
        for claim, result in refused
        if claim.is_route_proven or not (result.is_guarded or _is_proven(known.get(claim.channel)))
    }


def _trip_when_dying(key: ChannelKey, channel: channels.ChannelRow | None, *, now: datetime) -> bool:
    newest = _newest(key, channel, window=DEAD_WINDOW, limit=DEAD_SAMPLE, now=now)
    dead = [send for send in newest if send.is_guarded and send.outcome == Outcome.DEAD]
    if not is_dying(len(dead), len(newest), share=settings.DEAD_TOKEN_SHARE) or not _are_many(dead):
        return False
    return _trip(key, f"{len(dead)} of {len(newest)} sends found a dead token", now=now)


def _trip_when_misconfigured(key: ChannelKey, code: str, channel: channels.ChannelRow | None, *, now: datetime) -> None:
    window = timedelta(seconds=settings.CONFIG_TRIP_SECONDS)
    newest = _newest(key, channel, window=window, limit=CONFIG_SAMPLE, now=now)
    outcomes = [send.outcome for send in newest]
    refused = [send for send in newest if send.outcome == Outcome.CONFIG]
    if is_misconfigured(outcomes, minimum=settings.CONFIG_TRIP_COUNT) and _are_many(refused):
        _trip(key, f"{len(refused)} of {len(outcomes)} sends refused: {code}", now=now)


def _are_many(sends: Sequence[Send]) -> bool:
    """Return whether more than a few senders asked for these."""
    digests = [send.sender_digest for send in sends]
    senders = len({digest for digest in digests if digest}) + digests.count(None)
    return senders >= min(MIN_SENDERS, settings.CONFIG_TRIP_COUNT)


def _trip(key: ChannelKey, reason: str, *, now: datetime) -> bool:
    """Trip a channel, and return whether it is tripped now, by this or by another worker."""
    if not channels.is_worth_a_row(key):
        return False
    return channels.trip(key, reason=reason, now=now).after == Channel.State.TRIPPED


_NEWEST = """
    SELECT attempt.outcome, attempt.is_guarded, request.sender_digest
    FROM (
        SELECT id, notification_id, outcome, is_guarded, started_at FROM notifications_attempt
        WHERE token_type = %(token_type)s AND apn_topic = %(apn_topic)s AND started_at >= %(start)s
            AND outcome IS NOT NULL
        ORDER BY started_at DESC, id DESC LIMIT %(looked_through)s
    ) AS attempt
    JOIN notifications_notification AS n ON n.id = attempt.notification_id
    JOIN notifications_notificationrequest AS request ON request.id = n.request_id
    LEFT JOIN registrations_route AS route ON route.id = n.route_id
    WHERE route.is_proven
        OR NOT %(is_proven)s AND NOT (attempt.outcome = 'config' AND attempt.is_guarded)
    ORDER BY attempt.started_at DESC, attempt.id DESC LIMIT %(limit)s
"""


def _newest(
    key: ChannelKey, channel: channels.ChannelRow | None, *, window: timedelta, limit: int, now: datetime
) -> list[Send]:
    """Return the newest sends that count, the newest first."""
    parameters = {
        **key._asdict(),
        "start": now - window if channel is None else max(now - window, channel.since),
        "looked_through": limit * LOOKED_THROUGH,
        "is_proven": _is_proven(channel),
        "limit": limit,
    }
    return [Send._make(row) for row in fetch(_NEWEST, parameters)]
