"""The metrics of this app. The text of each one explains it and, after "When it moves:", the action of an operator.

Only shells and modules that do I/O count, in sums per batch and after the commit. A label is a word from a fixed set,
or names a part of our own configuration: ``node`` is host and port of a node's URL. It is never a hash, a key or a
token. Gauges are of living processes only (``live…``): the last value of a dead process is dropped. A time is exported
as Unix time, so that `time() - x` goes on growing when nothing sets it.
"""

from prometheus_client import Counter, Gauge

from kit.telemetry import BatchHistogram

# Reading --------------------------------------------------------------------------------------------------------------
MESSAGES_READ = Counter(
    "pushserver_bridge_messages_read_total",
    "Messages that nodes returned, for us or not; path is live, store, backfill, or hashes for messages of which a "
    "store returned only the hash. "
    "When it moves: a node at zero on the live path while others of its shard are busy has no peers; see its /health.",
    ["node", "path"],
)
MESSAGES_MATCHED = Counter(
    "pushserver_bridge_messages_matched_total",
    "Messages on a topic of ours; path is live or store. "
    "When it moves: zero on all nodes while clients are active means that topics do not match; compare the cluster and "
    "the shard in WAKU_PUBSUB_TOPICS with those of the clients.",
    ["node", "path"],
)
MESSAGES_SKIPPED = Counter(
    "pushserver_bridge_messages_skipped_total",
    "Messages on a topic of ours that cannot be taken, by reason. "
    "When it moves: a few are noise of the network. Many: a client version sends bad messages; see the dead letters.",
    ["reason"],
)
DEAD_LETTERS = Counter(
    "pushserver_bridge_dead_letters_total",
    "Messages kept with their raw JSON because they cannot be read, by reason. "
    "When it moves: look at them in the console; a new kind of node may write messages in a form that we cannot read.",
    ["reason"],
)
RING_FILL_RATIO = BatchHistogram(
    "pushserver_bridge_ring_fill_ratio",
    "Fill level of the node's relay cache when it was read: messages of a page to --rest-relay-cache-capacity. "
    "When it moves: above 0.5 raise --rest-relay-cache-capacity; at 1 messages are missing until a store brings them.",
    ["node"],
    buckets=(0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0),
)
LAST_READ_TIMESTAMP_SECONDS = Gauge(
    "pushserver_bridge_last_read_timestamp_seconds",
    "When the node's cache was last read, in Unix time. "
    "When it moves: older than 15 s, the node does not answer or no bridge reads; see the bridge's log.",
    ["node", "pubsub_topic"],
    multiprocess_mode="livemax",
)
LAST_MESSAGE_TIMESTAMP_SECONDS = Gauge(
    "pushserver_bridge_last_message_timestamp_seconds",
    "When the last message came on the live path, for us or not, in Unix time. "
    "When it moves: older than 60 s on a busy shard, the node is cut off: look at its peers and its /health.",
    ["node", "pubsub_topic"],
    multiprocess_mode="livemax",
)
READ_ERRORS = Counter(
    "pushserver_bridge_read_errors_total",
    "Live reads that failed, by status of the answer or `unreachable`. The store has what they lost. "
    "When it moves: look at the node; a restart shows as a handful.",
    ["node", "code"],
)
STORE_ONLY = Counter(
    "pushserver_bridge_store_only_total",
    "Messages of ours that the live path missed and the store had: without the store they would be lost. "
    "When it moves: compare with restarts of node and bridge and with the ring fill; steadily: add a second node.",
    ["node"],
)
STORE_WATERMARK_TIMESTAMP_SECONDS = Gauge(
    "pushserver_bridge_store_watermark_timestamp_seconds",
    "The time up to which the store was searched completely, in Unix time: a minute ago. "
    "When it moves: falling behind by minutes, the store is slow, refuses us, or there is much to catch up with.",
    ["node", "pubsub_topic"],
    multiprocess_mode="livemax",
)
STORE_WINDOW_SECONDS = BatchHistogram(
    "pushserver_bridge_store_window_seconds",
    "Time to read a minute of the store, or less; loop is the tier: fast, minute or slow. "
    "When it moves: the node's database is slow (nwaku #4106: index bloat), or the shard has more traffic.",
    ["node", "loop"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
STORE_PAGES = Counter(
    "pushserver_bridge_store_pages_total",
    "Pages read from the store; loop is fast, minute, slow, or topics for topics that are new to us. "
    "When it moves: it follows the traffic of the shard; a jump without traffic is an outage being caught up with.",
    ["node", "loop"],
)
STORE_ERRORS = Counter(
    "pushserver_bridge_store_errors_total",
    "Store queries that failed, by status of the answer, or `unreachable`, `cursor_not_found`, `rate_limited`. "
    "When it moves: 412 is a node without a store; rate_limited a node that limits our rate; for others see its log.",
    ["node", "code"],
)
MESSAGE_SKEW_SECONDS = BatchHistogram(
    "pushserver_bridge_message_skew_seconds",
    "Our clock at reception minus the sender's timestamp, of live messages for us; negative is a sender's clock "
    "ahead. The bucket `+Inf` is the count, as OpenMetrics has none for values below zero. "
    "When it moves: all senders at once means our clock or the node's is wrong; stores refuse messages 20 s off.",
    ["node"],
    buckets=(-20, -5, -1, -0.25, 0, 0.1, 0.25, 0.5, 1, 2.5, 5, 20, 60),
)
LOCK_HELD = Gauge(
    "pushserver_bridge_lock_held",
    "Bridges that hold the lock and read: 1. "
    "When it moves: 0 for more than 10 s means that no bridge reads; start one. 2 must not happen: report it.",
    multiprocess_mode="livesum",
)
QUERY_TOPICS = Gauge(
    "pushserver_bridge_query_topics",
    "Query topics that the bridge matches: one per registered key. "
    "When it moves: it follows the registrations; a drop to zero is a bridge that could not load them.",
    multiprocess_mode="livemax",
)

# The inbox ------------------------------------------------------------------------------------------------------------
INBOX_ENVELOPES = Counter(
    "pushserver_inbox_envelopes_total",
    "Envelopes offered to the inbox; novelty is new, or duplicate when another path or node had brought them before. "
    "When it moves: duplicates near zero with two nodes or a store mean that only one path still works.",
    ["novelty"],
)
ENVELOPES_PROCESSED = Counter(
    "pushserver_inbox_processed_total",
    "Envelopes by type of message (`unknown` when it could not be read) and how they ended: accepted, a refusal, the "
    "reason of a drop, or failed. "
    "When it moves: failed is a fault of ours: see the log. A reason that grows points to a client version or a key.",
    ["type", "outcome"],
)
INBOX_WAIT_SECONDS = BatchHistogram(
    "pushserver_inbox_wait_seconds",
    "Time from the reception of an envelope by the bridge to the decision about it. "
    "When it moves: workers of the queue `batches` are too few, not running, or wait for the database.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
)

# Publishing -----------------------------------------------------------------------------------------------------------
REPLIES_PUBLISHED = Counter(
    "pushserver_replies_published_total",
    "Replies that a node took, each time they were published. "
    "When it moves: zero while requests come in means that no reply leaves: look at the nodes.",
    ["node"],
)
REPLIES_CONFIRMED = Counter(
    "pushserver_replies_confirmed_total",
    "Replies that a store node had when it was queried for their hash. "
    "When it moves: it follows the published replies by a few seconds.",
)
REPLIES_UNCONFIRMED = Counter(
    "pushserver_replies_unconfirmed_total",
    "Replies that a node took and no store had, counted at each query. They are published again. "
    "When it moves: the publishing node has no mesh peers, or the stores are behind; clients repeat their requests.",
)
REPLIES_UNCHECKED = Counter(
    "pushserver_replies_unchecked_total",
    "Replies that a node took, and about which no store node answered for a minute. They are not published again. "
    "When it moves: the nodes of WAKU_STORE_NODES do not answer, refuse us or have no store; see the workers' log.",
)
REPLIES_REPUBLISHED = Counter(
    "pushserver_replies_republished_total",
    "Replies published again: identical bytes, or restamped once stores would refuse the old timestamp. "
    "When it moves: see pushserver_replies_unconfirmed_total.",
    ["form"],
)
REPLIES_ABANDONED = Counter(
    "pushserver_replies_abandoned_total",
    "Replies given up, because no client waits for them any more. To their receivers the server did not answer. "
    "When it moves: no node took them for an hour, or no store ever had them; look at the nodes.",
)
PUBLISH_ERRORS = Counter(
    "pushserver_replies_publish_errors_total",
    "Failed attempts to publish at a node, by status of the answer, or `unreachable`, `no_peers`, `rate_limited`, "
    "`slow`. Another node or a later attempt follows. "
    "When it moves: `no_peers` is a node without peers; 413 or 400 a --max-msg-size that is too small; `slow` a node "
    "that took half a second.",
    ["node", "code"],
)
PUBLISH_SECONDS = BatchHistogram(
    "pushserver_replies_publish_seconds",
    "Time from the commit of a reply into the outbox until a node took it. "
    "When it moves: clients wait 3 s; the first node is slow, or workers of the queue `batches` are too few.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 10, 60, 600),
)
