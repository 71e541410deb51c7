"""What this app measures. The rules of it are written in `waku_bridge/metrics.py`.

``platform`` is ios or android. ``app`` is an app topic at Apple that something was delivered to before, and `other` for
any else, because clients choose what they register; it is empty at Google.
"""

from prometheus_client import Counter

from measuring.kinds import BatchHistogram, StoredGauge

# Accepting ------------------------------------------------------------------------------------------------------------
REQUESTS = Counter(
    "pushserver_requests_total",
    "Requests of senders, new or repeated. "
    "When it moves: many repeated ones are senders that miss our answers; see pushserver_replies_unconfirmed_total.",
    ["novelty"],
)
NOTIFICATIONS = Counter(
    "pushserver_notifications_total",
    "Notifications asked for, by verdict: deliver, suppressed by the recipient's rules, duplicate, wrong_token, "
    "not_registered, overloaded. "
    "When it moves: overloaded means that MAX_OPEN_NOTIFICATIONS wait, see the oldest due one; many wrong_token or "
    "not_registered are senders with old answers.",
    ["verdict"],
)
ANSWER_SECONDS = BatchHistogram(
    "pushserver_request_answer_seconds",
    "From taking a request up to fixing its answer, of those that had to wait for a first attempt. "
    "When it moves: at REPLY_DEADLINE_SECONDS requests were answered without knowing the result; gorush is slow.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 10, 60),
)

# Delivery -------------------------------------------------------------------------------------------------------------
DISPATCH_SECONDS = BatchHistogram(
    "pushserver_dispatch_seconds",
    "From taking a request up to sending the first push of a notification. "
    "When it moves: workers of the queue `delivery` are too few or away, or channels are crowded or halted.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 10, 60, 600, 3600),
)
ATTEMPTS = Counter(
    "pushserver_attempts_total",
    "Tries at the gateway, by class: delivered, dead, config, payload, transient, ambiguous. "
    "When it moves: what to do about each class is in docs/delivery.md; config needs an operator at once.",
    ["outcome", "platform", "app"],
)
GATEWAY_SECONDS = BatchHistogram(
    "pushserver_gateway_seconds",
    "How long the gateway took to answer a push. "
    "When it moves: Apple or Google are slow, or gorush has too few workers (docs/gorush.md).",
    ["platform"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 65),
)
FINISHED = Counter(
    "pushserver_notifications_finished_total",
    "Notifications that were accepted for delivery and are over, by state: delivered, dead_token, undeliverable, "
    "unconfirmed, expired, withdrawn. "
    "When it moves: expired ones waited for their channel for a day; unconfirmed ones for gorush to answer.",
    ["state"],
)
ROUTES_DISABLED = Counter(
    "pushserver_routes_disabled_total",
    "Addresses that take no pushes any more: dead (Apple or Google said so) or failing (for days). "
    "When it moves: a wave may be a wrong set-up rather than dead phones; the console can undo it per channel.",
    ["reason"],
)
CHANNEL_TRIPS = Counter(
    "pushserver_channel_trips_total",
    "Channels that a breaker stopped; those that an operator tripped are not counted. "
    "When it moves: the console says why; repair the set-up at Apple, Google or gorush. A probe that comes through "
    "starts the channel again.",
    ["platform"],
)
UNKNOWN_ERRORS = Counter(
    "pushserver_gateway_unknown_errors_total",
    "Answers of the gateway that no rule knows; they count as transient. "
    "When it moves: give them a rule (console, Unknown gateway errors).",
    ["platform"],
)

# What waits -----------------------------------------------------------------------------------------------------------
OPEN = StoredGauge(
    "pushserver_notifications_open",
    "Notifications that are not over, by state, counted up to 100 000. "
    "When it moves: see the oldest due one; when that is young the queue is long and moving.",
    labelnames=("state",),
    sql="""
        WITH due AS (
            SELECT state FROM notifications_notification
            WHERE state IN ('pending', 'retrying', 'ambiguous') ORDER BY next_attempt_at LIMIT 100000
        ), leased AS (
            SELECT state FROM notifications_notification WHERE state = 'in_flight' ORDER BY lease_until LIMIT 100000
        )
        SELECT known.state, count(open.state)
        FROM (VALUES ('pending'), ('retrying'), ('ambiguous'), ('in_flight')) AS known (state)
        LEFT JOIN (TABLE due UNION ALL TABLE leased) AS open USING (state) GROUP BY known.state
    """,
)
OLDEST_DUE_AGE_SECONDS = StoredGauge(
    "pushserver_notifications_oldest_due_age_seconds",
    "For how long the longest waiting notification could have been tried, and was not. "
    "When it moves: beyond a minute workers of the queue `delivery` are away, or a channel is crowded.",
    sql="""
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - (
            SELECT next_attempt_at FROM notifications_notification
            WHERE state IN ('pending', 'retrying', 'ambiguous') ORDER BY next_attempt_at LIMIT 1
        )), 0))
    """,
)
UNANSWERED_AGE_SECONDS = StoredGauge(
    "pushserver_requests_overdue_age_seconds",
    "For how long the answer to a request has been due, the oldest of them. "
    "When it moves: beyond a few seconds nobody answers: look for the workers of `envelopes` and the scheduler.",
    sql="""
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - (
            SELECT reply_due_at FROM notifications_notificationrequest
            WHERE state = 'waiting' ORDER BY reply_due_at LIMIT 1
        )), 0))
    """,
)
CHANNELS = StoredGauge(
    "pushserver_channels",
    "Channels by state. "
    "When it moves: a tripped or paused one sends nothing; the console says since when, by whom and why.",
    labelnames=("state",),
    sql="""
        SELECT known.state, count(channel.id)
        FROM (VALUES ('running'), ('paused'), ('tripped')) AS known (state)
        LEFT JOIN notifications_channel AS channel USING (state) GROUP BY known.state
    """,
)
