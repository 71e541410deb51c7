"""Breakers: what a channel's own sends say about its set-up.

They look at the newest sends of the channel since it last changed its state, all workers' together, and only when a
result gives reason to; so a fleet that works pays nothing for them.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.conf import settings

from notifications import channels
from notifications.messages import ChannelKey, Outcome, Result
from notifications.models import Attempt, Channel
from notifications.policy import is_dying, is_misconfigured

CONFIG_SAMPLE = 100
# The last hour, or of a busy channel the last this many sends.
DEAD_SAMPLE = 2000
DEAD_WINDOW = timedelta(hours=1)


def judge(results: Sequence[tuple[ChannelKey, Result]], known: channels.Known, *, now: datetime) -> set[ChannelKey]:
    """Trip the channels whose sends, these included, say so. Returns those whose guarded deaths are not believed."""
    guarded = {channel for channel, r in results if r.outcome is Outcome.DEAD and r.is_guarded}
    doubted = {channel for channel in guarded if _is_tripped(known.get(channel))}
    for channel in sorted(guarded - doubted):
        if _trip_when_dying(channel, known.get(channel), now=now):
            doubted.add(channel)
    for channel, codes in sorted(_config_codes(results).items()):  # every worker locks channels in this order
        if not _is_tripped(known.get(channel)):
            _trip_when_misconfigured(channel, codes, known.get(channel), now=now)
    return doubted


def _is_tripped(channel: Channel | None) -> bool:
    return channel is not None and channel.state == Channel.State.TRIPPED


def _config_codes(results: Iterable[tuple[ChannelKey, Result]]) -> dict[ChannelKey, str]:
    return {channel: result.code for channel, result in results if result.outcome is Outcome.CONFIG}


def _trip_when_dying(key: ChannelKey, channel: Channel | None, *, now: datetime) -> bool:
    newest = _newest(key, channel, window=DEAD_WINDOW, limit=DEAD_SAMPLE, now=now)
    dead = sum(is_guarded and outcome == Outcome.DEAD for outcome, is_guarded in newest)
    if not is_dying(dead, len(newest), share=settings.DEAD_TOKEN_SHARE):
        return False
    return _trip(key, f"{dead} of {len(newest)} sends found a dead token", now=now)


def _trip_when_misconfigured(key: ChannelKey, code: str, channel: Channel | None, *, now: datetime) -> None:
    window = timedelta(seconds=settings.CONFIG_TRIP_SECONDS)
    newest = _newest(key, channel, window=window, limit=CONFIG_SAMPLE, now=now)
    outcomes = [outcome for outcome, _ in newest]
    if is_misconfigured(outcomes, minimum=settings.CONFIG_TRIP_COUNT):
        _trip(key, f"{outcomes.count(Outcome.CONFIG)} of {len(outcomes)} sends refused: {code}", now=now)


def _trip(key: ChannelKey, reason: str, *, now: datetime) -> bool:
    """Whether it is tripped now, by this or by another worker."""
    if not channels.is_worth_a_row(key):
        return False
    return channels.trip(key, reason=reason, now=now).after == Channel.State.TRIPPED


def _newest(
    key: ChannelKey, channel: Channel | None, *, window: timedelta, limit: int, now: datetime
) -> list[tuple[str, bool]]:
    """Outcome and ``is_guarded`` of the newest sends, the newest first."""
    start = now - window if channel is None else max(now - window, channel.since)
    sends = Attempt.objects.filter(**key._asdict(), started_at__gte=start, outcome__isnull=False)
    return [
        (outcome or "", guarded)
        for outcome, guarded in sends.order_by("-started_at", "-pk").values_list("outcome", "is_guarded")[:limit]
    ]
