-- Figures of one day's reports, computed again in plain SQL from the rows of the server, to check the formulas of
-- docs/reports.md. Facts of the canaries are left out, by the ids in the canaries' runs.
--
--   psql … -v day="'2026-11-20'" -f tests/reports/recompute.sql -c 'SELECT * FROM again_error_rates'
--
-- The views last as long as the session. Compare each with the table of the report, for instance spark_reports_errorrate.

SET TIME ZONE 'UTC';

CREATE TEMPORARY TABLE asked AS
    SELECT day, day::timestamptz AS starts_at, (day + 1)::timestamptz AS ends_at FROM (SELECT :day::date AS day) d;

CREATE TEMPORARY VIEW known_topics AS SELECT app_topic FROM notifications_channel WHERE token_type = 1;

CREATE TEMPORARY VIEW canary_devices AS
    SELECT device::text AS device FROM xmpp_bridge_canaryrun WHERE device IS NOT NULL;

CREATE TEMPORARY VIEW canary_pseudonyms AS
    SELECT pseudonym FROM waku_bridge_canaryrun WHERE pseudonym IS NOT NULL
    UNION SELECT pseudonym FROM xmpp_bridge_canaryrun WHERE pseudonym IS NOT NULL;

CREATE TEMPORARY VIEW requests AS
    SELECT * FROM notifications_notificationrequest
    WHERE source_key NOT IN (SELECT hash FROM waku_bridge_canaryenvelope);

CREATE TEMPORARY VIEW own_notifications AS
    SELECT n.*, r.bridge, r.received_at, r.answered_at, r.reply_due_at, r.sender_digest,
        CASE route.token_type WHEN 1 THEN 'ios' WHEN 2 THEN 'android' ELSE 'none' END AS platform,
        CASE WHEN route.token_type IS DISTINCT FROM 1 THEN ''
            WHEN route.app_topic IN (SELECT app_topic FROM known_topics) THEN route.app_topic ELSE '(other)' END AS app_topic
    FROM notifications_notification n JOIN requests r ON r.id = n.request_id
    LEFT JOIN registrations_route route ON route.id = n.route_id
    WHERE n.installation_id NOT IN (SELECT device FROM canary_devices);

-- Decisions without a notification: two bytes for each place of a request, the verdict and the type.
CREATE TEMPORARY VIEW decided AS
    SELECT r.received_at, r.answered_at, r.reply_due_at, r.bridge, r.sender_digest, place, verdict.state, verdict.report
    FROM requests r CROSS JOIN generate_series(0, length(r.decided) / 2 - 1) AS place
    JOIN (VALUES (1, 'suppressed', 'success'), (2, 'duplicate', 'success'), (3, 'refused', 'wrong_token'),
        (4, 'refused', 'not_registered'), (5, 'refused', 'internal_error'), (6, 'coalesced', 'success'))
        AS verdict (code, state, report) ON verdict.code = get_byte(r.decided, 2 * place);

CREATE TEMPORARY VIEW own_attempts AS
    SELECT a.id, a.notification_id, a.number, a.started_at, a.waited_ms, a.latency_ms, a.outcome, a.code, a.error,
        a.late_code, n.bridge,
        CASE a.token_type WHEN 1 THEN 'ios' WHEN 2 THEN 'android' ELSE 'none' END AS platform,
        CASE WHEN a.token_type <> 1 THEN ''
            WHEN a.app_topic IN (SELECT app_topic FROM known_topics) THEN a.app_topic ELSE '(other)' END AS app_topic
    FROM notifications_attempt a JOIN own_notifications n ON n.id = a.notification_id;

-- Error rates ---------------------------------------------------------------------------------------------------------
CREATE TEMPORARY VIEW outcomes AS
    SELECT received_at AS at,
        CASE message_type WHEN 16 THEN 'registration' WHEN 18 THEN 'query' WHEN 20 THEN 'request' ELSE 'inbox' END AS stage,
        'none' AS platform, '' AS app_topic, 'waku' AS bridge,
        CASE WHEN state IN ('dropped', 'failed') THEN state WHEN state <> 'processed' THEN 'open'
            WHEN reason = 'nothing_found' THEN 'nothing_found' WHEN reason <> '' THEN 'refused'
            WHEN message_type IN (16, 18, 20) THEN 'accepted' ELSE 'read' END AS outcome,
        CASE reason WHEN 'nothing_found' THEN '' ELSE reason END AS code
    FROM waku_bridge_inboundenvelope
    WHERE hash NOT IN (SELECT hash FROM waku_bridge_canaryenvelope)
        AND NOT coalesce(message_type = 20 AND state = 'processed', false)
    UNION ALL
    SELECT at, 'request', platform, app_topic, bridge,
        CASE WHEN state IN ('refused', 'suppressed', 'duplicate') THEN state ELSE 'accepted' END,
        CASE state WHEN 'refused' THEN report ELSE '' END
    FROM (
        SELECT created_at AS at, platform, app_topic, bridge, state, coalesce(report, '') AS report FROM own_notifications
        UNION ALL SELECT received_at, 'none', '', bridge, state, report FROM decided
    ) AS asked_for
    UNION ALL
    SELECT started_at, 'dispatch', platform, app_topic, bridge, coalesce(outcome, 'open'), code FROM own_attempts
    UNION ALL
    SELECT created_at, 'reply', 'none', '', 'waku',
        CASE WHEN state = 'pending' THEN 'waiting' WHEN state = 'unconfirmed' AND repeat_count = 0 THEN 'unchecked'
            ELSE state END,
        CASE message_type WHEN 17 THEN 'registration_response' WHEN 19 THEN 'query_response' WHEN 21 THEN 'response' END
    FROM waku_bridge_outboundreply WHERE envelope_hash NOT IN (SELECT hash FROM waku_bridge_canaryenvelope);

CREATE TEMPORARY VIEW counted AS
    SELECT day, extract(hour FROM at)::int AS hour, stage, platform, app_topic, bridge, outcome, code, count(*) AS events
    FROM outcomes JOIN asked ON at >= starts_at AND at < ends_at
    GROUP BY GROUPING SETS ((1, 2, 3, 4, 5, 6, 7, 8), (1, 3, 4, 5, 6, 7, 8));

-- The usual rate is the median of the seven days before. A day with events in the cell and none of this outcome counts as
-- 0. The scale is 1.4826 × the median absolute deviation, and at least the chance deviation with half an event added.
CREATE TEMPORARY VIEW again_error_rates AS
    WITH rates AS (
        SELECT *, sum(events) OVER (PARTITION BY day, hour, stage, platform, app_topic, bridge) AS total FROM counted
    ), seen AS (
        SELECT c.hour, c.stage, c.platform, c.app_topic, c.bridge, c.outcome, c.code, cell.day, coalesce(same.rate, 0) AS rate
        FROM rates c CROSS JOIN asked
        JOIN (SELECT DISTINCT day, hour, stage, platform, app_topic, bridge FROM spark_reports_errorrate) cell
            ON cell.day BETWEEN asked.day - 7 AND asked.day - 1 AND cell.hour IS NOT DISTINCT FROM c.hour
            AND (cell.stage, cell.platform, cell.app_topic, cell.bridge) = (c.stage, c.platform, c.app_topic, c.bridge)
        LEFT JOIN spark_reports_errorrate same ON same.day = cell.day AND same.hour IS NOT DISTINCT FROM c.hour
            AND (same.stage, same.platform, same.app_topic, same.bridge, same.outcome, same.code)
                = (c.stage, c.platform, c.app_topic, c.bridge, c.outcome, c.code)
    ), usual AS (
        SELECT hour, stage, platform, app_topic, bridge, outcome, code, count(*)::int AS usual_days,
            CASE WHEN count(*) >= 3 THEN percentile_cont(0.5) WITHIN GROUP (ORDER BY rate) END AS usual_rate
        FROM seen GROUP BY 1, 2, 3, 4, 5, 6, 7
    ), spread AS (
        SELECT u.*, (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY abs(s.rate - u.usual_rate)) FROM seen s
            WHERE s.hour IS NOT DISTINCT FROM u.hour AND (s.stage, s.platform, s.app_topic, s.bridge, s.outcome, s.code)
                = (u.stage, u.platform, u.app_topic, u.bridge, u.outcome, u.code)) AS deviation
        FROM usual u
    ), compared AS (
        SELECT r.*, r.events / r.total::float AS rate, s.usual_rate, coalesce(s.usual_days, 0) AS usual_days, s.deviation,
            (s.usual_rate * r.total + 0.5) / (r.total + 1) AS smoothed, 1.959964::float AS z
        FROM rates r LEFT JOIN spread s ON s.hour IS NOT DISTINCT FROM r.hour
            AND (s.stage, s.platform, s.app_topic, s.bridge, s.outcome, s.code)
                = (r.stage, r.platform, r.app_topic, r.bridge, r.outcome, r.code)
    )
    SELECT day, hour, stage, platform, app_topic, bridge, outcome, code,
        outcome IN ('refused', 'dropped', 'failed', 'dead', 'config', 'payload', 'transient', 'ambiguous', 'abandoned',
            'unconfirmed') AS is_failure,
        events, total::bigint AS total, rate,
        (events + z ^ 2 / 2 - z * sqrt(events * (total - events) / total::float + z ^ 2 / 4)) / (total + z ^ 2) AS rate_low,
        (events + z ^ 2 / 2 + z * sqrt(events * (total - events) / total::float + z ^ 2 / 4)) / (total + z ^ 2) AS rate_high,
        usual_rate, rate - usual_rate AS change,
        (rate - usual_rate) / greatest(1.4826 * deviation, sqrt(smoothed * (1 - smoothed) / total)) AS z_score, usual_days
    FROM compared;

-- Tokens --------------------------------------------------------------------------------------------------------------
CREATE TEMPORARY VIEW histories AS
    SELECT pseudonym, id, at, kind, bridge, kind NOT IN ('unregistered', 'token_died', 'expired') AS is_active,
        CASE token_type WHEN 1 THEN 'ios' WHEN 2 THEN 'android' ELSE 'none' END AS platform,
        CASE WHEN token_type <> 1 THEN ''
            WHEN app_topic IN (SELECT app_topic FROM known_topics) THEN app_topic ELSE '(other)' END AS app_topic,
        count(*) FILTER (WHERE kind IN ('registered', 'token_changed')) OVER (PARTITION BY pseudonym ORDER BY at, id) AS token
    FROM registrations_registrationevent, asked
    WHERE at < ends_at AND pseudonym NOT IN (SELECT pseudonym FROM canary_pseudonyms);

CREATE TEMPORARY VIEW changes AS
    SELECT *, lag(is_active) OVER own AS was_active, lag(platform) OVER own AS platform_before,
        lag(app_topic) OVER own AS topic_before, lead(at) OVER own AS next_at
    FROM histories WINDOW own AS (PARTITION BY pseudonym ORDER BY at, id);

CREATE TEMPORARY VIEW again_token_churn AS
    WITH moves AS (
        SELECT *, was_active AND is_active AND (platform, app_topic) <> (platform_before, topic_before) AS has_moved
        FROM changes JOIN asked ON at >= starts_at
    ), flows AS (
        SELECT platform, app_topic, bridge, CASE WHEN has_moved THEN 'moved_in' WHEN was_active THEN
            CASE kind WHEN 'token_changed' THEN 'token_changed' ELSE 'refreshed' END
            WHEN was_active IS NULL THEN 'new' ELSE 'returned' END AS flow FROM moves WHERE is_active
        UNION ALL SELECT platform_before, topic_before, bridge, 'moved_out' FROM moves WHERE has_moved
        UNION ALL SELECT platform_before, topic_before, bridge, CASE kind WHEN 'token_died' THEN 'died' ELSE kind END
            FROM moves WHERE was_active AND NOT is_active
        UNION ALL SELECT platform, app_topic, bridge, 'start' FROM changes, asked
            WHERE is_active AND at < starts_at AND (next_at IS NULL OR next_at >= starts_at)
        UNION ALL SELECT platform, app_topic, bridge, 'end' FROM changes WHERE is_active AND next_at IS NULL
    ), sums AS (
        SELECT platform, app_topic, bridge, count(*) FILTER (WHERE flow = 'start') AS active_at_start,
            count(*) FILTER (WHERE flow = 'new') AS new, count(*) FILTER (WHERE flow = 'returned') AS returned,
            count(*) FILTER (WHERE flow = 'moved_in') AS moved_in, count(*) FILTER (WHERE flow = 'refreshed') AS refreshed,
            count(*) FILTER (WHERE flow = 'token_changed') AS token_changed,
            count(*) FILTER (WHERE flow = 'unregistered') AS unregistered, count(*) FILTER (WHERE flow = 'died') AS died,
            count(*) FILTER (WHERE flow = 'expired') AS expired, count(*) FILTER (WHERE flow = 'moved_out') AS moved_out,
            count(*) FILTER (WHERE flow = 'end') AS active_at_end
        FROM flows GROUP BY 1, 2, 3
    )
    SELECT day, sums.*, active_at_start + new + returned + moved_in - unregistered - died - expired - moved_out
            - active_at_end AS unexplained,
        (unregistered + died + expired) / nullif(active_at_start, 0)::float AS churn_rate,
        active_at_end - active_at_start AS net_growth
    FROM sums, asked;

-- One row a token: from its first event to the first event that ends it or ends its observation.
CREATE TEMPORARY VIEW lives AS
    WITH born AS (
        SELECT DISTINCT ON (pseudonym, token) pseudonym, token, at AS began_at, kind, platform, app_topic, bridge
        FROM histories WHERE token > 0 ORDER BY pseudonym, token, at, id
    ), followed AS (
        SELECT b.*, lead(began_at) OVER own AS next_at, gone.at AS gone_at, gone.kind AS gone_by
        FROM born b LEFT JOIN LATERAL (
            SELECT h.at, h.kind FROM histories h WHERE (h.pseudonym, h.token) = (b.pseudonym, b.token)
                AND (NOT h.is_active OR (h.platform, h.app_topic) <> (b.platform, b.app_topic)) ORDER BY h.at, h.id LIMIT 1
        ) gone ON true WINDOW own AS (PARTITION BY pseudonym ORDER BY token)
    )
    SELECT platform, app_topic, bridge, date_trunc('week', began_at)::date AS cohort,
        coalesce(gone_at, next_at, starts_at)::date - began_at::date AS age,
        CASE WHEN gone_by IS NULL THEN next_at IS NOT NULL ELSE gone_by IN ('token_died', 'expired') END AS has_ended
    FROM followed, asked WHERE began_at >= date_trunc('week', starts_at) - interval '25 weeks';

CREATE TEMPORARY VIEW again_token_lifetime AS
    WITH ages AS (
        SELECT platform, app_topic, bridge, cohort, age, count(*) FILTER (WHERE has_ended)::float AS d,
            sum(count(*)) OVER (PARTITION BY platform, app_topic, bridge, cohort ORDER BY age DESC)::float AS n
        FROM lives GROUP BY 1, 2, 3, 4, 5
    ), weeks AS (
        SELECT platform, app_topic, bridge, cohort, week, count(*) AS tokens,
            sum(greatest(0, least(7, age + 1 - 7 * (week - 1)))) AS at_risk,
            count(*) FILTER (WHERE has_ended AND age / 7 + 1 = week) AS ended
        FROM (SELECT *, max(age / 7 + 1) OVER (PARTITION BY platform, app_topic, bridge, cohort) AS last_week FROM lives) l,
            generate_series(1, last_week) AS week GROUP BY 1, 2, 3, 4, 5
    ), survived AS (
        SELECT w.*, coalesce(s.is_gone, false) AS is_gone, CASE WHEN s.is_gone THEN 0 ELSE exp(coalesce(s.log, 0)) END AS survival,
            coalesce(s.greenwood, 0) AS greenwood
        FROM weeks w LEFT JOIN LATERAL (
            SELECT bool_or(n = d) AS is_gone, sum(ln(1 - d / n)) FILTER (WHERE n > d) AS log,
                sum(d / (n * (n - d))) FILTER (WHERE n > d) AS greenwood
            FROM ages a WHERE (a.platform, a.app_topic, a.bridge, a.cohort)
                = (w.platform, w.app_topic, w.bridge, w.cohort) AND a.age < 7 * w.week
        ) s ON true
    )
    SELECT day, platform, app_topic, bridge, cohort, week AS age_weeks, tokens, at_risk::bigint AS at_risk, ended, survival,
        CASE WHEN survival IN (0, 1) THEN survival
            ELSE survival ^ exp(1.959964 * sqrt(greenwood) / -ln(survival)) END AS survival_low,
        CASE WHEN survival IN (0, 1) THEN survival
            ELSE survival ^ exp(-1.959964 * sqrt(greenwood) / -ln(survival)) END AS survival_high
    FROM survived, asked;

-- Latency and load ----------------------------------------------------------------------------------------------------
CREATE TEMPORARY VIEW durations AS
    SELECT received_at AS at, 'decide' AS stage, 'none' AS platform, 'waku' AS bridge, processed_at - received_at AS took,
        NULL::boolean AS in_time
    FROM waku_bridge_inboundenvelope WHERE hash NOT IN (SELECT hash FROM waku_bridge_canaryenvelope)
    UNION ALL SELECT created_at, 'answer', platform, bridge, answered_at - received_at, answered_at <= reply_due_at
        FROM own_notifications WHERE position = 0 AND grade = ''
    UNION ALL SELECT received_at, 'answer', 'none', bridge, answered_at - received_at, answered_at <= reply_due_at
        FROM decided WHERE place = 0
    UNION ALL SELECT created_at, 'deliver', platform, bridge, finished_at - created_at, NULL
        FROM own_notifications WHERE state = 'delivered' AND grade = ''
    UNION ALL SELECT started_at, 'queue', platform, bridge, waited_ms * interval '1 millisecond', NULL FROM own_attempts
    UNION ALL SELECT started_at, 'gateway', platform, bridge, latency_ms * interval '1 millisecond', NULL FROM own_attempts
    UNION ALL SELECT r.created_at, 'reply', 'none', 'waku', r.published_at - e.received_at,
        r.published_at - e.received_at <= interval '2 seconds'
    FROM waku_bridge_outboundreply r JOIN waku_bridge_inboundenvelope e ON e.hash = r.envelope_hash
    WHERE r.repeat_count = 0 AND r.envelope_hash NOT IN (SELECT hash FROM waku_bridge_canaryenvelope);

-- Percentiles are of durations rounded down to 1 ms below 10 s, and to 1 s from there on; the longest is exact.
CREATE TEMPORARY VIEW again_latency AS
    WITH exact AS (
        SELECT durations.*, day, greatest(0, (extract(epoch FROM took) * 1000000)::bigint) AS us
        FROM durations JOIN asked ON at >= starts_at AND at < ends_at WHERE took BETWEEN interval '-5 s' AND interval '31 days'
    ), rounded AS (
        SELECT *, CASE WHEN us < 10000000 THEN us / 1000 ELSE us / 1000000 * 1000 END AS ms FROM exact
    )
    SELECT day, stage, coalesce(platform, 'all') AS platform, coalesce(bridge, 'all') AS bridge, count(*) AS events,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS p50_ms, percentile_cont(0.9) WITHIN GROUP (ORDER BY ms) AS p90_ms,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY ms) AS p95_ms, percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) AS p99_ms,
        max(us) AS max_us, avg(in_time::int)::float AS within_deadline
    FROM rounded GROUP BY day, stage, CUBE (platform, bridge);

CREATE TEMPORARY VIEW actors AS
    SELECT day, role, actor, count(*) AS notifications, sum(attempt_count) AS attempts,
        count(*) FILTER (WHERE attempt_count > 0) AS tried
    FROM (
        SELECT created_at AS at, 'recipient' AS role, CASE public_key_hash WHEN '' THEN convert_to(installation_id, 'UTF8')
            ELSE public_key_hash END AS actor, attempt_count FROM own_notifications
        UNION ALL SELECT created_at, 'sender', sender_digest, attempt_count FROM own_notifications
        UNION ALL SELECT received_at, 'sender', sender_digest, 0 FROM decided
    ) AS who JOIN asked ON at >= starts_at AND at < ends_at WHERE actor IS NOT NULL GROUP BY 1, 2, 3;

CREATE TEMPORARY VIEW again_load_profile AS
    WITH placed AS (
        SELECT *, row_number() OVER heaviest AS place, ceil(count(*) OVER (PARTITION BY role) * 0.01) AS top_actors
        FROM actors WINDOW heaviest AS (PARTITION BY role ORDER BY notifications DESC)
    )
    SELECT day, role, count(*) AS actors, sum(notifications)::bigint AS notifications, max(top_actors)::bigint AS top_actors,
        (sum(notifications) FILTER (WHERE place <= top_actors) / sum(notifications))::float AS top_share,
        sum(tried)::bigint AS tried, sum(attempts)::bigint AS attempts,
        (sum(attempts) / nullif(sum(tried), 0))::float AS retry_amplification
    FROM placed GROUP BY 1, 2;

-- Actors with equally many notifications may have their ranks in any order, as pseudonyms are not computed here.
CREATE TEMPORARY VIEW again_heavy_actors AS
    SELECT * FROM (
        SELECT day, role, row_number() OVER (PARTITION BY role ORDER BY notifications DESC) AS rank, notifications,
            (notifications / sum(notifications) OVER (PARTITION BY role))::float AS share
        FROM actors
    ) AS ranked WHERE rank <= 20;

-- Failures --------------------------------------------------------------------------------------------------------------
-- Only the gateway's codes. Texts without a rule have counters, whose values the lake keeps each night.
CREATE TEMPORARY VIEW again_failure_signatures AS
    SELECT day, 'code' AS source, platform, code AS signature, sum(events)::bigint AS events FROM again_error_rates
    WHERE hour IS NULL AND stage = 'dispatch' AND is_failure GROUP BY 1, 2, 3, 4;

-- Anomalies -----------------------------------------------------------------------------------------------------------
-- All failures of a stage, of any code, and lost tokens, each against its usual figure: the median of those of the seven
-- days before that have the figure, at least three.
CREATE TEMPORARY VIEW again_anomalies AS
    WITH failing AS (
        SELECT day, stage, platform, app_topic, bridge, total, events, is_failure
        FROM again_error_rates WHERE hour IS NULL
        UNION ALL SELECT e.day, stage, platform, app_topic, bridge, total, events, is_failure
        FROM spark_reports_errorrate e JOIN asked ON e.day BETWEEN asked.day - 7 AND asked.day - 1 WHERE hour IS NULL
    ), leaving AS (
        SELECT day, platform, app_topic, bridge, unregistered + died + expired AS events, active_at_start
        FROM again_token_churn WHERE active_at_start > 0
        UNION ALL SELECT c.day, platform, app_topic, bridge, unregistered + died + expired, active_at_start
        FROM spark_reports_tokenchurn c JOIN asked ON c.day BETWEEN asked.day - 7 AND asked.day - 1 WHERE active_at_start > 0
    ), figures AS (
        SELECT day, 'error_rate' AS figure, stage, platform, app_topic, bridge,
            coalesce(sum(events) FILTER (WHERE is_failure), 0)::bigint AS events, total FROM failing GROUP BY 1, 2, 3, 4, 5, 6, total
        UNION ALL SELECT day, 'churn_rate', 'churn', platform, app_topic, bridge, events, active_at_start FROM leaving
    ), rates AS (
        SELECT *, events / total::float AS value FROM figures
    ), usual AS (
        SELECT figure, stage, platform, app_topic, bridge, count(*)::int AS usual_days,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY value) AS usual
        FROM rates JOIN asked ON rates.day < asked.day GROUP BY 1, 2, 3, 4, 5 HAVING count(*) >= 3
    ), spread AS (
        SELECT u.*, (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY abs(r.value - u.usual)) FROM rates r, asked
            WHERE r.day < asked.day AND (r.figure, r.stage, r.platform, r.app_topic, r.bridge)
                = (u.figure, u.stage, u.platform, u.app_topic, u.bridge)) AS deviation
        FROM usual u
    ), scaled AS (
        SELECT r.*, s.usual, s.usual_days, greatest(1.4826 * s.deviation, sqrt(smoothed * (1 - smoothed) / total)) AS scale
        FROM rates r JOIN asked ON r.day = asked.day JOIN spread s USING (figure, stage, platform, app_topic, bridge),
            LATERAL (SELECT (s.usual * total + 0.5) / (total + 1) AS smoothed) half_an_event
    )
    SELECT day, figure, stage, platform, app_topic, bridge, events, total, value, usual,
        greatest(0, usual - 3.5 * scale) AS band_low, least(1, usual + 3.5 * scale) AS band_high,
        (value - usual) / scale AS z_score, usual_days
    FROM scaled WHERE abs(value - usual) > 3.5 * scale AND total >= 50 AND abs(events - usual * total) >= 10;
