"""The pages of the console to which indicators lead, by the names of their URLs."""

from kit.health.indicators import Page


def _rows(title: str, model: str, query: str = "") -> Page:
    """Return a list of rows, for people who may see them."""
    app_label, model_name = model.split(".")
    return Page(title, f"admin:{app_label}_{model_name}_changelist", f"{app_label}.view_{model_name}", query)


NODES = Page("Waku nodes", "waku_nodes")
WATERMARKS = _rows("Store watermarks", "waku_bridge.storewatermark")
INBOX = _rows("Envelopes that wait", "waku_bridge.inboundenvelope", "state__exact=received")
FAULTS = _rows("Envelope faults", "waku_bridge.envelopefault", "waiting=yes")
FAILED = _rows("Failed envelopes", "waku_bridge.inboundenvelope", "state__exact=failed")
DEAD_LETTERS = _rows("Dead letters", "waku_bridge.deadletter")
DRAIN = Page("Drain", "drain", "notifications.operate_drain")
STUCK = _rows("Stuck notifications", "notifications.notification", "progress=stuck")
GORUSH = Page("gorush configuration", "gorush_configuration")
ATTEMPTS = _rows("Attempts", "notifications.attempt")
FAILED_ATTEMPTS = _rows("Failed attempts", "notifications.attempt", "failed=yes")
UNKNOWN_ERRORS = _rows("Unknown errors", "notifications.unknowngatewayerror")
CHANNELS = _rows("Channels", "notifications.channel")
TRIPPED = _rows("Tripped channels", "notifications.channel", "halted=tripped")
PAUSED = _rows("Paused channels", "notifications.channel", "halted=paused")
HALTED = _rows("Halted channels", "notifications.channel", "halted=yes")
OUTBOX = _rows("Replies that wait", "waku_bridge.outboundreply", "state__exact=pending")
OPEN = _rows("Open notifications", "notifications.notification", "progress=open")
ENDED = _rows("Notifications", "notifications.notification")
LOST_REPLIES = _rows("Lost replies", "waku_bridge.outboundreply", "lost=yes")
REQUESTS = _rows("Requests that wait", "notifications.notificationrequest", "state__exact=waiting")
CANARY = _rows("Canary", "waku_bridge.canaryrun")
XMPP_CANARY = _rows("XMPP canary", "xmpp_bridge.canaryrun")
REGISTRATIONS = _rows("Registrations", "registrations.registration")
XMPP_APPS = _rows("XMPP apps", "xmpp_bridge.app")
XMPP_DEVICES = _rows("XMPP devices", "xmpp_bridge.device")
REPORTS = Page("Last night", "reports:overview", "spark_reports.view_publishedday")
INCIDENTS = _rows("Incidents", "pushserver.incident")
RUNS = _rows("Runs", "spark_reports.reportrun")
