"""Preview of a rule: what it would have decided in the last day, counted from the error texts of failed attempts.

The texts contain no data of one device, so a rule about such data finds nothing here. Of very many failures only the
newest are read.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString

from django.db import OperationalError, connection, transaction

from kit.db.statements import fetch
from kit.figures import counted
from notifications.gateways.gorush.answers.errors import ErrorRule, classify
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.table import rule_of
from notifications.messages import Outcome

LOOKED_BACK = timedelta(hours=24)
MAX_LOOKED_AT = 100_000
TIMEOUT = "2s"

_FAILED: LiteralString = f"""
    WITH failed AS (
        SELECT notification_id, token_type, error FROM notifications_attempt
        WHERE outcome IN ('{Outcome.DEAD}', '{Outcome.CONFIG}', '{Outcome.PAYLOAD}',
            '{Outcome.TRANSIENT}', '{Outcome.AMBIGUOUS}') AND error <> ''
            AND started_at >= %(since)s
            AND id >= coalesce((
                SELECT id FROM notifications_attempt WHERE started_at >= %(since)s - interval '5 minutes'
                ORDER BY started_at LIMIT 1
            ), 0)
        ORDER BY id DESC LIMIT %(limit)s
    )
"""
_OF_TEXTS: LiteralString = "SELECT token_type, error, count(*) FROM failed GROUP BY 1, 2"
_TEXTS: LiteralString = f"{_FAILED}{_OF_TEXTS}"
_OF_ROUTES: LiteralString = """
    SELECT count(DISTINCT notification.route_id) FROM failed
    JOIN unnest(%(types)b::smallint[], %(errors)b::text[]) AS decided (token_type, error) USING (token_type, error)
    JOIN notifications_notification AS notification ON notification.id = failed.notification_id
        AND notification.ended_on >= %(since)s::date - 1
"""
_ROUTES: LiteralString = f"{_FAILED}{_OF_ROUTES}"


@dataclass(frozen=True, slots=True)
class Preview:
    """The number of attempts that a rule would have decided, and of their routes.

    It is partial when more attempts failed than were read.
    """

    attempts: int
    routes: int
    is_partial: bool

    @property
    def words(self) -> str:
        among = f" (among the newest {MAX_LOOKED_AT:,} failures)" if self.is_partial else ""
        attempts = counted(self.attempts, "attempt")
        routes = counted(self.routes, "route")
        return f"It would have matched {attempts} and {routes} in the last 24 h{among}."


NOT_KNOWN = "The number of matches is not known: the database takes too long to answer."


def preview(rule: GatewayErrorRule, *, now: datetime) -> str:
    """Return in words what this rule would have decided, at its place among the present rules."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = '{TIMEOUT}'")
            found = _count(rule, now=now)
            # The caller's transaction goes on, with the usual timeout.
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
            return found.words
    except OperationalError:
        return NOT_KNOWN


def _count(rule: GatewayErrorRule, *, now: datetime) -> Preview:
    looked_at = {"since": now - LOOKED_BACK, "limit": MAX_LOOKED_AT}
    texts = fetch(_TEXTS, looked_at)
    own = rule_of(rule)
    rules = _with(rule, own)
    decided = [row for row in texts if classify(row[0], row[1], rules) is own]
    types, errors = [row[0] for row in decided], [row[1] for row in decided]
    [(routes,)] = fetch(_ROUTES, {**looked_at, "types": types, "errors": errors}) if decided else [(0,)]
    is_partial = sum(row[2] for row in texts) >= MAX_LOOKED_AT
    return Preview(sum(row[2] for row in decided), routes, is_partial)


def _with(rule: GatewayErrorRule, own: ErrorRule) -> list[ErrorRule]:
    """Return the rules in use with this one at its place, behind all others of the same position."""
    others = GatewayErrorRule.objects.filter(is_enabled=True).exclude(pk=rule.pk).order_by("position", "pk")
    before = [rule_of(row) for row in others if _is_before(row, rule)]
    return [*before, own, *(rule_of(row) for row in others if not _is_before(row, rule))]


def _is_before(row: GatewayErrorRule, rule: GatewayErrorRule) -> bool:
    return row.position < rule.position or (row.position == rule.position and (rule.pk is None or row.pk < rule.pk))
