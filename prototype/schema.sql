-- Work tables: open rows alone, each with a time from which anybody may act on it. What ended is in the table of its day.
CREATE TABLE proto_request (
    id bigserial PRIMARY KEY,
    due_at timestamptz NOT NULL,      -- when it is answered at the latest; the last first result answers it sooner
    open_count smallint NOT NULL,     -- notifications without a first result
    bridge text NOT NULL, request_key bytea NOT NULL, source_key bytea NOT NULL, reply_address bytea,
    sender_digest bytea NOT NULL, message_id bytea NOT NULL, received_at timestamptz NOT NULL,
    reports bytea NOT NULL            -- a byte for each position: 0 for none yet, else 1 + the wire's error
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX ON proto_request (due_at);

CREATE TABLE proto_notification (
    id bigserial PRIMARY KEY,
    due_at timestamptz NOT NULL,      -- of a claimed row the end of its lease
    expires_at timestamptz NOT NULL,
    claimed_at timestamptz,           -- since when an attempt is under way; NULL while it waits
    attempt_count smallint NOT NULL, ambiguous_count smallint NOT NULL DEFAULT 0, deaths smallint NOT NULL DEFAULT 0,
    queue_id integer NOT NULL, route_id bigint NOT NULL, route_generation bigint NOT NULL,
    request_id bigint NOT NULL, position smallint NOT NULL,
    public_key_hash bytea NOT NULL, installation_id text NOT NULL, type bigint NOT NULL,
    dedup_key bytea NOT NULL UNIQUE, chat_id bytea, message bytea, payload_dropped boolean NOT NULL DEFAULT FALSE,
    token_type smallint NOT NULL, app_topic text NOT NULL, gateway text NOT NULL, is_probe boolean NOT NULL DEFAULT FALSE,
    created_at timestamptz NOT NULL, unsent_since timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX ON proto_notification (queue_id, due_at);
CREATE INDEX ON proto_notification (expires_at);
CREATE INDEX ON proto_notification (route_id);

CREATE TABLE proto_request_history (LIKE proto_request, answered_at timestamptz NOT NULL) PARTITION BY RANGE (answered_at);
ALTER TABLE proto_request_history DROP COLUMN due_at, DROP COLUMN open_count, DROP COLUMN reply_address;
CREATE INDEX ON proto_request_history (id);
CREATE INDEX ON proto_request_history (request_key);
CREATE INDEX ON proto_request_history (message_id);
CREATE INDEX ON proto_request_history USING brin (received_at);

CREATE TABLE proto_notification_history (
    id bigint NOT NULL, request_id bigint NOT NULL, position smallint NOT NULL, public_key_hash bytea NOT NULL,
    installation_id text NOT NULL, type bigint NOT NULL, route_id bigint NOT NULL, queue_id integer NOT NULL,
    dedup_key bytea, attempt_count smallint NOT NULL, created_at timestamptz NOT NULL, expires_at timestamptz NOT NULL,
    state text NOT NULL, finished_at timestamptz NOT NULL
) PARTITION BY RANGE (finished_at);
CREATE INDEX ON proto_notification_history (id);
CREATE INDEX ON proto_notification_history (request_id);
CREATE INDEX ON proto_notification_history (dedup_key);
CREATE INDEX ON proto_notification_history (public_key_hash, id);

CREATE TABLE proto_attempt (
    notification_id bigint NOT NULL, number smallint NOT NULL, gateway text NOT NULL, token_type smallint NOT NULL,
    app_topic text NOT NULL, is_probe boolean NOT NULL, started_at timestamptz NOT NULL, began_at timestamptz,
    ended_at timestamptz, waited_ms integer, latency_ms integer, outcome text, code text NOT NULL, error text NOT NULL,
    is_guarded boolean NOT NULL, UNIQUE (notification_id, number, started_at)
) PARTITION BY RANGE (started_at);
CREATE INDEX ON proto_attempt (token_type, app_topic, started_at);
CREATE INDEX ON proto_attempt USING brin (started_at);
CREATE INDEX ON proto_attempt (code) WHERE code <> '';

DO $$ DECLARE day date; name text; BEGIN
    FOR n IN -1..7 LOOP
        day := current_date + n;
        FOREACH name IN ARRAY ARRAY['proto_request_history', 'proto_notification_history', 'proto_attempt'] LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L) WITH (fillfactor = 100)',
                           name || '_d' || to_char(day, 'YYYYMMDD'), name, day, day + 1);
        END LOOP;
    END LOOP;
END $$;
