"""Queries of the export, one for each table of the lake, with columns in the order of `jobs.tables`.

Facts from other tables are joined here, so that a job never has to look back further than its day. Examples are the
platform of a notification, and the state of an installation before an event.

Times are rounded down to the minute, and to the hour where no report needs more. Durations are whole microseconds, as
the database has them. Pseudonyms are in a table of their own (`actors`) without times and durations. So nobody who
knows when a push was sent, or for which app, can find its pseudonym.

A row belongs to the UTC day of its first timestamp. Rows that change later (an attempt whose answer comes late, a
notification that is retried for a day) are exported as they are. A second export of the day brings them up to date.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta

from kit.db.base import table
from notifications.models import Attempt, Channel, Notification, NotificationRequest, RefusedHour
from notifications.policy import Verdict
from notifications.reports import BYTES_EACH, REPORTS, VERDICTS
from registrations.messages import sql_platform, sql_with_topic
from registrations.models import RegistrationEvent, Route
from spark_reports.export.copying import OTHER
from spark_reports.export.pseudonyms import Subject
from spark_reports.jobs.tables import CROWD, HEAVIEST, LIFETIME_WEEKS
from spark_reports.nights.nights import CLOSED_AFTER
from waku_bridge import models as waku
from waku_bridge.messages import MessageType
from waku_bridge.query_topics import canary_identities

# `report_keys`, a temporary table of one row: `outer_key`, and a prefix per subject.
Kind = RegistrationEvent.Kind
_STARTS = f"('{Kind.REGISTERED}', '{Kind.TOKEN_CHANGED}')"
_ENDS = f"('{Kind.UNREGISTERED}', '{Kind.TOKEN_DIED}', '{Kind.EXPIRED}')"
# The event that ends the observation of a token: it ended, its owner unregistered, or it is refreshed in another app.
_IS_OUT = f"kind IN {_ENDS} OR (platform, app_topic) <> (first_platform, first_topic)"


State = Notification.State
# The states of notifications decided at once. A verdict that is not listed is a refusal.
REFUSED = "refused"
VERDICT_STATES = {
    Verdict.SUPPRESSED: "suppressed",
    Verdict.DUPLICATE: "duplicate",
    Verdict.COALESCED: "coalesced",
}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _in(column: str, day: date, *, envelope: str = "", notification: str = "", pseudonym: str = "") -> str:
    """Return the condition that all tables of facts share: the rows of the day, without those of canaries.

    A canary's row is recognised by its envelope, by the recipient of its notification, or by its pseudonym.
    """
    conditions = [f"{column} >= '{_midnight(day)}' AND {column} < '{_midnight(day + timedelta(days=1))}'"]
    if envelope:
        conditions.append(f"{envelope} NOT IN (SELECT hash FROM {table(waku.CanaryEnvelope)})")
    if notification:
        conditions.append(f"NOT ({_is_canary(notification)})")
    if pseudonym:
        conditions.append(_is_no_canary(pseudonym))
    return " AND ".join(conditions)


def _there(row: str, day: date) -> str:
    """Return the condition that a row did not end before the day, so that PostgreSQL skips the partitions before it.

    One day more is read, for a clock that was set back.
    """
    return f"{row}.ended_on >= '{day - timedelta(days=1)}'"


def _is_canary(notification: str) -> str:
    """Return the condition that a notification is one of a canary, also of a canary under a former field key."""
    own = ", ".join(f"'\\x{identity.key_hash.hex()}'::bytea" for identity in canary_identities())
    devices = "SELECT device::text FROM pushserver_canaryrun WHERE device IS NOT NULL"
    return f"{notification}.public_key_hash IN ({own}) OR {notification}.installation_id IN ({devices})"


def _is_no_canary(pseudonym: str) -> str:
    """Return the condition that a pseudonym is not one of a canary."""
    return f"{pseudonym} NOT IN (SELECT pseudonym FROM pushserver_canaryrun WHERE pseudonym IS NOT NULL)"


def _pseudonym(subject: Subject, value: str) -> str:
    """Return 64 bits of the HMAC as a signed number. It is null for a null value."""
    digest = f"sha256(k.outer_key || sha256(k.{subject} || {value}))"
    return f"('x' || encode(substr({digest}, 1, 8), 'hex'))::bit(64)::bigint"


# The recipient of a push without a key hash is the id of the bridge's device.
_RECIPIENT = "CASE n.public_key_hash WHEN '' THEN convert_to(n.installation_id, 'UTF8') ELSE n.public_key_hash END"
# A graded push is answered when it is stored, and may be due later on purpose, to wake the device once for several
# pushes. Neither the answer nor the delivery measures the speed of the server, so both durations are left out.
_UNGRADED = "n.grade = ''"


def _microseconds(start: str, end: str) -> str:
    """Return the exact time between two moments: `extract` is numeric, and `date_part` would be a float."""
    return f"(extract(epoch FROM {end} - {start}) * 1000000)::bigint"


def _minute(column: str) -> str:
    return f"date_trunc('minute', {column})"


def _hour(column: str) -> str:
    return f"date_trunc('hour', {column})"


def _app_topic(token_type: str, app_topic: str) -> str:
    """Return the app topic. It is empty for token types without one, for any value that a client sent.

    Clients may make topics up. So only topics of known apps are kept: those to which a push was ever delivered, and a
    bounded number of others. `copying` replaces texts that look secret.
    """
    own = sql_with_topic()
    known = f"{app_topic} IN (SELECT app_topic FROM {table(Channel)} WHERE token_type IN {own})"
    return f"CASE WHEN {token_type} IN {own} THEN CASE WHEN {known} THEN {app_topic} ELSE '{OTHER}' END ELSE '' END"


def _message_type(column: str) -> str:
    names = " ".join(f"WHEN {type_.value} THEN '{type_.name.lower()}'" for type_ in MessageType)
    return f"CASE {column} {names} ELSE 'unknown' END"


def envelopes(day: date) -> str:
    """Select the envelopes of a day."""
    return f"""
        SELECT {_minute("received_at")}, {_message_type("message_type")}, state, reason,
            {_microseconds("received_at", "processed_at")}
        FROM {table(waku.InboundEnvelope)} WHERE {_in("received_at", day, envelope="hash")}"""


def notifications(day: date) -> str:
    """Select the notifications of a day, without their durations (`notification_times`) and actors (`actors`).

    A notification whose installation has unregistered has lost its route, and with it its platform.
    """
    return f"""
        SELECT {_hour("n.created_at")}, {sql_platform("route.token_type")},
            {_app_topic("route.token_type", "route.app_topic")}, request.bridge, n.state,
            coalesce({_REPORT}, n.report, '')
        FROM {table(Notification)} n
        JOIN {table(NotificationRequest)} request ON request.id = n.request_id AND {_there("request", day)}
        LEFT JOIN {table(Route)} route ON route.id = n.route_id
        WHERE {_in("n.created_at", day, notification="n")} AND {_there("n", day)}
        UNION ALL
        SELECT {_hour("request.received_at")}, 'none', '', request.bridge, CASE {_VERDICT} {_VERDICT_STATE} END,
            CASE {_VERDICT} {_VERDICT_REPORT} END {_decided(day)}
        UNION ALL
        SELECT begin_at, 'none', '', bridge, CASE verdict {_VERDICT_STATE} END, CASE verdict {_VERDICT_REPORT} END
        FROM {table(RefusedHour)} CROSS JOIN generate_series(1, count) WHERE {_in("begin_at", day)}"""


# The report of a notification stands in the row of its request, at its position (`reports`). Requests that an earlier
# release answered have none, and the view reads it elsewhere.
_CODES = " ".join(f"WHEN '{1 + error:02x}' THEN '{report.value}'" for error, report in REPORTS.items())
_REPORT = f"CASE encode(substr(request.reports, n.position + 1, 1), 'hex') {_CODES} END"
# Notifications decided at once have no rows. Their verdicts stand in the row of the request (`reports`), one at each
# place of `decided`. Those of refused requests are counted only.
_PLACES = f"generate_series(0, length(request.decided) / {BYTES_EACH} - 1) place"
_VERDICT = f"get_byte(request.decided, {BYTES_EACH} * place)"
_VERDICT_STATE = " ".join(f"WHEN {code} THEN '{VERDICT_STATES.get(v, REFUSED)}'" for code, v in VERDICTS.items())
_VERDICT_REPORT = " ".join(
    f"WHEN {code} THEN '{REPORTS[v.error].value}'" for code, v in VERDICTS.items() if v.error is not None
)


def _decided(day: date) -> str:
    """Return the FROM clause of notifications decided at once: one row for each `place` of a `request`."""
    return f"""
        FROM {table(NotificationRequest)} request CROSS JOIN {_PLACES}
        WHERE {_in("request.received_at", day, envelope="request.source_key")} AND {_there("request", day)}
            AND {_VERDICT} > 0"""


def actors(day: date) -> str:
    """Select the loads of senders and recipients: a row for each of the heaviest, and a histogram of all others.

    Only the heaviest have a pseudonym. The pseudonyms of each five ranks are sorted among these five rows, so that none
    leads to its rank and figures. Fewer than five actors have no pseudonym.
    """
    recipient, sender = _pseudonym(Subject.RECIPIENT, "actor"), _pseudonym(Subject.SENDER, "actor")
    return f"""
        WITH asked_for AS (
            SELECT {_RECIPIENT} AS recipient, request.sender_digest AS sender, n.attempt_count AS attempts,
                false AS is_refused
            FROM {table(Notification)} n
            JOIN {table(NotificationRequest)} request ON request.id = n.request_id AND {_there("request", day)}
            WHERE {_in("n.created_at", day, notification="n")} AND {_there("n", day)}
            UNION ALL
            SELECT NULL, request.sender_digest, 0, CASE {_VERDICT} {_VERDICT_STATE} END = '{REFUSED}' {_decided(day)}
        ), each_actor AS (
            SELECT CASE grouping(sender) WHEN 0 THEN '{Subject.SENDER}' ELSE '{Subject.RECIPIENT}' END AS role,
                coalesce(sender, recipient) AS actor, count(*) AS notifications,
                count(*) FILTER (WHERE attempts > 0) AS tried, sum(attempts) AS attempts,
                count(*) FILTER (WHERE is_refused) AS refused
            FROM asked_for GROUP BY GROUPING SETS (sender, recipient)
        ), ranked AS (
            SELECT *, row_number() OVER (PARTITION BY role ORDER BY notifications DESC, actor) AS rank
            FROM each_actor WHERE actor IS NOT NULL
        ), crowds AS (
            SELECT role, (rank - 1) / {CROWD} AS crowd,
                CASE role WHEN '{Subject.SENDER}' THEN {sender} ELSE {recipient} END AS pseudonym
            FROM ranked CROSS JOIN report_keys k WHERE rank <= {HEAVIEST}
        ), named AS (
            SELECT role, pseudonym, crowd * {CROWD} + row_number() OVER (each_crowd ORDER BY pseudonym) AS rank,
                count(*) OVER each_crowd AS size
            FROM crowds WINDOW each_crowd AS (PARTITION BY role, crowd)
        ), counted AS (
            SELECT role, CASE WHEN rank <= {HEAVIEST} THEN rank END AS rank, count(*) AS actors, notifications,
                sum(tried) AS tried, sum(attempts) AS attempts, sum(refused) AS refused
            FROM ranked GROUP BY 1, 2, notifications
        )
        SELECT counted.role, counted.rank, pseudonym, actors, notifications, tried, attempts, refused
        FROM counted LEFT JOIN named
            ON named.role = counted.role AND named.rank = counted.rank AND size = {CROWD}"""


def notification_times(day: date) -> str:
    """Select the exact durations of the answers and deliveries of a day."""
    answered = _microseconds("request.received_at", "request.answered_at")
    deadline = _microseconds("request.received_at", "request.reply_due_at")
    delivered = f"CASE n.state WHEN 'delivered' THEN {_microseconds('n.created_at', 'n.finished_at')} END"
    return f"""
        SELECT {_minute("n.created_at")}, {sql_platform("route.token_type")}, request.bridge,
            {delivered}, CASE n.position WHEN 0 THEN {answered} END, {deadline}
        FROM {table(Notification)} n
        JOIN {table(NotificationRequest)} request ON request.id = n.request_id AND {_there("request", day)}
        LEFT JOIN {table(Route)} route ON route.id = n.route_id
        WHERE {_in("n.created_at", day, notification="n")} AND {_there("n", day)} AND {_UNGRADED}
            AND (n.state = '{State.DELIVERED}' OR (n.position = 0 AND request.answered_at IS NOT NULL))
        UNION ALL
        SELECT {_minute("request.received_at")}, 'none', request.bridge, NULL::bigint, {answered}, {deadline}
        FROM {table(NotificationRequest)} request
        WHERE {_in("request.received_at", day, envelope="request.source_key")} AND {_there("request", day)}
            AND length(request.decided) > 0 AND get_byte(request.decided, 0) > 0 AND request.answered_at IS NOT NULL"""


def attempts(day: date) -> str:
    """Select the attempts of a day, without those of canaries.

    Requests are searched back to the day of the oldest notification that had not ended before the day, because a
    notification may be retried for days.
    """
    oldest = f"SELECT created_at FROM {table(Notification)} old WHERE {_there('old', day)} ORDER BY id LIMIT 1"
    return f"""
        SELECT {_minute("a.started_at")}, {sql_platform("a.token_type")}, {_app_topic("a.token_type", "a.app_topic")},
            request.bridge, a.number, coalesce(a.outcome, 'open'), a.code, a.latency_ms * 1000::bigint,
            a.waited_ms * 1000::bigint
        FROM {table(Attempt)} a
        JOIN {table(Notification)} n ON n.id = a.notification_id AND {_there("n", day)}
        JOIN {table(NotificationRequest)} request ON request.id = n.request_id
            AND request.ended_on >= (({oldest}) - interval '1 day')::date
        WHERE {_in("a.started_at", day, notification="n")}"""


def replies(day: date) -> str:
    """Select the replies of a day.

    `published_at` is the time of the last publication. So a reply that was published again has no duration.
    """
    first_published = "CASE WHEN r.repeat_count = 0 THEN r.published_at END"
    return f"""
        SELECT {_minute("r.created_at")}, {_message_type("r.message_type")}, r.state, r.attempt_count, r.repeat_count,
            {_microseconds("r.created_at", first_published)}, {_microseconds("e.received_at", first_published)},
            k.deadline_us
        FROM {table(waku.OutboundReply)} r LEFT JOIN {table(waku.InboundEnvelope)} e ON e.hash = r.envelope_hash
        CROSS JOIN report_keys k
        WHERE {_in("r.created_at", day, envelope="r.envelope_hash")}"""


def registration_events(day: date) -> str:
    """Select the events of a day with the state before each.

    That state follows from the event before: an earlier one of the day, or the last one before the day.
    """
    before = "lag(e.kind) OVER own, b.kind"
    platform_id = "coalesce(lag(e.token_type) OVER own, b.token_type, e.token_type)"
    app_topic = "coalesce(lag(e.app_topic) OVER own, b.app_topic, e.app_topic)"
    return f"""
        WITH today AS MATERIALIZED (
            SELECT id, at, kind, pseudonym, token_type, app_topic, bridge FROM {table(RegistrationEvent)}
            WHERE {_in("at", day, pseudonym="pseudonym")}
        ), before AS (
            SELECT DISTINCT ON (pseudonym) p.pseudonym, p.kind, p.token_type, p.app_topic
            FROM {table(RegistrationEvent)} p JOIN (SELECT DISTINCT pseudonym FROM today) known USING (pseudonym)
            WHERE p.at < '{_midnight(day)}' ORDER BY pseudonym, p.at DESC, p.id DESC
        )
        SELECT {_hour("e.at")}, e.kind, {sql_platform("e.token_type")}, {_app_topic("e.token_type", "e.app_topic")},
            e.bridge,
            coalesce({before}) IS NULL, coalesce(coalesce({before}) NOT IN {_ENDS}, false), e.kind NOT IN {_ENDS},
            {sql_platform(platform_id)}, {_app_topic(platform_id, app_topic)}
        FROM today e LEFT JOIN before b USING (pseudonym)
        WINDOW own AS (PARTITION BY e.pseudonym ORDER BY e.at, e.id)"""


def _history(day: date) -> str:
    """Return the condition of all events up to the end of a day, without those of canaries."""
    return f"at < '{day + timedelta(days=1)}Z' AND {_is_no_canary('pseudonym')}"


def active_tokens(day: date) -> str:
    """Count active tokens by the last event of each installation before 00:00 and before 24:00.

    They are counted over the whole history and not from the events of the day, so that the two can be compared.
    """
    start = f"'{day}Z'"
    return f"""
        SELECT {sql_platform("token_type")}, {_app_topic("token_type", "app_topic")}, bridge,
            count(*) FILTER (WHERE at < {start}), count(*) FILTER (WHERE next_at IS NULL)
        FROM (
            SELECT kind, token_type, app_topic, bridge, at, lead(at) OVER own AS next_at
            FROM {table(RegistrationEvent)} WHERE {_history(day)}
            WINDOW own AS (PARTITION BY pseudonym ORDER BY at, id)
        ) AS state
        WHERE kind NOT IN {_ENDS} AND (next_at IS NULL OR (at < {start} AND next_at >= {start}))
        GROUP BY 1, 2, 3"""


def token_spells(day: date) -> str:
    """Select the lifetimes of the device tokens of the last weeks, each token once.

    A lifetime lasts from the first registration to the first event that ends the token or its observation. A token
    begins with an event that brings it, and lasts until the next such event of its installation. It may die, be
    refreshed and die again, but ends once. It is counted at the place where it began.
    """
    oldest = day - timedelta(days=day.weekday() + 7 * (LIFETIME_WEEKS - 1))
    place = f"""{sql_platform("token_type")} AS platform, {_app_topic("token_type", "app_topic")} AS app_topic"""
    return f"""
        WITH events AS (
            SELECT pseudonym, at, id, kind, {place}, bridge,
                count(*) FILTER (WHERE kind IN {_STARTS}) OVER (PARTITION BY pseudonym ORDER BY at, id) AS token
            FROM {table(RegistrationEvent)} WHERE {_history(day)}
        ), placed AS (
            SELECT *, first_value(platform) OVER life AS first_platform, first_value(app_topic) OVER life AS first_topic
            FROM events WHERE token > 0 WINDOW life AS (PARTITION BY pseudonym, token ORDER BY at, id)
        ), tokens AS (
            SELECT pseudonym, token, first_platform AS platform, first_topic AS app_topic, bridge,
                min(at) AS began_at, (array_agg(kind ORDER BY at, id))[1] AS began_with,
                (array_agg(at ORDER BY at, id) FILTER (WHERE {_IS_OUT}))[1] AS out_at,
                (array_agg(kind ORDER BY at, id) FILTER (WHERE {_IS_OUT}))[1] AS out_by
            FROM placed GROUP BY 1, 2, 3, 4, 5
        ), spells AS (
            SELECT *, lead(began_at) OVER own AS next_at, lead(began_with) OVER own AS next_with
            FROM tokens WINDOW own AS (PARTITION BY pseudonym ORDER BY token)
        )
        SELECT platform, app_topic, bridge, began_at::date, coalesce(out_at, next_at, '{day}Z')::date,
            CASE WHEN out_by IN ('{Kind.TOKEN_DIED}', '{Kind.EXPIRED}')
                THEN 'ended' WHEN out_by IS NOT NULL THEN 'left'
                WHEN next_with = '{Kind.TOKEN_CHANGED}' THEN 'ended' WHEN next_with IS NOT NULL
                    THEN 'left'
                ELSE 'alive' END,
            count(*)
        FROM spells WHERE began_at >= '{oldest}Z' GROUP BY 1, 2, 3, 4, 5, 6"""


def unknown_errors(day: date) -> str:
    """Select the counters of unknown errors.

    The counters are not kept by day. Once the next day is closed, they say nothing about this one, and are not
    exported.
    """
    next_closed = datetime.combine(day + timedelta(days=2), time(), UTC) + CLOSED_AFTER
    return f"""
        SELECT platform, signature, count, {_hour("first_seen_at")}, {_hour("last_seen_at")}
        FROM notifications_unknowngatewayerror
        WHERE first_seen_at < '{day + timedelta(days=1)}Z' AND now() < '{next_closed}'"""


QUERIES: dict[str, Callable[[date], str]] = {
    "envelopes": envelopes,
    "notifications": notifications,
    "actors": actors,
    "notification_times": notification_times,
    "attempts": attempts,
    "replies": replies,
    "registration_events": registration_events,
    "active_tokens": active_tokens,
    "token_spells": token_spells,
    "unknown_errors": unknown_errors,
}
