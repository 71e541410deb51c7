"""Preview of a rule: what it would have decided in the last day, counted from the error texts of failed attempts.

The texts contain no data of one device, so a rule about such data finds nothing here. Of very many failures only the
newest are read.
"""

from datetime import datetime, timedelta
from math import inf
from typing import LiteralString

from django.db import OperationalError, connection, transaction

from kit.db.base import fetch
from kit.display import counted
from notifications.gateways.gorush.errors import ErrorRule, classify, rule_of
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.messages import Outcome

LOOKED_BACK = timedelta(hours=24)
MAX_LOOKED_AT = 100_000
TIMEOUT = "2s"

_FAILED: LiteralString = f"""
    WITH failed AS (
        SELECT notification_id, token_type, error FROM notifications_endedattempt
        WHERE outcome IN ('{Outcome.DEAD}', '{Outcome.CONFIG}', '{Outcome.PAYLOAD}',
            '{Outcome.TRANSIENT}', '{Outcome.AMBIGUOUS}') AND error <> ''
            AND started_at >= %(since)s
            AND id >= coalesce((
                SELECT id FROM notifications_endedattempt WHERE started_at >= %(since)s - interval '5 minutes'
                ORDER BY started_at LIMIT 1
            ), 0)
        ORDER BY id DESC LIMIT %(limit)s
    )
"""
_TEXTS: LiteralString = f"{_FAILED} SELECT token_type, error, count(*) FROM failed GROUP BY 1, 2"
_ROUTES: LiteralString = f"""
    {_FAILED}
    SELECT count(DISTINCT notification.route_id) FROM failed
    JOIN unnest(%(types)b::smallint[], %(errors)b::text[]) AS decided (token_type, error) USING (token_type, error)
    JOIN notifications_notification AS notification ON notification.id = failed.notification_id
        AND notification.ended_on >= %(since)s::date - 1
"""
NOT_KNOWN = "The number of matches is not known: the database takes too long to answer."


def preview(rule: GatewayErrorRule, *, now: datetime) -> str:
    """Return in words what this rule would have decided, at its place among the present rules."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = '{TIMEOUT}'")
            found = _count(rule, now=now)
            # The caller's transaction goes on, with the usual timeout.
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
            return found
    except OperationalError:
        return NOT_KNOWN


def _count(rule: GatewayErrorRule, *, now: datetime) -> str:
    looked_at = {"since": now - LOOKED_BACK, "limit": MAX_LOOKED_AT}
    texts = fetch(_TEXTS, looked_at)
    own = rule_of(rule)
    rules = _with(rule, own)
    decided = [row for row in texts if classify(row[0], row[1], rules) is own]
    types, errors = [row[0] for row in decided], [row[1] for row in decided]
    [(routes,)] = fetch(_ROUTES, {**looked_at, "types": types, "errors": errors}) if decided else [(0,)]
    is_partial = sum(row[2] for row in texts) >= MAX_LOOKED_AT
    among = f" (among the newest {MAX_LOOKED_AT:,} failures)" if is_partial else ""
    attempts = counted(sum(row[2] for row in decided), "attempt")
    return f"It would have matched {attempts} and {counted(routes, 'route')} in the last 24 h{among}."


def _with(rule: GatewayErrorRule, own: ErrorRule) -> list[ErrorRule]:
    """Return the rules in use with this one at its place: a new one behind all others of the same position."""
    others = GatewayErrorRule.objects.filter(is_enabled=True).exclude(pk=rule.pk)
    in_order = sorted([*others, rule], key=lambda row: (row.position, row.pk or inf))
    return [own if row is rule else rule_of(row) for row in in_order]
