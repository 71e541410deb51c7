"""The SQL of this app, by name. The ORM does what is not here.

Statements of the path run through `kit.db.base`, whose parameters are bound by PostgreSQL (``%(name)b``).
"""

from datetime import timedelta
from typing import LiteralString

from kit.db.base import stored
from registrations.models import Registration, RegistrationEvent, Route
from registrations.rules import PROVEN_PER_ADDRESS

Kind = RegistrationEvent.Kind
# Queries --------------------------------------------------------------------------------------------------------------

# An answer has the token, or the encrypted copies of it if only contacts may use it. A list of keys is read only if it
# is part of the answer and within the limits. `pg_column_size` does not read it.
FIND_INSTALLATIONS: LiteralString = f"""
    WITH asked AS (
        SELECT registration.id, public_key_hash, signature, server_public_key, is_proven,
               row_number() OVER (PARTITION BY public_key_hash ORDER BY granted_at DESC, registration.id) AS recency,
               256 + CASE WHEN allow_from_contacts_only THEN pg_column_size(allowed_key_list) ELSE 0 END AS bytes
        FROM registrations_grant AS granted
        JOIN registrations_registration AS registration ON registration.id = granted.registration_id
        JOIN registrations_route AS route ON route.id = registration.route_id
        WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND server_public_key = ANY (%(servers)b::bytea[])
            AND registration.state = '{Registration.State.ACTIVE}' AND enabled AND route.state = '{Route.State.ACTIVE}'
            AND NOT EXISTS (
                SELECT FROM registrations_grant AS newer
                WHERE newer.registration_id = granted.registration_id AND newer.id <> granted.id
                    AND newer.server_public_key = ANY (%(servers)b::bytea[])
                    AND (newer.granted_at, newer.id) > (granted.granted_at, granted.id)
            )
    ), bounded AS (
        SELECT *, sum(bytes) OVER (PARTITION BY public_key_hash ORDER BY recency) AS of_key,
               sum(bytes) OVER (ORDER BY is_proven DESC, recency, bytes, id) AS of_batch
        FROM asked WHERE recency <= %(limit)s
    )
    SELECT registration.public_key_hash, installation_id, version::text, signature,
           CASE WHEN NOT allow_from_contacts_only THEN access_token_encrypted END,
           CASE WHEN allow_from_contacts_only THEN allowed_key_list END, server_public_key, is_proven
    FROM bounded JOIN registrations_registration AS registration ON registration.id = bounded.id
    WHERE of_key <= %(key_bytes)s AND of_batch <= %(batch_bytes)s
    ORDER BY registration.public_key_hash, recency
"""

# Routes ---------------------------------------------------------------------------------------------------------------

FIND_PROVEN_ADDRESSES: LiteralString = f"""
    SELECT public_key_hash, installation_id, access_token_digest, registration.version, route.address_digest
    FROM unnest(%(hashes)b::bytea[], %(installations)b::text[]) AS named (public_key_hash, installation_id)
    JOIN registrations_registration AS registration USING (public_key_hash, installation_id)
    JOIN registrations_route AS route ON route.id = registration.route_id
    WHERE registration.state = '{Registration.State.ACTIVE}' AND route.state = '{Route.State.ACTIVE}'
        AND route.is_proven
"""
FIND_PROVEN_KEYS: LiteralString = f"""
    SELECT DISTINCT public_key_hash FROM registrations_registration AS registration
    JOIN registrations_route AS route ON route.id = registration.route_id
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND registration.state = '{Registration.State.ACTIVE}'
        AND route.state = '{Route.State.ACTIVE}' AND route.is_proven
"""
LOCK_ROUTES = "SELECT FROM registrations_route WHERE id = ANY (%(ids)b::bigint[]) ORDER BY id FOR NO KEY UPDATE"
# A route is updated at most once per address and hour, because busy devices get many pushes.
NOTE_DELIVERED: LiteralString = f"""
    WITH proven AS MATERIALIZED (
        SELECT id, digest, row_number() OVER (PARTITION BY digest ORDER BY id) + (
            SELECT count(*) FROM (
                SELECT FROM registrations_route WHERE delivered_digest = digest LIMIT {PROVEN_PER_ADDRESS}
            ) AS known
        ) <= {PROVEN_PER_ADDRESS} AS is_new
        FROM unnest(%(ids)b::bigint[], %(digests)b::bytea[]) AS reached (id, digest)
        JOIN registrations_route USING (id)
        WHERE NOT is_proven AND delivered_digest IS DISTINCT FROM digest
    )
    UPDATE registrations_route AS route
    SET last_success_at = %(now)s, failing_since = NULL,
        delivered_digest = CASE WHEN is_proven THEN delivered_digest ELSE coalesce(locked.digest, delivered_digest) END
    FROM (
        SELECT route.id, proven.digest
        FROM registrations_route AS route LEFT JOIN proven ON proven.id = route.id AND is_new
        WHERE route.id = ANY (%(ids)b::bigint[]) AND (
            failing_since IS NOT NULL OR last_success_at IS NULL
            OR last_success_at < %(now)s::timestamptz - interval '1 hour' OR proven.digest IS NOT NULL
        )
        ORDER BY route.id FOR NO KEY UPDATE OF route
    ) AS locked
    WHERE route.id = locked.id
"""

# Quotas, and the rows that go when a table is full --------------------------------------------------------------------

# Expressions for estimated numbers of rows (see `kit.db.base`).
STORED_TOMBSTONES: LiteralString = stored(
    "registrations_registration", where=f"state = '{Registration.State.UNREGISTERED}'", index="registration_tombstone"
)
STORED_REGISTRATIONS: LiteralString = f"greatest(0, {stored('registrations_registration')} - {STORED_TOMBSTONES})"
TAKEN: LiteralString = f"""
    SELECT ''::bytea, {STORED_REGISTRATIONS}
    UNION ALL
    SELECT public_key_hash, count(*) FROM registrations_registration
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND state = '{Registration.State.ACTIVE}' GROUP BY 1
"""
# A route stays at least an hour, so that a flood replaces no user who has just registered. Some more routes than wanted
# are drawn, because other sessions may have locked some.
STAYS = timedelta(hours=1)
SPARE = 20
MAY_GO: LiteralString = (
    f"route.bridge = %(bridge)s AND (route.state = '{Route.State.DISABLED}' OR route.delivered_digest IS NULL)"
)
_SAMPLED: LiteralString = f"""
    SELECT id, created_at FROM registrations_route AS route
    WHERE {MAY_GO} AND route.state = '{Route.State.ACTIVE}' AND hashint8(id) {{side}} %(start)s::int
    ORDER BY hashint8(id) LIMIT %(sample)s
"""
_FROM_THERE: LiteralString = _SAMPLED.format(side=">=")
_BEFORE_IT: LiteralString = _SAMPLED.format(side="<")
# Each route gets a random place in its hour. The highest goes first, because only the fullest hour has it.
DRAWN: LiteralString = f"""
    (
        SELECT id, NULL AS place FROM registrations_route AS route
        WHERE {MAY_GO} AND route.state = '{Route.State.DISABLED}' ORDER BY hashint8(id) LIMIT %(number)s + {SPARE}
    ) UNION ALL (
        SELECT id, row_number() OVER (PARTITION BY date_trunc('hour', created_at) ORDER BY random()) AS place
        FROM (({_FROM_THERE}) UNION ALL ({_BEFORE_IT}) LIMIT %(sample)s) AS sampled
        WHERE created_at <= %(now)s::timestamptz - interval '{STAYS}' ORDER BY place DESC LIMIT %(number)s + {SPARE}
    )
"""
DRAW: LiteralString = f"""
    SELECT registration.id, route.id FROM ({DRAWN}) AS drawn
    JOIN registrations_registration AS registration ON registration.route_id = drawn.id
    JOIN registrations_route AS route ON route.id = drawn.id
    WHERE registration.id <> ALL (%(but)b::bigint[]) AND registration.state = '{Registration.State.ACTIVE}'
        AND {MAY_GO}
    ORDER BY place DESC NULLS FIRST LIMIT %(number)s FOR UPDATE OF registration, route SKIP LOCKED
"""
# A process of an earlier release may have registered a tombstone again, and does not know that it is forgettable.
# A tombstone has no token.
FORGET = """
    WITH oldest AS MATERIALIZED (
        SELECT id FROM registrations_registration
        WHERE is_forgettable AND access_token_digest IS NULL ORDER BY updated_at
        LIMIT least(1000, greatest(0, (
            SELECT count(*) FROM registrations_registration WHERE is_forgettable
        ) - %s))
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM registrations_registration USING oldest WHERE registrations_registration.id = oldest.id
"""

# Retention ------------------------------------------------------------------------------------------------------------

# The last event of an installation that can still be pushed to. Events of one batch have the same time, and ids in the
# order in which they were decided.
_STAYS: LiteralString = f"""
    kind NOT IN ('{Kind.UNREGISTERED}', '{Kind.TOKEN_DIED}', '{Kind.EXPIRED}') AND NOT EXISTS (
        SELECT FROM registrations_registrationevent AS later
        WHERE later.pseudonym = event.pseudonym AND (later.at, later.id) > (event.at, event.id)
    )
"""
LAST_OF_ACTIVE: LiteralString = f"""
    SELECT id FROM {{partition}} AS event WHERE id > %(after)s AND id <= %(up_to)s AND {_STAYS}
"""
PURGE_EVENTS: LiteralString = f"""
    DELETE FROM registrations_registrationevent_default AS event
    WHERE id > %(after)s AND id <= %(up_to)s AND at < %(before)s AND NOT ({_STAYS}) RETURNING id
"""
_END = f"""
    WITH old AS (
        SELECT registration.id, registration.pseudonym, route_id, token_type, app_topic, bridge, delivered_digest
        FROM registrations_registration AS registration JOIN registrations_route AS route ON route.id = route_id
        WHERE registration.state = '{Registration.State.ACTIVE}' AND {{which}}
        FOR UPDATE OF registration SKIP LOCKED
    ), ended AS ({{end}}), ungranted AS (
        DELETE FROM registrations_grant USING old WHERE registration_id = old.id
    ), noted AS (
        INSERT INTO registrations_registrationevent (kind, pseudonym, token_type, app_topic, bridge, at)
        SELECT '{Kind.EXPIRED}', pseudonym, token_type, app_topic, bridge, %(now)s FROM old
            WHERE pseudonym IS NOT NULL
    )
    SELECT route_id FROM old
"""
_TO_TOMBSTONE: LiteralString = f"""
    UPDATE registrations_registration AS registration
    SET state = '{Registration.State.UNREGISTERED}', is_forgettable = delivered_digest IS NULL,
        route_id = NULL, pseudonym = NULL, updated_at = %(now)s, access_token_encrypted = NULL,
        access_token_digest = NULL, enabled = false, allow_from_contacts_only = false, block_mentions = false,
        allowed_key_list = '{{}}', blocked_chat_list = '{{}}', muted_chat_list = '{{}}',
        allowed_mentions_chat_list = '{{}}'
    FROM old WHERE registration.id = old.id
"""
_TO_NOTHING: LiteralString = (
    "DELETE FROM registrations_registration AS registration USING old WHERE registration.id = old.id"
)
_UNUSED: LiteralString = """
    registration.id > %(after)s AND registration.id <= %(up_to)s
    AND updated_at < %(before)s AND coalesce(last_success_at, updated_at) < %(before)s
"""
EXPIRE: LiteralString = _END.format(which=f"{_UNUSED} ORDER BY registration.id", end=_TO_TOMBSTONE)
COUNT_UNUSED: LiteralString = f"""
    SELECT count(*) FROM registrations_registration AS registration
    JOIN registrations_route AS route ON route.id = route_id
    WHERE registration.state = '{Registration.State.ACTIVE}' AND {_UNUSED}
"""
END_DEAD: LiteralString = _END.format(
    which=f"""
        public_key_hash = %(key_hash)s AND route.state = '{Route.State.DISABLED}'
        AND installation_id <> ALL (%(but)b::text[]) ORDER BY disabled_at LIMIT 1
    """,
    end=_TO_TOMBSTONE,
)
END_REPLACED: LiteralString = _END.format(which="registration.id = ANY (%(ids)b::bigint[])", end=_TO_NOTHING)
REMOVE_TOMBSTONES: LiteralString = f"""
    DELETE FROM registrations_registration
    WHERE id > %(after)s AND id <= %(up_to)s AND state = '{Registration.State.UNREGISTERED}' AND updated_at < %(before)s
    RETURNING id
"""

# Query topics ---------------------------------------------------------------------------------------------------------

# All topics in one value, 4 bytes each. A million are read in 1.6 s, and with 32 768 rows in 1.9 s.
ALL_TOPICS = """
    SELECT coalesce(string_agg(substr(int8send(topic), 5), ''::bytea ORDER BY topic), ''::bytea)
    FROM (SELECT DISTINCT topic FROM registrations_topickey) AS topics
"""
STILL_USED = "SELECT topic FROM registrations_topickey WHERE topic = ANY(%b::bigint[])"
INSERT_TOPICS = """
    INSERT INTO registrations_topickey (name, topic, created_at)
    SELECT name, topic, %(now)s FROM unnest(%(names)b::text[], %(topics)b::bigint[]) AS new (name, topic)
    ON CONFLICT (name) DO NOTHING
    RETURNING topic
"""
TOPICS_WITHOUT_REGISTRATION = """
    SELECT name FROM registrations_topickey WHERE id > %(after)s AND id <= %(up_to)s AND NOT EXISTS (
        SELECT FROM registrations_registration WHERE public_key_hash = decode(name, 'hex')
    )
"""
REMOVE_TOPICS = """
    DELETE FROM registrations_topickey WHERE name = ANY (%(names)s::text[]) AND NOT EXISTS (
        SELECT FROM registrations_registration WHERE public_key_hash = decode(name, 'hex')
    ) RETURNING topic
"""
