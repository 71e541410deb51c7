-- The rows of a server that has run for a month, for `manage.py seed_bench`. The number of a row decides its contents, so
-- that rows of different tables fit together, and a second run makes the same ones.
--
-- Before these statements `seed_bench.py` defines pg_temp.registrations(), pg_temp.notifications(), pg_temp.known_keys()
-- and the encrypted samples.

-- A random value from 0 to 9999, always the same for a number. The salt makes one fact independent of another.
CREATE FUNCTION pg_temp.chance(number bigint, salt bigint) RETURNS int LANGUAGE sql IMMUTABLE
    RETURN (hashint8extended(number, salt) & 1073741823) % 10000;

CREATE FUNCTION pg_temp.pick(number bigint, salt bigint, size bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN (hashint8extended(number, salt) & 4611686018427387903) % size;

-- The first user has very many installations, and the second has one with a long history. Among the others, ten
-- installations belong to seven users.
CREATE FUNCTION pg_temp.crowd() RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN least(300, pg_temp.registrations() / 10);

CREATE FUNCTION pg_temp.person(registration bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN registration <= pg_temp.crowd() THEN 0 WHEN registration = pg_temp.crowd() + 1 THEN 1
    ELSE 2 + (registration - pg_temp.crowd() - 2) / 10 * 7
        + (ARRAY[0, 0, 0, 1, 1, 2, 3, 4, 5, 6])[1 + (registration - pg_temp.crowd() - 2) % 10] END;

CREATE FUNCTION pg_temp.key_hash(person bigint) RETURNS bytea LANGUAGE sql IMMUTABLE
    RETURN coalesce((pg_temp.known_keys())[1 + person], sha512(('person ' || person)::bytea));

CREATE FUNCTION pg_temp.installation(registration bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN md5('installation ' || registration)::uuid::text;

CREATE FUNCTION pg_temp.is_registered(registration bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN registration <= pg_temp.crowd() + 1 OR pg_temp.chance(registration, 1) >= 600;

CREATE FUNCTION pg_temp.token_type(registration bigint) RETURNS int LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN pg_temp.chance(registration, 2) < 4500 THEN 1 ELSE 2 END;

CREATE FUNCTION pg_temp.app_topic(registration bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN pg_temp.token_type(registration) = 2 THEN ''
    WHEN pg_temp.chance(registration, 3) < 9500 THEN 'im.status.ethereum' ELSE 'im.status.ethereum.pr' END;

-- Ten notifications come from seven requests.
CREATE FUNCTION pg_temp.request(notification bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN 1 + (notification - 1) / 10 * 7 + (ARRAY[0, 0, 0, 1, 1, 2, 3, 4, 5, 6])[1 + (notification - 1) % 10];

CREATE FUNCTION pg_temp.requested_at(request bigint) RETURNS timestamptz LANGUAGE sql STABLE
    RETURN now() - interval '30 days' * (1 - request::float8 / pg_temp.request(pg_temp.notifications()));

CREATE FUNCTION pg_temp.recipient(notification bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN pg_temp.chance(notification, 4) < 100 THEN 1 + pg_temp.pick(notification, 5, pg_temp.crowd())
    WHEN pg_temp.chance(notification, 4) < 150 THEN pg_temp.crowd() + 1
    ELSE 1 + pg_temp.pick(notification, 6, pg_temp.registrations()) END;

-- The newest notifications are still under way.
CREATE FUNCTION pg_temp.notification_state(notification bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN notification > pg_temp.notifications() - greatest(40, pg_temp.notifications() / 500)
    THEN CASE WHEN pg_temp.chance(notification, 7) < 300 THEN 'in_flight'
        WHEN pg_temp.chance(notification, 7) < 800 THEN 'ambiguous'
        WHEN pg_temp.chance(notification, 7) < 6500 THEN 'retrying' ELSE 'pending' END
    ELSE CASE WHEN pg_temp.chance(notification, 7) < 8200 THEN 'delivered'
        WHEN pg_temp.chance(notification, 7) < 8500 THEN 'dead_token'
        WHEN pg_temp.chance(notification, 7) < 8503 THEN 'undeliverable'
        WHEN pg_temp.chance(notification, 7) < 8600 THEN 'unconfirmed'
        WHEN pg_temp.chance(notification, 7) < 8750 THEN 'expired'
        WHEN pg_temp.chance(notification, 7) < 9500 THEN 'withdrawn' ELSE 'coalesced' END END;

CREATE FUNCTION pg_temp.tries(notification bigint) RETURNS int LANGUAGE sql IMMUTABLE
    RETURN CASE pg_temp.notification_state(notification)
    WHEN 'delivered' THEN CASE WHEN pg_temp.chance(notification, 8) < 9000 THEN 1 ELSE 2 END
    WHEN 'expired' THEN 7 WHEN 'retrying' THEN 3 WHEN 'unconfirmed' THEN 2
    WHEN 'dead_token' THEN 1 WHEN 'undeliverable' THEN 1 WHEN 'ambiguous' THEN 1 WHEN 'in_flight' THEN 1 ELSE 0 END;

CREATE FUNCTION pg_temp.dead_code(token_type int, number bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN token_type = 2 THEN 'unregistered'
    WHEN pg_temp.chance(number, 9) < 9800 THEN 'Unregistered' ELSE 'BadDeviceToken' END;

-- The envelopes of requests, of the last three days. Other envelopes have numbers below zero.
CREATE FUNCTION pg_temp.envelope(number bigint) RETURNS bytea LANGUAGE sql IMMUTABLE
    RETURN sha256(('envelope ' || number)::bytea);

CREATE FUNCTION pg_temp.first_kept_request() RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN 1 + pg_temp.request(pg_temp.notifications()) * 9 / 10;

INSERT INTO registrations_route (id, gateway, token_type, app_topic, address_encrypted, address_digest, state,
    disabled_reason, disabled_at, generation, bridge, failing_since, last_failure_at, last_success_at, delivered_digest,
    created_at)
    SELECT n, 'gorush', pg_temp.token_type(n), pg_temp.app_topic(n), pg_temp.device_token(), sha256(('token ' || n)::bytea),
    CASE WHEN c < 700 THEN 'disabled' ELSE 'active' END,
    CASE WHEN c < 600 THEN 'dead' WHEN c < 690 THEN 'failing' WHEN c < 700 THEN 'operator' ELSE '' END,
    CASE WHEN c < 700 THEN now() - c * interval '1 hour' END, 1 + c % 3, 'waku',
    CASE WHEN c BETWEEN 600 AND 900 THEN now() - c * interval '4 minutes' END,
    CASE WHEN c BETWEEN 600 AND 900 THEN now() - c * interval '1 minute' END,
    CASE WHEN c < 9000 THEN now() - c * interval '1 minute' END,
    CASE WHEN c < 9000 THEN sha256(('token ' || n)::bytea) END, now() - interval '400 days' * c / 10000
    FROM generate_series(1, pg_temp.registrations()) n, LATERAL (SELECT pg_temp.chance(n, 10) AS c) r
    WHERE pg_temp.is_registered(n);

INSERT INTO registrations_registration (id, public_key_hash, installation_id, version, state, route_id,
    access_token_encrypted, access_token_digest, enabled, allow_from_contacts_only, block_mentions, allowed_key_list,
    blocked_chat_list, muted_chat_list, allowed_mentions_chat_list, content_digest, pseudonym, created_at, updated_at)
    SELECT n, pg_temp.key_hash(pg_temp.person(n)), pg_temp.installation(n), 1 + c % 40,
    CASE WHEN is_active THEN 'active' ELSE 'unregistered' END, CASE WHEN is_active THEN n END,
    CASE WHEN is_active THEN pg_temp.access_token() END, CASE WHEN is_active THEN sha256(('access ' || n)::bytea) END,
    is_active AND c >= 300, c % 10 = 0, c % 5 = 0,
    CASE WHEN c % 10 = 0 THEN (SELECT array_agg(sha512((n + i)::text::bytea)) FROM generate_series(1, 20) i)
    ELSE ARRAY[]::bytea[] END,
    CASE WHEN c % 7 = 0 THEN ARRAY[sha512(n::text::bytea)] ELSE ARRAY[]::bytea[] END, ARRAY[]::bytea[],
    ARRAY[]::bytea[], sha256(('content ' || n)::bytea), CASE WHEN is_active THEN md5('pseudonym ' || n)::uuid END,
    now() - interval '400 days' * c / 10000, now() - interval '30 days' * c / 10000
    FROM generate_series(1, pg_temp.registrations()) n,
    LATERAL (SELECT pg_temp.chance(n, 11) AS c, pg_temp.is_registered(n) AS is_active) r;

INSERT INTO registrations_grant (id, registration_id, server_public_key, signature, access_token_digest, granted_at)
    SELECT id, id, '\x02'::bytea || sha256('server'), sha512(id::text::bytea) || '\x00'::bytea, access_token_digest,
    updated_at
    FROM registrations_registration WHERE state = 'active';

-- For every ten registrations there is one device of an XMPP app. The routes of devices have the highest numbers.
CREATE FUNCTION pg_temp.is_device(device bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN pg_temp.chance(device, 41) >= 500;

INSERT INTO xmpp_bridge_app (id, slug, app_topic, takes_firebase, style, text, sound, calls_as_alerts, passes_texts,
    refuses_texts, is_retired, created_at)
    SELECT n, 'app-' || n, CASE WHEN n = 1 THEN 'org.example.chat' ELSE '' END, true, 'generic', 'New message', 'default',
    false, false, false, false, now() - interval '400 days'
    FROM generate_series(1, 3) n;

INSERT INTO registrations_route (id, gateway, token_type, app_topic, address_encrypted, address_digest, state,
    disabled_reason, disabled_at, generation, bridge, last_success_at, delivered_digest, created_at)
    SELECT pg_temp.registrations() + n, 'gorush', 2, '', pg_temp.device_token(), sha256(('device ' || n)::bytea),
    CASE WHEN c < 700 THEN 'disabled' ELSE 'active' END, CASE WHEN c < 700 THEN 'dead' ELSE '' END,
    CASE WHEN c < 700 THEN now() - c * interval '1 hour' END, 1, 'xmpp',
    CASE WHEN c < 9000 THEN now() - c * interval '1 minute' END,
    CASE WHEN c < 9000 THEN sha256(('device ' || n)::bytea) END, now() - interval '90 days' * c / 10000
    FROM generate_series(1, pg_temp.registrations() / 10) n, LATERAL (SELECT pg_temp.chance(n, 40) AS c) r
    WHERE pg_temp.is_device(n);

INSERT INTO xmpp_bridge_device (id, app_id, domain, device_key, owner_key, route_id, state, announced_from, registered_at,
    pushed_at, ended_at)
    SELECT md5('device ' || n)::uuid, 1 + n % 3, 'server-' || n % 500 || '.example', sha256(('device key ' || n)::bytea),
    sha256(('owner ' || n / 2)::bytea), CASE WHEN is_active THEN pg_temp.registrations() + n END,
    CASE WHEN is_active THEN 'active' WHEN c < 300 THEN 'unregistered' ELSE 'expired' END, NULL,
    now() - interval '90 days' * c / 10000, CASE WHEN c > 500 THEN date_trunc('day', now() - c * interval '1 minute') END,
    CASE WHEN NOT is_active THEN now() - c * interval '1 hour' END
    FROM generate_series(1, pg_temp.registrations() / 10) n, LATERAL (SELECT pg_temp.chance(n, 41) AS c) r,
    LATERAL (SELECT pg_temp.is_device(n) AS is_active) s;

INSERT INTO registrations_topickey (name, topic, key_encrypted, created_at)
    SELECT encode(key_hash, 'hex'), ('x' || encode(substr(key_hash, 1, 4), 'hex'))::bit(32)::bigint,
    CASE WHEN pg_temp.chance(n, 12) < 4000 THEN pg_temp.topic_key() END, now() - interval '400 days' * n / last
    FROM (SELECT pg_temp.person(pg_temp.registrations()) AS last) p, generate_series(0, last) n,
    LATERAL (SELECT pg_temp.key_hash(n) AS key_hash) r;

INSERT INTO registrations_registrationevent (kind, pseudonym, token_type, app_topic, bridge, at)
    SELECT CASE WHEN n % 3 = 1 THEN 'registered' WHEN c < 6000 THEN 'refreshed'
    WHEN c < 8000 THEN 'settings_changed' WHEN c < 9200 THEN 'token_changed' WHEN c < 9500 THEN 'unregistered'
    WHEN c < 9900 THEN 'token_died' WHEN c < 9998 THEN 'expired' ELSE 'revived' END,
    md5('pseudonym ' || r)::uuid, pg_temp.token_type(r), pg_temp.app_topic(r), 'waku',
    now() - interval '400 days' * (1 - n::float8 / last)
    FROM (SELECT 3 * pg_temp.registrations() AS last) p, generate_series(1, last) n,
    LATERAL (SELECT pg_temp.chance(n, 13) AS c, CASE WHEN n % 3 = 1 THEN (n + 2) / 3
    WHEN n % 300 = 0 THEN pg_temp.crowd() + 1 ELSE 1 + n * 7919 % ((n + 2) / 3) END AS r) e;

CREATE TEMP VIEW made_requests AS
    SELECT n AS id, 'waku' AS bridge, sha256(('metadata message ' || n)::bytea) AS request_key,
    sha256(('message ' || n)::bytea) AS message_id, pg_temp.envelope(n) AS source_key,
    sha256((n % 50000)::text::bytea) AS sender_digest, at AS received_at, at + interval '2 seconds' AS reply_due_at,
    n > last - 10 AS is_open
    FROM (SELECT pg_temp.request(pg_temp.notifications()) AS last) p, generate_series(1, last) n,
    LATERAL (SELECT pg_temp.requested_at(n) AS at) r;

INSERT INTO notifications_openrequest (id, bridge, request_key, message_id, source_key, sender_digest, received_at,
    reply_due_at, reply_address, reports, names)
    SELECT id, bridge, request_key, message_id, source_key, sender_digest, received_at, reply_due_at,
    '\x02'::bytea || sha256(id::text::bytea) || '/waku/2/rs/16/32'::bytea, '\x80',
    '\x0000000000000000' FROM made_requests WHERE is_open;

INSERT INTO notifications_answeredrequest (id, bridge, request_key, message_id, source_key, sender_digest, received_at,
    reply_due_at, answered_at, ended_on)
    SELECT id, bridge, request_key, message_id, source_key, sender_digest, received_at, reply_due_at, answered_at,
    answered_at::date FROM made_requests,
    LATERAL (SELECT received_at + pg_temp.chance(id, 14) * interval '0.2 milliseconds' AS answered_at) a WHERE NOT is_open;

INSERT INTO notifications_requestdigest (digest, received_at)
    SELECT substring(sha256('waku'::bytea || '\x00' || request_key) FOR 16), received_at
    FROM notifications_notificationrequest;

CREATE TEMP VIEW made_notifications (id, request_id, position, public_key_hash, installation_id, type, route_id,
    route_generation, state, report, chat_id, message, payload_dropped, attempt_count, ambiguous_count,
    due_at, created_at, expires_at, finished_at, is_open) AS
    SELECT n, pg_temp.request(n), (ARRAY[0, 1, 2, 0, 1, 0, 0, 0, 0, 0])[1 + (n - 1) % 10],
    pg_temp.key_hash(pg_temp.person(r)), pg_temp.installation(r),
    (ARRAY[1, 1, 1, 1, 1, 1, 2, 2, 3, 4])[1 + pg_temp.pick(n, 15, 10)],
    CASE WHEN pg_temp.is_registered(r) THEN r END, 1, state,
    CASE WHEN NOT is_open THEN CASE state WHEN 'dead_token' THEN 'not_registered' ELSE 'success' END END,
    CASE WHEN is_open THEN sha512(n::text::bytea) END,
    CASE WHEN is_open THEN sha512(n::text::bytea) || sha512(r::text::bytea) END, false, pg_temp.tries(n),
    CASE state WHEN 'ambiguous' THEN 1 WHEN 'unconfirmed' THEN 2 ELSE 0 END,
    CASE state WHEN 'in_flight' THEN now() + (pg_temp.chance(n, 16) - 1000) * interval '0.01 seconds'
    ELSE now() + (pg_temp.chance(n, 16) - 1000) * interval '0.2 seconds' END, at,
    at + interval '1 day', finished_at, is_open
    FROM generate_series(1, pg_temp.notifications()) n,
    LATERAL (SELECT pg_temp.recipient(n) AS r, pg_temp.notification_state(n) AS state,
    pg_temp.requested_at(pg_temp.request(n)) + interval '5 milliseconds' AS at) f,
    LATERAL (SELECT state IN ('pending', 'retrying', 'ambiguous', 'in_flight') AS is_open) o,
    LATERAL (SELECT CASE WHEN state = 'expired' THEN least(at + interval '1 day', now())
    WHEN NOT is_open THEN at + pg_temp.chance(n, 17) * interval '0.1 milliseconds' END AS finished_at) e;

INSERT INTO notifications_opennotification (id, request_id, position, public_key_hash, installation_id, type, route_id,
    route_generation, state, chat_id, message, payload_dropped, attempt_count, ambiguous_count,
    due_at, created_at, expires_at, attempt_id, claimed_at, gateway)
    SELECT id, request_id, position, public_key_hash, installation_id, type, route_id, route_generation, state,
    chat_id, message, payload_dropped, attempt_count, ambiguous_count, due_at, created_at,
    expires_at, CASE state WHEN 'in_flight' THEN nextval('notifications_endedattempt_id_seq') END,
    CASE state WHEN 'in_flight' THEN now() END, 'gorush' FROM made_notifications WHERE is_open;

INSERT INTO notifications_endednotification (id, request_id, position, public_key_hash, installation_id, type, route_id,
    route_generation, state, report, payload_dropped, attempt_count, ambiguous_count, created_at, expires_at,
    finished_at, ended_on)
    SELECT id, request_id, position, public_key_hash, installation_id, type, route_id, route_generation, state, report,
    payload_dropped, attempt_count, ambiguous_count, created_at, expires_at, finished_at, finished_at::date
    FROM made_notifications WHERE NOT is_open;

INSERT INTO notifications_endedattempt (notification_id, number, gateway, token_type, app_topic, started_at, latency_ms,
    outcome, code, is_guarded, late_code)
    SELECT n.id, k, 'gorush', t.token_type, pg_temp.app_topic(r),
    least(n.created_at + interval '20 milliseconds' + (k - 1) * interval '4 hours', now()),
    5 + pg_temp.pick(n.id, k, 400), o.outcome,
    CASE o.outcome WHEN 'dead' THEN pg_temp.dead_code(t.token_type, n.id) WHEN 'payload' THEN 'PayloadTooLarge'
    WHEN 'config' THEN 'InvalidProviderToken'
    WHEN 'ambiguous' THEN (ARRAY['timeout', 'connection_lost', 'not_json'])[1 + pg_temp.pick(n.id, 18, 3)]
    WHEN 'transient' THEN (ARRAY['unavailable', 'InternalServerError', 'TooManyRequests', 'unreachable',
    'google_5xx'])[1 + pg_temp.pick(n.id, 19, 5)] ELSE '' END, false, ''
    FROM notifications_notification n CROSS JOIN LATERAL generate_series(1, n.attempt_count) k,
    LATERAL (SELECT pg_temp.recipient(n.id) AS r) f, LATERAL (SELECT pg_temp.token_type(r) AS token_type) t,
    LATERAL (SELECT CASE WHEN n.state IN ('unconfirmed', 'ambiguous') THEN 'ambiguous'
    WHEN k < n.attempt_count OR n.state IN ('retrying', 'expired')
    THEN CASE WHEN pg_temp.chance(n.id, 20) < 200 THEN 'config' ELSE 'transient' END
    WHEN n.state = 'delivered' THEN 'delivered' WHEN n.state = 'dead_token' THEN 'dead'
    WHEN n.state = 'undeliverable' THEN 'payload' END AS outcome) o WHERE o.outcome IS NOT NULL;

INSERT INTO waku_bridge_endedenvelope (hash, pubsub_topic, content_topic, timestamp_ns, payload, state, reason,
    message_type, message_id, source, path, received_at, processed_at, ended_on)
    SELECT pg_temp.envelope(n), '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, NULL, 'processed', '', 20,
    sha256(('metadata message ' || n)::bytea), 'http://127.0.0.1:8645', 'live', at, at + interval '15 milliseconds',
    ((at + interval '15 milliseconds') AT TIME ZONE 'UTC')::date
    FROM generate_series(pg_temp.first_kept_request(), pg_temp.request(pg_temp.notifications())) n,
    LATERAL (SELECT pg_temp.requested_at(n) - interval '10 milliseconds' AS at) r;

CREATE TEMP TABLE made_envelopes AS
    SELECT pg_temp.envelope(-n) AS hash, '/waku/2/rs/16/32' AS pubsub_topic,
    '/waku/1/0x' || encode(substr(sha256((n % 70000)::text::bytea), 1, 4), 'hex') || '/rfc26' AS content_topic,
    0 AS timestamp_ns, CASE WHEN state IN ('failed', 'received', 'pending_key') THEN sha512(n::text::bytea) END AS payload,
    state, 'http://127.0.0.1:8645' AS source,
    CASE WHEN c < 9000 THEN 'live' WHEN c < 9900 THEN 'store' ELSE 'backfill' END AS path, at AS received_at, c
    FROM (SELECT pg_temp.request(pg_temp.notifications()) - pg_temp.first_kept_request() AS last) p,
    generate_series(1, last) n, LATERAL (SELECT pg_temp.chance(n, 21) AS c,
    now() - interval '3 days' * (1 - n::float8 / last) AS at) r, LATERAL (SELECT CASE WHEN n > last - 20 THEN 'received'
    WHEN n > last - 30 THEN 'pending_key' WHEN c < 300 THEN 'dropped' WHEN c < 302 THEN 'failed' ELSE 'processed' END
    AS state) s;

INSERT INTO waku_bridge_openenvelope (hash, pubsub_topic, content_topic, timestamp_ns, payload, state, source, path,
    received_at, due_at)
    SELECT hash, pubsub_topic, content_topic, timestamp_ns, payload, state, source, path, received_at, received_at
    FROM made_envelopes WHERE state IN ('received', 'pending_key');

INSERT INTO waku_bridge_endedenvelope (hash, pubsub_topic, content_topic, timestamp_ns, payload, state, source, path,
    received_at, reason, message_type, processed_at, ended_on)
    SELECT hash, pubsub_topic, content_topic, timestamp_ns, payload, state, source, path, received_at,
    CASE state WHEN 'failed' THEN 'ValueError'
    WHEN 'dropped' THEN (ARRAY['not_decryptable', 'bad_signature', 'unsigned_message', 'unknown_type'])[1 + c % 4]
    ELSE CASE WHEN c % 20 = 0 THEN 'nothing_found' WHEN c % 50 = 1 THEN 'stale_version' ELSE '' END END,
    CASE WHEN state IN ('failed', 'dropped') THEN NULL WHEN c % 20 = 1 THEN 16 ELSE 18 END, at, (at AT TIME ZONE 'UTC')::date
    FROM made_envelopes, LATERAL (SELECT received_at + interval '15 milliseconds' AS at) r
    WHERE state NOT IN ('received', 'pending_key');

INSERT INTO waku_bridge_envelopehash (hash, sent_on)
    SELECT hash, (received_at AT TIME ZONE 'UTC')::date FROM waku_bridge_inboundenvelope;

CREATE TEMP TABLE made_replies AS
    SELECT hash AS envelope_hash, 0 AS part, message_type + 1 AS message_type, pubsub_topic, content_topic,
    0 AS timestamp_ns, sha256(hash) AS message_hash, 1 + c % 2 AS attempt_count, c / 9900 AS repeat_count,
    processed_at AS created_at, 'http://127.0.0.1:8645' AS node, c, is_new
    FROM waku_bridge_inboundenvelope, LATERAL (SELECT abs(hashtext(encode(hash, 'hex')) % 10000) AS c,
    received_at > now() - interval '20 seconds' AS is_new) r
    WHERE state = 'processed' AND message_type IN (16, 18, 20)
    ORDER BY received_at;

INSERT INTO waku_bridge_openreply (envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns,
    message_hash, attempt_count, repeat_count, created_at, node, state, due_at, published_at)
    SELECT envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns, message_hash, attempt_count,
    repeat_count, created_at, node, CASE WHEN c < 3000 THEN 'pending' ELSE 'published' END,
    now() + interval '2 seconds', CASE WHEN c >= 3000 THEN created_at + interval '20 milliseconds' END
    FROM made_replies WHERE is_new;

INSERT INTO waku_bridge_endedreply (envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns,
    message_hash, attempt_count, repeat_count, created_at, node, state, published_at, confirmed_at, ended_on)
    SELECT envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns, message_hash, attempt_count,
    repeat_count, created_at, node,
    CASE WHEN c < 9900 THEN 'confirmed' WHEN c < 9995 THEN 'unconfirmed' ELSE 'abandoned' END,
    created_at + interval '20 milliseconds', CASE WHEN c < 9900 THEN created_at + interval '3 seconds' END,
    (created_at AT TIME ZONE 'UTC')::date
    FROM made_replies WHERE NOT is_new;

INSERT INTO waku_bridge_deadletter (digest, reason, pubsub_topic, content_topic, raw, size_bytes, source, path,
    received_at)
    SELECT sha256(('letter ' || n)::bytea), (ARRAY['malformed', 'too_large', 'too_old'])[1 + n % 3],
    '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', '{"payload":"' || repeat('eA', 100) || '"}', 220 + n % 1000,
    'http://127.0.0.1:8645', CASE WHEN n % 9 = 0 THEN 'store' ELSE 'live' END,
    now() - interval '3 days' * (1 - n::float8 / last)
    FROM (SELECT greatest(100, pg_temp.registrations() / 50) AS last) p, generate_series(1, last) n;

INSERT INTO pushserver_canaryrun (network, state, is_dry_run, started_at, finished_at, broken_link, cause, detail, times,
    work_ms)
    SELECT 'waku', CASE WHEN is_broken THEN 'broken' ELSE 'passed' END, true, at, at + interval '3 seconds',
    CASE WHEN is_broken THEN 'gateway' ELSE '' END, CASE WHEN is_broken THEN 'gateway' ELSE '' END, '',
    jsonb_build_object('register', 12, 'register_answer', 80 + n % 90, 'query', 10, 'query_answer', 60 + n % 50,
    'request', 11, 'gateway', 5 + n % 20, 'request_answer', 90 + n % 70, 'unregister', 9, 'unregister_answer', 70), 40
    FROM generate_series(1, 10080) n,
    LATERAL (SELECT now() - (10080 - n) * interval '1 minute' AS at, n % 500 = 0 AS is_broken) r;

INSERT INTO waku_bridge_storewatermark (id, node, pubsub_topic, watermark_at, late_searched_at)
    SELECT n, 'http://node-' || n || '.test:8645', '/waku/2/rs/16/32', now(), now() FROM generate_series(1, 4) n;

INSERT INTO notifications_unknowngatewayerror (platform, signature, count, first_seen_at, last_seen_at)
    SELECT CASE n % 2 WHEN 0 THEN 'ios' ELSE 'android' END, 'an error that nobody has seen, ' || md5(n::text), n,
    now() - interval '20 days', now() - n * interval '1 minute' FROM generate_series(1, 500) n;

INSERT INTO notifications_channel (token_type, app_topic, last_success_at)
    SELECT token_type, app_topic, now()
    FROM (VALUES (1, 'im.status.ethereum'), (1, 'im.status.ethereum.pr'), (2, '')) AS channel (token_type, app_topic);

INSERT INTO pushserver_accessrecord (username, page, object_id, at)
    SELECT 'support-' || n % 20, 'registrations.registration', (1 + pg_temp.pick(n, 22, pg_temp.registrations()))::text,
    now() - interval '400 days' * (1 - n::float8 / last)
    FROM (SELECT greatest(200, pg_temp.registrations() / 10) AS last) p, generate_series(1, last) n;

INSERT INTO spark_reports_reportrun (id, from_day, to_day, state, step, started_at, finished_at, seen_at, event_count,
    result_count, finding_count, export_seconds, compute_seconds, publish_seconds, error, log_excerpt)
    SELECT n, day, day, 'succeeded', 'done', at, at + interval '5 minutes', at + interval '5 minutes', 1000000, 500, 0,
    20, 200, 1, '', '' FROM generate_series(1, 400) n,
    LATERAL (SELECT current_date - (401 - n)::int AS day, now() - (400 - n) * interval '1 day' AS at) r;

INSERT INTO spark_reports_publishedday (day, run_id, event_count, published_at)
    SELECT from_day, id, event_count, finished_at FROM spark_reports_reportrun;

INSERT INTO spark_reports_errorrate (day, hour, stage, platform, app_topic, bridge, outcome, code, is_failure, events,
    total, rate, rate_low, rate_high, usual_rate, change, z_score, usual_days)
    SELECT from_day, NULLIF(h, 24), 'attempt', CASE token_type WHEN 1 THEN 'ios' ELSE 'android' END, app_topic, 'waku',
    outcome, code, outcome <> 'delivered', 100 + h, 10000, 0.01, 0.009, 0.011, 0.01, 0, 0, 7
    FROM spark_reports_reportrun, generate_series(0, 24) h, notifications_channel,
    (VALUES ('delivered', ''), ('dead', 'Unregistered'), ('transient', 'unavailable'), ('ambiguous', 'timeout'),
    ('payload', 'PayloadTooLarge')) AS class (outcome, code);

INSERT INTO spark_reports_tokenchurn (day, platform, app_topic, bridge, active_at_start, new, returned, moved_in,
    refreshed, token_changed, unregistered, died, expired, moved_out, active_at_end, unexplained, churn_rate, net_growth)
    SELECT from_day, CASE token_type WHEN 1 THEN 'ios' ELSE 'android' END, app_topic, 'waku', 1000, 10, 1, 1, 500, 5,
    2, 3, 1, 1, 1005, 0, 0.006, 5 FROM spark_reports_reportrun, notifications_channel;

INSERT INTO spark_reports_latency (day, stage, platform, bridge, events, p50_ms, p90_ms, p95_ms, p99_ms, max_us,
    within_deadline)
    SELECT from_day, stage, platform, 'all', 10000, 50, 90, 120, 300, 900000, 0.999 FROM spark_reports_reportrun,
    unnest(ARRAY['dispatch', 'reply']) stage, unnest(ARRAY['ios', 'android']) platform;

INSERT INTO spark_reports_anomaly (day, figure, stage, platform, app_topic, bridge, events, total, value, usual,
    band_low, band_high, z_score, usual_days)
    SELECT from_day, 'error_rate', 'attempt', 'ios', '', 'waku', 200, 10000, 0.02, 0.01, 0.005, 0.015, 5, 7
    FROM spark_reports_reportrun WHERE id % 7 = 0;
