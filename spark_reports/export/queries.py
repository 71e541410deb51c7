"""The queries of the export, one for each table of the lake, with columns in the order of `jobs.tables`.

Facts that are in another table when a day is exported (the platform of a notification, the state of an installation
before an event) are joined here, so that a job never has to look back further than its day.

A row belongs to the UTC day of its first timestamp. Rows that change later (an attempt whose answer comes late, a
notification that is retried for a day) are exported as they are; exporting the day again brings it up to date.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta

from notifications.models import Notification
from notifications.policy import Verdict
from notifications.reports import BYTES_EACH, REPORTS, VERDICTS
from spark_reports.closing import CLOSED_AFTER
from spark_reports.export.copying import OTHER
from spark_reports.export.pseudonyms import Subject
from waku_bridge.identity import canary_identity
from waku_bridge.messages import MessageType

# `report_keys`, a temporary table of one row: `outer_key`, and a prefix per subject.
_STARTS = "('registered', 'token_changed')"
_ENDS = "('unregistered', 'token_died', 'expired')"


State = Notification.State
# How reports name what was decided at once; whatever is not here was refused.
_STATES = {
    Verdict.SUPPRESSED: State.SUPPRESSED,
    Verdict.DUPLICATE: State.DUPLICATE,
    Verdict.COALESCED: State.COALESCED,
    Verdict.MUTED: State.SUPPRESSED,
}
_CANARY_PSEUDONYMS = """
    SELECT pseudonym FROM waku_bridge_canaryrun WHERE pseudonym IS NOT NULL
    UNION ALL SELECT pseudonym FROM xmpp_bridge_canaryrun WHERE pseudonym IS NOT NULL"""
_CANARY_DEVICES = "SELECT device::text FROM xmpp_bridge_canaryrun WHERE device IS NOT NULL"


def _of_day(column: str, day: date, *, envelope: str = "", notification: str = "", told_by: str = "") -> str:
    """Return the condition that every table of facts shares: the rows of a day that are real traffic.

    The canaries' rows are left out by their envelope, by the recipient of their notification, or by the pseudonym.
    """
    conditions = [f"{column} >= '{day}Z' AND {column} < '{day + timedelta(days=1)}Z'"]
    if envelope:
        conditions.append(f"{envelope} NOT IN (SELECT hash FROM waku_bridge_canaryenvelope)")
    if notification:
        conditions.append(f"NOT ({_is_canary(notification)})")
    if told_by:
        conditions.append(f"{told_by} NOT IN ({_CANARY_PSEUDONYMS})")
    return " AND ".join(conditions)


def _is_canary(notification: str) -> str:
    """Return the condition that a notification is one of the canaries'."""
    own = f"{notification}.public_key_hash = '\\x{canary_identity().key_hash.hex()}'::bytea"
    return f"{own} OR {notification}.installation_id IN ({_CANARY_DEVICES})"


def _pseudonym(subject: Subject, value: str) -> str:
    """Return 64 bits of the HMAC as a signed number, which is null for null."""
    digest = f"sha256(k.outer_key || sha256(k.{subject} || {value}))"
    return f"('x' || encode(substr({digest}, 1, 8), 'hex'))::bit(64)::bigint"


# A push of XMPP has no key hash: its recipient is the device that the front door names.
_RECIPIENT = "CASE n.public_key_hash WHEN '' THEN convert_to(n.installation_id, 'UTF8') ELSE n.public_key_hash END"
# A push of XMPP is answered when it is stored, and may be planned for later on purpose, to wake the device for several
# at once. Neither says anything about how fast we are.
_OF_STATUS = "n.grade = ''"


def _milliseconds(start: str, end: str) -> str:
    return f"floor(date_part('epoch', {end} - {start}) * 1000)::bigint"


def _platform(column: str) -> str:
    return f"CASE {column} WHEN 1 THEN 'ios' WHEN 2 THEN 'android' ELSE 'none' END"


def _app_topic(token_type: str, apn_topic: str) -> str:
    """Return the app topic, empty for Firebase, whatever a client sent.

    Clients make topics up, so only those with a channel are told apart: those to which a push was ever delivered, and a
    bounded number of others. `copying` replaces what looks secret.
    """
    known = f"{apn_topic} IN (SELECT apn_topic FROM notifications_channel WHERE token_type = 1)"
    return f"CASE WHEN {token_type} = 1 THEN CASE WHEN {known} THEN {apn_topic} ELSE '{OTHER}' END ELSE '' END"


def _message_type(column: str) -> str:
    names = " ".join(f"WHEN {type_.value} THEN '{type_.name.lower()}'" for type_ in MessageType)
    return f"CASE {column} {names} ELSE 'unknown' END"


def envelopes(day: date) -> str:
    """Select the envelopes of a day."""
    return f"""
        SELECT received_at, {_message_type("message_type")}, state, reason,
            {_milliseconds("received_at", "processed_at")}
        FROM waku_bridge_inboundenvelope WHERE {_of_day("received_at", day, envelope="hash")}"""


def notifications(day: date) -> str:
    """Select the notifications of a day.

    One whose installation unregistered has lost its route, and with it its platform.
    """
    return f"""
        SELECT n.created_at, {_platform("route.token_type")}, {_app_topic("route.token_type", "route.apn_topic")},
            request.front_door,
            CASE WHEN n.type BETWEEN 1 AND 4 THEN n.type ELSE 0 END, n.state, coalesce(n.report, ''), n.attempt_count,
            {_pseudonym(Subject.RECIPIENT, _RECIPIENT)}, {_pseudonym(Subject.SENDER, "request.sender_digest")},
            CASE WHEN {_OF_STATUS} THEN {_milliseconds("n.created_at", "n.finished_at")} END,
            CASE WHEN n.position = 0 AND {_OF_STATUS}
                THEN {_milliseconds("request.received_at", "request.answered_at")} END,
            {_milliseconds("request.received_at", "request.reply_due_at")}
        FROM notifications_notification n
        JOIN notifications_notificationrequest request ON request.id = n.request_id
        LEFT JOIN registrations_route route ON route.id = n.route_id
        CROSS JOIN report_keys k
        WHERE {_of_day("n.created_at", day, notification="n")}
        UNION ALL {_decided(day)}"""


def _decided(day: date) -> str:
    """Select what was decided at once about the requests of a day, which stands in their rows (`reports`)."""
    verdict, type_ = (f"get_byte(request.decided, {BYTES_EACH} * place + {byte})" for byte in range(BYTES_EACH))
    state = " ".join(f"WHEN {code} THEN '{_STATES.get(v, State.REFUSED).value}'" for code, v in VERDICTS.items())
    report = " ".join(
        f"WHEN {code} THEN '{REPORTS[v.error].value}'" for code, v in VERDICTS.items() if v.error is not None
    )
    return f"""
        SELECT request.received_at, 'none', '', request.front_door,
            CASE WHEN {type_} BETWEEN 1 AND 4 THEN {type_} ELSE 0 END,
            CASE {verdict} {state} END, CASE {verdict} {report} END, 0,
            NULL::bigint, {_pseudonym(Subject.SENDER, "request.sender_digest")}, 0,
            CASE WHEN place = 0 THEN {_milliseconds("request.received_at", "request.answered_at")} END,
            {_milliseconds("request.received_at", "request.reply_due_at")}
        FROM notifications_notificationrequest request CROSS JOIN report_keys k
        CROSS JOIN generate_series(0, length(request.decided) / {BYTES_EACH} - 1) place
        WHERE {_of_day("request.received_at", day, envelope="request.source_key")} AND {verdict} > 0"""


def attempts(day: date) -> str:
    """Select the attempts of a day, without the canaries'."""
    queued = _milliseconds("n.created_at", "a.started_at")
    return f"""
        SELECT a.started_at, {_platform("a.token_type")}, {_app_topic("a.token_type", "a.apn_topic")},
            request.front_door, a.number, coalesce(a.outcome, 'open'), a.code, a.latency_ms,
            CASE WHEN a.number = 1 AND {_OF_STATUS} THEN {queued} END
        FROM notifications_attempt a
        JOIN notifications_notification n ON n.id = a.notification_id
        JOIN notifications_notificationrequest request ON request.id = n.request_id
        WHERE {_of_day("a.started_at", day, notification="n")}"""


def replies(day: date) -> str:
    """Select the replies of a day.

    `published_at` is the last publication, which is the first one only where nothing was repeated.
    """
    first_published = "CASE WHEN r.repeat_count = 0 THEN r.published_at END"
    return f"""
        SELECT r.created_at, {_message_type("r.message_type")}, r.state, r.attempt_count, r.repeat_count,
            {_milliseconds("r.created_at", first_published)}, {_milliseconds("e.received_at", first_published)},
            k.deadline_ms
        FROM waku_bridge_outboundreply r LEFT JOIN waku_bridge_inboundenvelope e ON e.hash = r.envelope_hash
        CROSS JOIN report_keys k
        WHERE {_of_day("r.created_at", day, envelope="r.envelope_hash")}"""


def registration_events(day: date) -> str:
    """Select the events of a day with the state before each: that after an earlier event of the day, or of the history
    before the day.
    """
    before = "lag(e.kind) OVER own, b.kind"
    platform_id = "coalesce(lag(e.token_type) OVER own, b.token_type, e.token_type)"
    apn_topic = "coalesce(lag(e.apn_topic) OVER own, b.apn_topic, e.apn_topic)"
    since = "max(e.at) FILTER (WHERE e.kind IN {starts}) OVER (own ROWS BETWEEN UNBOUNDED PRECEDING AND {end})"
    this, last = (since.format(starts=_STARTS, end=end) for end in ("CURRENT ROW", "1 PRECEDING"))
    return f"""
        WITH today AS MATERIALIZED (
            SELECT id, at, kind, pseudonym, token_type, apn_topic, front_door FROM registrations_registrationevent
            WHERE {_of_day("at", day, told_by="pseudonym")}
        ), history AS (
            SELECT p.* FROM registrations_registrationevent p
            JOIN (SELECT DISTINCT pseudonym FROM today) known USING (pseudonym) WHERE p.at < '{day}Z'
        ), before AS (
            SELECT DISTINCT ON (pseudonym) pseudonym, kind, token_type, apn_topic,
                coalesce(max(at) FILTER (WHERE kind IN {_STARTS}) OVER own, min(at) OVER own) AS since
            FROM history WINDOW own AS (PARTITION BY pseudonym) ORDER BY pseudonym, at DESC, id DESC
        )
        SELECT e.at, e.kind, {_platform("e.token_type")}, {_app_topic("e.token_type", "e.apn_topic")}, e.front_door,
            coalesce({before}) IS NULL, coalesce(coalesce({before}) NOT IN {_ENDS}, false), e.kind NOT IN {_ENDS},
            {_platform(platform_id)}, {_app_topic(platform_id, apn_topic)},
            coalesce({this}, b.since, e.at)::date, coalesce({last}, b.since, e.at)::date
        FROM today e LEFT JOIN before b USING (pseudonym)
        WINDOW own AS (PARTITION BY e.pseudonym ORDER BY e.at, e.id)"""


def active_tokens(day: date) -> str:
    """Count active tokens by the last event of each installation before 00:00 and before 24:00.

    They are counted over the whole history and not from the events of the day, because the two must agree. A token is
    as old as its last change.
    """
    start, end = f"'{day}Z'", f"'{day + timedelta(days=1)}Z'"
    return f"""
        SELECT {_platform("token_type")}, {_app_topic("token_type", "apn_topic")}, front_door, since::date,
            count(*) FILTER (WHERE at < {start}), count(*) FILTER (WHERE next_at IS NULL)
        FROM (
            SELECT kind, token_type, apn_topic, front_door, at, lead(at) OVER own AS next_at,
                coalesce(max(at) FILTER (WHERE kind IN {_STARTS}) OVER own, min(at) OVER own) AS since
            FROM registrations_registrationevent WHERE at < {end} AND pseudonym NOT IN ({_CANARY_PSEUDONYMS})
            WINDOW own AS (PARTITION BY pseudonym ORDER BY at, id)
        ) AS state
        WHERE kind NOT IN {_ENDS} AND (next_at IS NULL OR (at < {start} AND next_at >= {start}))
        GROUP BY 1, 2, 3, 4"""


def unknown_errors(day: date) -> str:
    """Select the counters of unknown errors.

    The counters know no days: once the next day is closed they tell nothing about this one, and none is exported.
    """
    next_closed = datetime.combine(day + timedelta(days=2), time(), UTC) + CLOSED_AFTER
    return f"""
        SELECT platform, signature, count, first_seen_at, last_seen_at FROM notifications_unknowngatewayerror
        WHERE first_seen_at < '{day + timedelta(days=1)}Z' AND now() < '{next_closed}'"""


QUERIES: dict[str, Callable[[date], str]] = {
    "envelopes": envelopes,
    "notifications": notifications,
    "attempts": attempts,
    "replies": replies,
    "registration_events": registration_events,
    "active_tokens": active_tokens,
    "unknown_errors": unknown_errors,
}
