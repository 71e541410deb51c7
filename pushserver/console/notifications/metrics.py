"""The gauges of what waits to be delivered. Their rules are written in `waku_bridge/metrics.py`."""

from kit.batches.looking import since
from kit.telemetry import StoredGauge
from notifications.models import Halt, Notification
from notifications.queues.queues import OPEN_QUEUES, UNSORTED
from registrations.messages import sql_platform

State = Notification.State

OPEN = StoredGauge(
    "pushserver_notifications_open",
    "Notifications that are not over, by state, counted up to 100 000. "
    "When it moves: see the oldest due one; when that is young the queue is long and moving.",
    labelnames=("state",),
    sql=f"""
        WITH open AS (
            SELECT of_queue.state FROM (SELECT {UNSORTED} AS id UNION ALL SELECT id FROM notifications_queue) AS queue
            CROSS JOIN LATERAL (
                SELECT state FROM notifications_opennotification
                WHERE queue_id = queue.id AND due_at >= {since("Due")} ORDER BY due_at LIMIT 100000
            ) AS of_queue LIMIT 100000
        )
        SELECT known.state, count(open.state)
        FROM (VALUES ('{State.PENDING}'), ('{State.RETRYING}'),
            ('{State.AMBIGUOUS}'), ('{State.IN_FLIGHT}')) AS known (state)
        LEFT JOIN open USING (state) GROUP BY known.state
    """,
)
QUEUE_WAITING = StoredGauge(
    "pushserver_queue_waiting",
    "Notifications that wait in each queue, counted some seconds ago. Apps that nothing was delivered to yet are "
    "`other`. "
    "When it moves: a halt covers the queue, or Apple or Google are slow; a full queue refuses what comes for it, and "
    "only that.",
    labelnames=("gateway", "platform", "app", "proven"),
    sql=f"""
        SELECT gateway, {sql_platform("token_type")},
            coalesce(app_topic, 'other'), CASE WHEN is_proven THEN 'yes' ELSE 'no' END, waiting_count
        FROM notifications_queue
    """,
)
OLDEST_DUE_AGE_SECONDS = StoredGauge(
    "pushserver_notifications_oldest_due_age_seconds",
    "For how long the longest waiting notification could have been tried, and was not. What waits behind a halt could "
    "not. "
    "When it moves: beyond a minute workers of the queue `batches` are away, or a queue is crowded.",
    sql=f"""
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(head.at)), 0))
        FROM ({OPEN_QUEUES}) AS open CROSS JOIN LATERAL (
            SELECT due_at AS at FROM notifications_opennotification
            WHERE queue_id = open.id AND due_at >= {since("Due")} ORDER BY due_at LIMIT 1
        ) AS head
    """,
)
UNANSWERED_AGE_SECONDS = StoredGauge(
    "pushserver_requests_overdue_age_seconds",
    "For how long the answer to a request has been due, the oldest of them. "
    "When it moves: beyond a few seconds nobody answers: look for the workers of the queue `batches`.",
    sql=f"""
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - (
            SELECT reply_due_at FROM notifications_openrequest WHERE reply_due_at >= {since("Deadlines")}
            ORDER BY reply_due_at LIMIT 1
        )), 0))
    """,
)
CHANNELS = StoredGauge(
    "pushserver_channels",
    "Apps, by their state. "
    "When it moves: a tripped or paused one sends nothing; the console says since when, by whom and why.",
    labelnames=("state",),
    sql=f"""
        SELECT known.state, count(app.id)
        FROM (VALUES ('running'), ('{Halt.Kind.PAUSED}'), ('{Halt.Kind.TRIPPED}')) AS known (state)
        LEFT JOIN (
            SELECT app.id, coalesce(halt.kind, 'running') AS state
            FROM notifications_channel AS app
            LEFT JOIN notifications_halt AS halt ON halt.kind IN ('{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}')
                AND halt.token_type = app.token_type AND halt.app_topic = app.app_topic AND halt.ended_at IS NULL
        ) AS app USING (state) GROUP BY known.state
    """,
)
