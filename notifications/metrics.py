"""The metrics of this app. `waku_bridge/metrics.py` states their rules.

``platform`` is ios or android. ``app`` is an app topic at Apple that something was delivered to before. It is `other`
for any other topic, because clients choose what they register, and empty for Google.
"""

from prometheus_client import Counter

from kit.telemetry import BatchHistogram

# Acceptance -----------------------------------------------------------------------------------------------------------
REQUESTS = Counter(
    "pushserver_requests_total",
    "Requests of senders: new, repeated, or replayed. Replayed ones get no answer. "
    "When it moves: many repeated ones come from senders that miss our answers; see "
    "pushserver_replies_unconfirmed_total. Many replayed ones come from somebody who recorded them.",
    ["novelty"],
)
NOTIFICATIONS = Counter(
    "pushserver_notifications_total",
    "Notifications of all requests, by verdict: deliver, suppressed by the recipient's rules, duplicate, wrong_token, "
    "not_registered, coalesced into another one to the same address, overloaded. "
    "When it moves: overloaded means that a queue is full, see pushserver_queue_waiting; "
    "many wrong_token or not_registered come from outdated senders; many coalesced ones from a flood.",
    ["verdict"],
)
BEYOND_LIMITS = Counter(
    "pushserver_notifications_beyond_limits_total",
    "Pushes beyond a limit, by effect and limit: merged into another one to the same address, shortened to a wake-up, "
    "or refused with an error. "
    "When it moves: a sender floods an address; the console shows the sender of the requests.",
    ["effect", "limit"],
)
ANSWER_SECONDS = BatchHistogram(
    "pushserver_request_answer_seconds",
    "Time from taking a request to fixing its answer, for requests that waited for a first attempt. "
    "When it moves: at REPLY_DEADLINE_SECONDS requests are answered without a result, because a gateway is slow.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 10, 60),
)

# Delivery -------------------------------------------------------------------------------------------------------------
DISPATCH_SECONDS = BatchHistogram(
    "pushserver_dispatch_seconds",
    "Time from the arrival of an envelope or stanza to the first push of a notification that left for the gateway. "
    "When it moves: queues are crowded or halted, or no worker of the queue `batches` was running.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 10, 60, 600, 3600),
)
ATTEMPTS = Counter(
    "pushserver_attempts_total",
    "Attempts at the gateway, by outcome: delivered, dead, config, payload, transient, ambiguous. "
    "When it moves: config needs an operator at once; docs/delivery.md says what to do about each outcome.",
    ["outcome", "platform", "app"],
)
GATEWAY_SECONDS = BatchHistogram(
    "pushserver_gateway_seconds",
    "Time that the gateway took to answer a push. "
    "When it moves: Apple or Google are slow, or the gateway has too few workers.",
    ["platform"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 65),
)
FINISHED = Counter(
    "pushserver_notifications_finished_total",
    "Notifications that were accepted for delivery and have ended, by state: delivered, dead_token, undeliverable, "
    "unconfirmed, expired, withdrawn, coalesced. "
    "When it moves: expired ones waited behind a halt for a day; unconfirmed ones got no clear answer from a "
    "gateway.",
    ["state"],
)
ROUTES_DISABLED = Counter(
    "pushserver_routes_disabled_total",
    "Addresses that were disabled: dead (by the answer of Apple or Google) or failing (for days). "
    "When it moves: many at once may mean a wrong set-up rather than dead phones; the console can undo the disabling "
    "for each app.",
    ["reason"],
)
CHANNEL_TRIPS = Counter(
    "pushserver_channel_trips_total",
    "Apps that a breaker tripped; those that an operator tripped are not counted. "
    "When it moves: the console says why; repair the set-up at Apple, Google or the gateway. A probe that is delivered "
    "starts the app again.",
    ["platform"],
)

GATEWAY_OUTAGES = Counter(
    "pushserver_gateway_outages_total",
    "Outages of a gateway: no push of a batch reached it. "
    "When it moves: check that the gateway runs and that the network reaches it. One push every five seconds probes "
    "it.",
    ["gateway"],
)
LEFT_BEHIND = Counter(
    "pushserver_left_behind_total",
    "Work of dead or hanging workers that another worker took over. "
    "When it moves: a worker was killed, or the database was unreachable. Nothing is lost; look at the logs of that "
    "time.",
    ["kind"],
)
