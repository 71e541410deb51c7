"""The metrics of this gateway, beside those of every gateway. ``platform`` is ios or android."""

from prometheus_client import Counter

UNKNOWN_ERRORS = Counter(
    "pushserver_gateway_unknown_errors_total",
    "Answers of the gateway that no rule matches; they count as transient. "
    "When it moves: give them a rule (console, Unknown gateway errors).",
    ["platform"],
)
PAYLOADS_LEFT_OUT = Counter(
    "pushserver_gateway_payloads_left_out_total",
    "Pushes that went without their payload, because Apple or Google would have refused them as too large. "
    "When it moves: the devices are woken all the same. Shorten the text of the app that most of them belong to.",
    ["platform"],
)
