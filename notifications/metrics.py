"""The metrics of this app. Their rules are written in `waku_bridge/metrics.py`.

``platform`` is ios or android. ``app`` is an app topic at Apple that something was delivered to before, and `other` for
any else, because clients choose what they register. It is empty at Google.
"""

from prometheus_client import Counter

from kit.metrics.batches import BatchHistogram

# Accepting ------------------------------------------------------------------------------------------------------------
REQUESTS = Counter(
    "pushserver_requests_total",
    "Requests of senders: new, repeated, or replayed, which are answered no more. "
    "When it moves: many repeated ones are senders that miss our answers; see pushserver_replies_unconfirmed_total. "
    "Many replayed ones are somebody who recorded them.",
    ["novelty"],
)
NOTIFICATIONS = Counter(
    "pushserver_notifications_total",
    "Notifications asked for, by verdict: deliver, suppressed by the recipient's rules, duplicate, wrong_token, "
    "not_registered, coalesced into another one to the same address, overloaded. "
    "When it moves: overloaded means that a queue is full, see pushserver_queue_waiting; "
    "many wrong_token or not_registered are senders with old answers; many coalesced are a flood, or an address that "
    "cannot be reached.",
    ["verdict"],
)
BEYOND_LIMITS = Counter(
    "pushserver_notifications_beyond_limits_total",
    "Notifications beyond the limits of an address, of a sender or of the server, by what became of them: one wake_up "
    "that goes out when the limit allows, all others coalesced into it. "
    "When it moves: somebody floods somebody; the console says whose requests these are, and can mute the sender.",
    ["kind"],
)
ANSWER_SECONDS = BatchHistogram(
    "pushserver_request_answer_seconds",
    "From taking a request up to fixing its answer, of those that had to wait for a first attempt. "
    "When it moves: at REPLY_DEADLINE_SECONDS requests were answered without knowing the result; a gateway is slow.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 10, 60),
)

# Delivery -------------------------------------------------------------------------------------------------------------
DISPATCH_SECONDS = BatchHistogram(
    "pushserver_dispatch_seconds",
    "From taking a request up to sending the first push of a notification. "
    "When it moves: queues are crowded or halted, or workers of the queue `batches` were away.",
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
    "When it moves: Apple or Google are slow, or the gateway has too few workers.",
    ["platform"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 65),
)
FINISHED = Counter(
    "pushserver_notifications_finished_total",
    "Notifications that were accepted for delivery and are over, by state: delivered, dead_token, undeliverable, "
    "unconfirmed, expired, withdrawn, coalesced. "
    "When it moves: expired ones waited behind a halt for a day; unconfirmed ones for a gateway to answer.",
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
    "When it moves: the console says why; repair the set-up at Apple, Google or the gateway. A probe that comes "
    "through starts the channel again.",
    ["platform"],
)

GATEWAY_OUTAGES = Counter(
    "pushserver_gateway_outages_total",
    "Outages of a gateway: no push of a batch reached it. "
    "When it moves: is the gateway there, and the way to it? It is probed with one push every five seconds, "
    "and what waits is sent when one reaches it.",
    ["gateway"],
)
LEFT_BEHIND = Counter(
    "pushserver_left_behind_total",
    "What a worker left behind that died or hangs, and another one took up, by kind: pushes that were under way, "
    "requests without an answer, replies that were not published. "
    "When it moves: a worker was killed, or the database was away; replies also wait for a node that takes them. "
    "Nothing is lost; look at the logs of that time.",
    ["kind"],
)
