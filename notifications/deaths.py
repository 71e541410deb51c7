"""Deaths that are not believed. A wrong set-up makes Apple and Google refuse tokens that are fine as dead.

When too many different proven tokens of an app are refused so, none is believed any more: routes stay, and their pushes
are sent again later. Nothing is halted, so that an app whose set-up is right again needs nobody. It ends when the share
of refused tokens falls, which the pushes that are sent again bring about.

Tokens are counted, not sends, and only proven ones: a stranger has as many of these as phones. While nothing was
delivered to an app, all its tokens count.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import structlog
from django.conf import settings

from kit.db.statements import fetch, table
from notifications.delivery.claim import Claim
from notifications.messages import ChannelKey, Outcome, Result
from notifications.models import Attempt, Channel
from notifications.policy import is_dying
from notifications.queues import Queues
from registrations.models import Route

log = structlog.get_logger(__name__)
WINDOW = timedelta(hours=1)
# Of an app that sends more within the window the newest sends are looked through.
LOOKED_THROUGH = 10_000

# Of each token what was said of it last. A death that is not believed comes again, which is noted at its first attempt.
_COUNT = f"""
    SELECT count(*) FILTER (WHERE is_dead), count(*) FROM (
        SELECT DISTINCT ON (route.address_digest) attempt.outcome = '{Attempt.Outcome.DEAD}'
            AND attempt.is_guarded AS is_dead
        FROM (
            (
                SELECT notification_id, outcome, is_guarded, started_at AS at, id FROM notifications_attempt
                WHERE token_type = %(token_type)s AND apn_topic = %(apn_topic)s AND outcome IS NOT NULL
                    AND started_at >= %(start)s
                ORDER BY started_at DESC LIMIT %(limit)s
            ) UNION ALL (
                SELECT notification_id, outcome, is_guarded, repeated_at, id FROM notifications_attempt
                WHERE token_type = %(token_type)s AND apn_topic = %(apn_topic)s AND outcome = '{Attempt.Outcome.DEAD}'
                    AND repeated_at >= %(start)s
                ORDER BY repeated_at DESC LIMIT %(limit)s
            )
        ) AS attempt
        JOIN notifications_notification AS n ON n.id = attempt.notification_id
        JOIN {table(Route)} AS route ON route.id = n.route_id
        WHERE route.is_proven OR NOT %(is_delivered)s
        ORDER BY route.address_digest, attempt.at DESC, attempt.id DESC
    ) AS token
"""


def judge(results: Sequence[tuple[Claim, Result]], known: Queues, *, now: datetime) -> set[ChannelKey]:
    """Return the apps whose tokens are not believed to be dead. The results of the batch are stored already."""
    dead = [claim for claim, result in results if is_guarded_death(result)]
    telling = {claim.channel for claim in dead if claim.is_route_proven or claim.channel not in known.delivered}
    mending = known.doubted & {c.channel for c, r in results if r.outcome is Outcome.DELIVERED and not r.is_dry_run}
    judged = {app: _is_doubtful(app, known, now=now) for app in sorted(mending | (telling - known.doubted))}
    _note_doubted([app for app, is_so in judged.items() if is_so and app not in known.doubted], now=now)
    _note_believed([app for app, is_so in judged.items() if not is_so and app in known.doubted])
    return {app for app in {claim.channel for claim in dead} if judged.get(app, app in known.doubted)}


def is_guarded_death(result: Result) -> bool:
    """Return whether a token was refused as dead by a verdict that a wrong set-up gives, too."""
    return result.outcome is Outcome.DEAD and result.is_guarded


def _is_doubtful(app: ChannelKey, known: Queues, *, now: datetime) -> bool:
    parameters = {"start": now - WINDOW, "limit": LOOKED_THROUGH, "is_delivered": app in known.delivered}
    [(dead, all_)] = fetch(_COUNT, app._asdict() | parameters)
    return is_dying(dead, all_, share=settings.DEAD_TOKEN_SHARE)


def _note_doubted(apps: Iterable[ChannelKey], *, now: datetime) -> None:
    for app in apps:
        if Channel.objects.filter(**app._asdict(), deaths_doubted_since=None).update(deaths_doubted_since=now):
            log.error("deaths_doubted", **app._asdict())


def _note_believed(apps: Iterable[ChannelKey]) -> None:
    for app in apps:
        Channel.objects.filter(**app._asdict()).update(deaths_doubted_since=None)
        log.info("deaths_believed_again", **app._asdict())
