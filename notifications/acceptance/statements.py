"""The SQL of acceptance, by name."""

from typing import LiteralString

from kit.db.base import array_value, table
from notifications.messages import Outcome
from notifications.models import (
    NOTIFICATION,
    REQUEST,
    DecidedAtOnce,
    Notification,
    NotificationRequest,
    RefusedHour,
    RefusedRequest,
)
from notifications.queues.ending import WAITS, ending
from notifications.reports import BYTES_EACH
from registrations.models import Registration, Route

State = Notification.State
RECIPIENT_BYTES = DecidedAtOnce.RECIPIENT_BYTES
# Such notifications may be left out. One in flight is passed over: a worker is sending it.
_MAY_BE_LEFT_OUT: LiteralString = f"state IN ('{State.PENDING}', '{State.RETRYING}')"

# What is stored already -----------------------------------------------------------------------------------------------

FIND_ADDRESSEES: LiteralString = f"""
    SELECT registration.public_key_hash, registration.installation_id, enabled, block_mentions,
           blocked_chat_list, muted_chat_list, allowed_mentions_chat_list, route.token_type, route.app_topic,
           access_token_digest, route.id, route.generation, route.address_encrypted, route.gateway,
           route.address_digest,
           coalesce(
               route.failing_since IS NULL AND route.last_success_at >= %(noted_since)s AND route.is_proven, FALSE
           ),
           route.is_proven,
           (SELECT count(*) FROM (
               SELECT FROM notifications_opennotification AS n
               WHERE n.route_id = route.id AND {_MAY_BE_LEFT_OUT}
               LIMIT %(max_waiting)s
           ) AS waiting)
    FROM unnest(%(hashes)b::bytea[], %(installations)b::text[]) AS wanted (public_key_hash, installation_id)
    JOIN registrations_registration AS registration USING (public_key_hash, installation_id)
    JOIN registrations_route AS route ON route.id = registration.route_id
    WHERE registration.state = '{Registration.State.ACTIVE}' AND route.state = '{Route.State.ACTIVE}'
"""
# Notifications with these ends reached nobody, unless an attempt was ambiguous. When the phone has registered its new
# token, a sender's repeat must be delivered. So these keys count as in use since 1970, and are released. An unconfirmed
# one is released, too: a lost push is worse than a second one under the same collapse id.
_MAY_HAVE_REACHED_NOBODY: LiteralString = f"""
    state IN ('{State.DEAD_TOKEN}', '{State.WITHDRAWN}', '{State.UNDELIVERABLE}', '{State.EXPIRED}',
              '{State.UNCONFIRMED}')
"""
FIND_DIGESTS: LiteralString = f"""
    SELECT digest, received_at, TRUE, NULL FROM notifications_requestdigest WHERE digest = ANY (%(digests)b::bytea[])
    UNION ALL SELECT digest, received_at, TRUE, decided FROM {table(RefusedRequest)}
    WHERE digest = ANY (%(digests)b::bytea[]) AND received_at >= {{since}} AND received_at < {{until}}
"""
_FIND_KEYS: LiteralString = f"""
    SELECT dedup_key, CASE WHEN {_MAY_HAVE_REACHED_NOBODY} THEN 'epoch' ELSE created_at END, FALSE, NULL
"""
FIND_KNOWN: LiteralString = f"""
    {FIND_DIGESTS}
    UNION ALL {_FIND_KEYS} FROM notifications_opennotification WHERE dedup_key = ANY (%(dedup_keys)b::bytea[])
    UNION ALL {_FIND_KEYS} FROM notifications_endednotification
    WHERE dedup_key = ANY (%(dedup_keys)b::bytea[]) AND ended_on IN ({{days}})
"""
FIND_REQUESTS: LiteralString = f"""
    SELECT request_key, id, state = '{NotificationRequest.State.ANSWERED}', reports, decided
    FROM notifications_notificationrequest
    WHERE bridge = %(bridge)s AND request_key = ANY (%(keys)b::bytea[]) AND ended_on >= %(since)s
"""

# Rows of several tables that refer to each other are inserted at once, with ids that were taken before. Ids that no row
# takes then are never used.
NEW_IDS: LiteralString = """
    SELECT ARRAY(SELECT nextval('notifications_openrequest_id_seq') FROM generate_series(1, %(requests)s)),
           ARRAY(SELECT nextval('notifications_opennotification_id_seq') FROM generate_series(1, %(notifications)s)),
           ARRAY(SELECT nextval('notifications_endedattempt_id_seq') FROM generate_series(1, %(attempts)s))
"""

# Storing --------------------------------------------------------------------------------------------------------------

# Rows are inserted in the order of their keys (`digest`, `dedup_key`). Workers that store the same rows then wait for
# each other instead of dead-locking. What was decided about nobody who ever registered is not listed for staff, because
# anybody can make up recipients. A push with the id of an attempt is claimed. A pending one may go out some seconds
# early, so a later one waits in state `retrying`, unless it is a wake-up.
STORE: LiteralString = f"""
    WITH digest AS (
        INSERT INTO notifications_requestdigest (digest, received_at)
        SELECT digest, %(now)s FROM unnest(%(digests)b::bytea[]) AS new (digest) ORDER BY 1
    ), request AS (
        SELECT *
        FROM unnest(%(r_id)b::bigint[], %(r_bridge)b::text[], %(r_request_key)b::bytea[], %(r_source_key)b::bytea[],
                    %(r_reply_address)b::bytea[], %(r_sender_digest)b::bytea[], %(r_message_id)b::bytea[],
                    %(r_received_at)b::timestamptz[], %(r_reply_due_at)b::timestamptz[],
                    %(r_is_complete)b::boolean[], %(r_reports)b::bytea[], %(r_names)b::bytea[],
                    %(r_decided)b::bytea[])
            AS new (id, bridge, request_key, source_key, reply_address, sender_digest, message_id, received_at,
                    reply_due_at, is_complete, reports, names, decided)
    ), open_request AS (
        INSERT INTO notifications_openrequest ({REQUEST}, reply_address, reports, names)
        SELECT {REQUEST}, reply_address, reports, names FROM request WHERE NOT is_complete
    ), answered_request AS (
        INSERT INTO notifications_answeredrequest ({REQUEST}, reports, answered_at, ended_on)
        SELECT {REQUEST}, reports, %(now)s, %(today)s FROM request WHERE is_complete
    ), decided AS (
        INSERT INTO notifications_decidedatonce (recipient, request_id, position, decided_on)
        SELECT substr(key_hash, 1, {RECIPIENT_BYTES}), request_id, position, %(today)s
        FROM unnest(%(d_request_id)b::bigint[], %(d_position)b::smallint[], %(d_key_hash)b::bytea[])
            AS new (request_id, position, key_hash)
        WHERE (SELECT TRUE FROM {table(Registration)} WHERE public_key_hash = new.key_hash LIMIT 1)
    ), push AS (
        SELECT *, attempt_id > 0 AS is_claimed
        FROM unnest(%(n_notification_id)b::bigint[], %(n_request_id)b::bigint[], %(n_attempt_id)b::bigint[],
                    %(n_position)b::smallint[], %(n_public_key_hash)b::bytea[], %(n_installation_id)b::text[],
                    %(n_type)b::bigint[], %(n_queue_id)b::integer[], %(n_route_id)b::bigint[],
                    %(n_route_generation)b::bigint[], %(n_dedup_key)b::bytea[], %(n_collapse_id)b::text[],
                    %(n_chat_id)b::bytea[], %(n_message)b::bytea[], %(n_wake)b::bytea[], %(n_grade)b::text[],
                    %(n_is_wake_up)b::boolean[], %(n_shortened_by)b::text[], %(n_due_at)b::timestamptz[],
                    %(n_expires_at)b::timestamptz[], %(n_unsent_since)b::timestamptz[], %(n_gateway)b::text[],
                    %(n_token_type)b::smallint[], %(n_app_topic)b::text[])
            AS new (id, request_id, attempt_id, position, public_key_hash, installation_id, type, queue_id, route_id,
                    route_generation, dedup_key, collapse_id, chat_id, message, wake, grade, is_wake_up, shortened_by,
                    due_at, expires_at, unsent_since, gateway, token_type, app_topic)
    )
    INSERT INTO notifications_opennotification
        (id, request_id, attempt_id, position, public_key_hash, installation_id, type, queue_id, route_id,
         route_generation, dedup_key, collapse_id, chat_id, message, wake, grade, is_wake_up, shortened_by, expires_at,
         unsent_since, gateway, token_type, app_topic, payload_dropped, ambiguous_count, created_at, attempt_count,
         due_at, claimed_at, state)
    SELECT id, request_id, nullif(attempt_id, 0), position, public_key_hash, installation_id, type, queue_id, route_id,
           route_generation, dedup_key, decode(collapse_id, 'hex'), nullif(chat_id, ''), nullif(message, ''),
           nullif(wake, ''), grade, is_wake_up, shortened_by, expires_at,
           unsent_since, gateway, token_type, app_topic, FALSE, 0, %(now)s, is_claimed::integer,
           CASE WHEN is_claimed THEN %(lease_until)s ELSE due_at END,
           CASE WHEN is_claimed THEN %(now)s::timestamptz END,
           CASE WHEN is_claimed THEN '{State.IN_FLIGHT}'
                WHEN due_at > %(now)s AND NOT is_wake_up THEN '{State.RETRYING}' ELSE '{State.PENDING}' END
    FROM push ORDER BY dedup_key
"""
# Another process may have stored and ended one of these keys since they were looked up. Our keys are in the unique
# index of open rows now, so no process can do so any more. The statement would copy such an ended row beside ours,
# which PostgreSQL refuses.
REFUSE_ENDED: LiteralString = f"""
    INSERT INTO notifications_opennotification ({NOTIFICATION}, state, due_at)
    SELECT {NOTIFICATION}, '{State.PENDING}', created_at FROM notifications_endednotification
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND ended_on IN ({{days}})
"""
# Two workers may store the same request at the same time. Both answer it, and neither notifies anybody.
STORE_REFUSED: LiteralString = f"""
    WITH stored AS (
        INSERT INTO {table(RefusedRequest)} (digest, decided, bridge, received_at)
        SELECT digest, decided, %(bridge)s, %(now)s
        FROM unnest(%(digests)b::bytea[], %(decided)b::bytea[]) AS new (digest, decided) ORDER BY 1
        ON CONFLICT DO NOTHING RETURNING decided
    ), each AS (
        SELECT get_byte(decided, place) AS verdict
        FROM stored CROSS JOIN generate_series(0, length(decided) - 1, {BYTES_EACH}) AS place
    )
    INSERT INTO {table(RefusedHour)} AS hour (begin_at, bridge, verdict, session, count)
    SELECT date_trunc('hour', %(now)s::timestamptz, 'UTC'), %(bridge)s, verdict, pg_backend_pid(), count(*)
    FROM each WHERE verdict > 0 GROUP BY verdict
    ON CONFLICT (begin_at, bridge, verdict, session) DO UPDATE SET count = hour.count + excluded.count
"""
_EXPIRY: LiteralString = array_value("%(ids)b::bigint[]", "n.id", "expiries", "timestamptz")
PROLONG: LiteralString = f"""
    UPDATE notifications_opennotification AS n SET expires_at = {_EXPIRY}
    WHERE n.id = ANY (%(ids)b::bigint[]) AND n.expires_at < {_EXPIRY} AND {WAITS}
"""

# Releasing keys -------------------------------------------------------------------------------------------------------

# Another worker may have released a key and stored another notification under it meanwhile. That notification keeps it.
RELEASE_OPEN: LiteralString = """
    UPDATE notifications_opennotification SET dedup_key = NULL
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND created_at <= %(until)s
"""
RELEASE_ENDED: LiteralString = f"""
    UPDATE notifications_endednotification AS notification SET dedup_key = NULL
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND ended_on IN ({{days}}) AND (
        created_at <= %(until)s OR state = '{State.UNCONFIRMED}' OR {_MAY_HAVE_REACHED_NOBODY} AND NOT EXISTS (
            SELECT FROM notifications_endedattempt
            WHERE notification_id = notification.id AND outcome = '{Outcome.AMBIGUOUS}'
                AND started_at > %(until)s
        )
    )
"""
FIND_IN_USE: LiteralString = """
    SELECT dedup_key FROM notifications_opennotification WHERE dedup_key = ANY (%(keys)b::bytea[])
    UNION ALL SELECT dedup_key FROM notifications_endednotification
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND ended_on IN ({days})
"""

# Limits ---------------------------------------------------------------------------------------------------------------

COUNT_BEYOND: LiteralString = """
    INSERT INTO notifications_beyondlimit (recipient, installation_id, begin_at, effect, push_limit, count, session)
    SELECT *, pg_backend_pid()
    FROM unnest(%(recipients)b::bytea[], %(installations)b::text[], %(begins)b::timestamptz[], %(effects)b::text[],
                %(limits)b::text[], %(counts)b::integer[])
    ON CONFLICT (recipient, installation_id, begin_at, effect, push_limit, session)
    DO UPDATE SET count = notifications_beyondlimit.count + excluded.count
"""
LEAVE_OUT_OLDEST: LiteralString = ending(
    f"n.id = ANY (ARRAY(SELECT id FROM locked)) AND {_MAY_BE_LEFT_OUT}",
    f"'{State.COALESCED}'",
    first=f"""
        ranked AS (
            SELECT id, row_number() OVER (PARTITION BY route_id ORDER BY id DESC) AS place
            FROM notifications_opennotification WHERE route_id = ANY (%(routes)b::bigint[]) AND {_MAY_BE_LEFT_OUT}
        ), locked AS (
            SELECT id FROM notifications_opennotification
            WHERE id = ANY (ARRAY(SELECT id FROM ranked WHERE place > %(limit)s))
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        ),
    """,
    returning="public_key_hash, installation_id",
)
FIND_WAKE_UPS: LiteralString = f"""
    SELECT route_id, type FROM notifications_opennotification
    WHERE route_id = ANY (%(routes)b::bigint[]) AND state = '{State.PENDING}'
        AND is_wake_up AND expires_at > %(still_at)s
"""
