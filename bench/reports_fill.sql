-- A day of a million rows in the proportions of a busy server, with a month of registration events before it.

INSERT INTO registrations_route (gateway, token_type, app_topic, address_encrypted, address_digest, state,
    disabled_reason, generation, bridge, created_at)
    SELECT 'gorush', 1 + n % 2, CASE n % 2 WHEN 0 THEN 'im.status.ethereum' ELSE '' END, '', '', 'active', '', 1, 'waku', now()
    FROM generate_series(1, 10000) n;

INSERT INTO notifications_channel (token_type, app_topic, last_success_at)
    VALUES (1, 'im.status.ethereum', now()), (2, '', now());

INSERT INTO waku_bridge_endedenvelope (hash, pubsub_topic, content_topic, timestamp_ns, state, reason,
    message_type, source, received_at, processed_at, ended_on)
    SELECT sha256(('e' || n)::bytea), '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, 'processed', '',
    CASE n % 20 WHEN 0 THEN 16 WHEN 1 THEN 18 ELSE 20 END, 'http://127.0.0.1:8645', at,
    at + interval '15 milliseconds', ((at + interval '15 milliseconds') AT TIME ZONE 'UTC')::date
    FROM generate_series(1, 270000) n, LATERAL (SELECT '2026-11-20Z'::timestamptz + n * interval '86400 seconds' / 270000 AS at) t;

INSERT INTO notifications_answeredrequest (id, bridge, request_key, message_id, source_key, sender_digest,
    received_at, reply_due_at, answered_at, ended_on)
    SELECT n, 'waku', sha256(('a' || n)::bytea), sha256(('m' || n)::bytea), sha256(('e' || n)::bytea),
    sha256((n % 50000)::text::bytea), at, at + interval '2 seconds', at + n % 2500 * interval '1 millisecond',
    (at + n % 2500 * interval '1 millisecond')::date
    FROM generate_series(1, 260000) n, LATERAL (SELECT '2026-11-20Z'::timestamptz + n * interval '86400 seconds' / 260000 AS at) t;

INSERT INTO notifications_endednotification (id, request_id, position, public_key_hash, installation_id, type, route_id,
    route_generation, state, report, payload_dropped, attempt_count, ambiguous_count, created_at, expires_at,
    finished_at, ended_on)
    SELECT n, n, 0, sha512((n % 20000)::text::bytea), gen_random_uuid()::text, 1, 1 + n % 10000, 1, 'delivered',
    'success', false, 1, 0, at, at + interval '1 day', at + interval '90 milliseconds',
    (at + interval '90 milliseconds')::date
    FROM generate_series(1, 260000) n, LATERAL (SELECT '2026-11-20Z'::timestamptz + n * interval '86400 seconds' / 260000 AS at) t;

INSERT INTO notifications_endedattempt (notification_id, number, gateway, token_type, app_topic, started_at, latency_ms,
    outcome, code, is_guarded)
    SELECT 1 + n % 260000, 1 + n / 260000, 'gorush', 1 + n % 2,
    CASE n % 2 WHEN 0 THEN 'im.status.ethereum' ELSE '' END, at, n % 900,
    CASE n % 25 WHEN 0 THEN 'transient' ELSE 'delivered' END, CASE n % 25 WHEN 0 THEN 'unavailable' ELSE '' END, false
    FROM generate_series(0, 299999) n, LATERAL (SELECT '2026-11-20Z'::timestamptz + n * interval '86400 seconds' / 300000 AS at) t;

INSERT INTO waku_bridge_endedreply (envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns,
    state, attempt_count, created_at, published_at, node, ended_on)
    SELECT sha256(('e' || n)::bytea), 0, 21, '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, 'confirmed', 1, at,
    at + interval '20 milliseconds', 'http://127.0.0.1:8645', (at AT TIME ZONE 'UTC')::date
    FROM generate_series(1, 140000) n, LATERAL (SELECT '2026-11-20Z'::timestamptz + n * interval '86400 seconds' / 140000 AS at) t;

INSERT INTO registrations_registrationevent (kind, pseudonym, token_type, app_topic, bridge, at)
    SELECT CASE WHEN n < 20000 THEN 'registered' ELSE 'refreshed' END, md5((n % 20000)::text)::uuid, 1 + n % 2,
    CASE n % 2 WHEN 0 THEN 'im.status.ethereum' ELSE '' END, 'waku',
    '2026-10-20Z'::timestamptz + n * interval '31 days' / 300000
    FROM generate_series(0, 300000 - 1) n;

INSERT INTO registrations_registrationevent (kind, pseudonym, token_type, app_topic, bridge, at)
    SELECT 'refreshed', md5((n % 20000)::text)::uuid, 1 + n % 2,
    CASE n % 2 WHEN 0 THEN 'im.status.ethereum' ELSE '' END, 'waku', '2026-11-20Z'::timestamptz + n * interval '86400 seconds' / 30000
    FROM generate_series(0, 29999) n;

VACUUM ANALYZE;
