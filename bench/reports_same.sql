-- Most figures of a day's reports, computed by PostgreSQL itself.

SELECT date_trunc('hour', started_at), token_type, app_topic, outcome, code, count(*)
    FROM notifications_attempt WHERE started_at >= '2026-11-20Z' AND started_at < '2026-11-21Z' GROUP BY 1, 2, 3, 4, 5;

SELECT date_trunc('hour', received_at), message_type, state, reason, count(*)
    FROM waku_bridge_inboundenvelope WHERE received_at >= '2026-11-20Z' AND received_at < '2026-11-21Z' GROUP BY 1, 2, 3, 4;

SELECT date_trunc('hour', n.created_at), r.token_type, r.app_topic, n.state, n.report, count(*)
    FROM notifications_notification n LEFT JOIN registrations_route r ON r.id = n.route_id
    WHERE n.created_at >= '2026-11-20Z' AND n.created_at < '2026-11-21Z' GROUP BY 1, 2, 3, 4, 5;

SELECT date_trunc('hour', created_at), state, message_type, count(*)
    FROM waku_bridge_outboundreply WHERE created_at >= '2026-11-20Z' AND created_at < '2026-11-21Z' GROUP BY 1, 2, 3;

SELECT token_type, percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY latency_ms)
    FROM notifications_attempt WHERE started_at >= '2026-11-20Z' AND started_at < '2026-11-21Z' GROUP BY token_type;

SELECT percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY answered_at - received_at),
    avg((answered_at <= reply_due_at)::int) FROM notifications_notificationrequest
    WHERE received_at >= '2026-11-20Z' AND received_at < '2026-11-21Z';

SELECT percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY r.published_at - e.received_at)
    FROM waku_bridge_outboundreply r JOIN waku_bridge_inboundenvelope e ON e.hash = r.envelope_hash
    WHERE r.created_at >= '2026-11-20Z' AND r.created_at < '2026-11-21Z';

SELECT public_key_hash, count(*) FROM notifications_notification
    WHERE created_at >= '2026-11-20Z' AND created_at < '2026-11-21Z' GROUP BY 1 ORDER BY 2 DESC LIMIT 20;

SELECT r.sender_digest, count(*) FROM notifications_notification n
    JOIN notifications_notificationrequest r ON r.id = n.request_id
    WHERE n.created_at >= '2026-11-20Z' AND n.created_at < '2026-11-21Z' GROUP BY 1 ORDER BY 2 DESC LIMIT 20;

SELECT kind, token_type, app_topic, count(*) FROM registrations_registrationevent
    WHERE at >= '2026-11-20Z' AND at < '2026-11-21Z' GROUP BY 1, 2, 3;
