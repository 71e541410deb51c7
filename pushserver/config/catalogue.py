"""Catalogue of settings: each environment variable of the server, with its meaning and its group. Pure.

`pushserver/settings.py` reads a variable with its default and its bounds. The meaning stands here alone, and
`pushserver.config.page` makes docs/settings.md of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable, as docs/settings.md explains it.

    ``default`` is for a default that follows from something else, ``value`` for a value that only this setting has.
    """

    name: str
    meaning: str
    default: str = ""
    value: str = ""


EMBEDDED = "embedded"
GENERATED = "generated while the database is embedded, else required"
LIMITS = (
    "Limits are two token buckets, `count/seconds,count/seconds`: the count at once, filled again over the seconds; "
    "the first for bursts, the second for the long run."
)

GROUPS: Mapping[str, tuple[Setting, ...]] = {
    "Database, broker and secrets": (
        Setting(
            "DATABASE_URL",
            "PostgreSQL 15 to 18; an older one is refused. Of several servers, `host:port,host:port`, the primary is "
            "used ([fail-over](backup.md#fail-over)). PgBouncer in transaction mode is refused. In session mode it "
            "needs `ignore_startup_parameters = options`, which removes the time limits of statements; `manage.py "
            "check --database default` says what to set instead.",
            EMBEDDED,
        ),
        Setting(
            "REDIS_URL",
            "Redis 7 or newer, or Valkey. With `rediss://` its certificate and name are always verified; "
            "`?ssl_ca_certs=path` names an authority of your own.",
            EMBEDDED,
        ),
        Setting("DATA_DIR", "Folder of the embedded servers and of generated secrets.", "`./.data`"),
        Setting("SECRET_KEY", "Django's secret.", GENERATED),
        Setting(
            "FIELD_ENCRYPTION_KEYS",
            "Keys of what is stored encrypted. The first encrypts, all decrypt. Change them "
            "[step by step](backup.md#changing-the-field-keys), or senders get `WRONG_TOKEN` in between.",
            GENERATED,
        ),
        Setting("SERVER_PRIVATE_KEY", "The key by which clients know this server.", GENERATED),
        Setting(
            "OTHER_SERVER_PRIVATE_KEYS",
            "Further keys by which clients know this server. It serves them alike while its key is being changed: "
            "[how](backup.md#changing-the-servers-key).",
        ),
    ),
    "Waku": (
        Setting(
            "WAKU_NODES",
            "REST addresses of [Waku nodes](waku.md). The bridge reads all of them; replies go to the first that "
            "works well.",
            EMBEDDED,
        ),
        Setting(
            "WAKU_STORE_NODES",
            "Nodes with store v3. The bridge reads there what the live path missed, and two of them confirm its "
            "replies.",
            "`WAKU_NODES`",
        ),
        Setting("WAKU_PUBSUB_TOPICS", "Shards that the bridge reads.", value="comma list of shards"),
        Setting(
            "WAKU_RING_CAPACITY",
            "The value of `--rest-relay-cache-capacity` on the nodes. A page of half that size is an alarm. Below 200 "
            "the bridge reads more often, so that a burst fits.",
            "`50`; `10000` with the development node",
        ),
    ),
    "XMPP": (
        Setting(
            "XMPP_COMPONENT_JID", "Domain of this server's component on [your XMPP server](xmpp.md).", "none: no XMPP"
        ),
        Setting("XMPP_COMPONENT_SECRET", "Secret that the component shares with the XMPP server."),
        Setting("XMPP_COMPONENT_HOST", "Host of the XMPP server's component port."),
        Setting("XMPP_COMPONENT_PORT", "Component port of the XMPP server."),
        Setting(
            "XMPP_COMPONENT_TUNNELLED",
            "`1`: the XMPP server is another machine, and the link to it leads through a tunnel of yours.",
        ),
        Setting("XMPP_DENIED_DOMAINS", "Domains that are not served, with all domains below them."),
        Setting(
            "XMPP_ALLOWED_DOMAINS",
            "The only domains that are served, with all domains below them.",
            "none: all are served",
        ),
        Setting(
            "XMPP_MAX_DEVICES",
            "Maximum number of registered devices of XMPP. The other limits of XMPP are in "
            "[limits.md](limits.md#xmpp).",
        ),
    ),
    "gorush": (
        Setting(
            "GORUSH_URL",
            "Addresses of [gorush](gorush.md). The server uses the first that it reaches.",
            EMBEDDED,
        ),
        Setting("GORUSH_SHIELDED", "`1`: nobody but this server reaches gorush, though it listens on every interface."),
        Setting(
            "GORUSH_HOOK_SECRET",
            "Opens `/hooks/gorush` for [gorush's feedback](gorush.md#feedback).",
            "none: closed",
            "secret: 32 to 200 letters, digits, `-` or `_`",
        ),
        Setting(
            "GORUSH_TIMEOUT_SECONDS",
            "Seconds to wait for an answer of gorush. After them the result of the push is ambiguous.",
        ),
    ),
    "Limits of pushes": (
        Setting(
            "MAX_OPEN_NOTIFICATIONS",
            "Maximum number of notifications that wait. The queues of addresses that nothing was delivered to yet "
            "share a tenth of it, the other queues share the rest, each in equal parts "
            "([admission](delivery.md#admission)). A full queue refuses what comes with `INTERNAL_ERROR`.",
            "100 for each second of `NOTIFICATION_TTL_SECONDS`: `8640000`",
        ),
        Setting(
            "MAX_OPEN_PER_ROUTE",
            "Maximum number of notifications that wait for one address. Each further one replaces the oldest, and a "
            "later one wakes the phone. What failed under way is kept beside them until the next one comes.",
        ),
        Setting(
            "ROUTE_LIMITS",
            "Limits of the wake-ups of one address. Beyond them one wake-up follows as soon as the limits allow, and "
            "the sender is answered with success. Mentions, contact requests and join requests have limits of their "
            "own, fixed at `30/10,600/3600`.",
        ),
        Setting("SENDER_LIMITS", "The same for the pushes of one sender key to all addresses."),
        Setting(
            "GLOBAL_LIMITS",
            "The same for all pushes of the server. What comes by XMPP has the same limits, on its own.",
        ),
    ),
    "Registrations and requests": (
        Setting("REPLY_DEADLINE_SECONDS", "Seconds within which a request is answered. Clients wait 3 seconds."),
        Setting("NOTIFICATION_TTL_SECONDS", "Seconds for which a notification is tried."),
        Setting(
            "STRICT_VERSION_CHECK",
            "`1`: a registration that repeats the version of the last one is refused, as the text of the protocol "
            "has it.",
        ),
        Setting(
            "CHECK_DEVICE_TOKENS",
            "`1`: a device token that Apple or Firebase cannot have made is refused "
            "([limits](limits.md#what-is-registered)). Set `0` should they change the form of theirs.",
        ),
        Setting(
            "NEW_INSTALLATIONS_PER_MINUTE",
            "Maximum number of new installations in a minute, which bounds CPU. Beyond it they are refused with "
            "`INTERNAL_ERROR` ([limits](limits.md#what-is-registered)).",
        ),
        Setting(
            "MAX_REGISTRATIONS",
            "Maximum number of registrations. Beyond it new ones replace those that were never reached "
            "([limits](limits.md#what-is-registered)).",
        ),
        Setting(
            "REGISTRATION_EXPIRY_DAYS", "Days after which a registration ends that was neither repeated nor reached."
        ),
    ),
    "Web server, console and API": (
        Setting("HOST", "Address on which the web server listens; `0.0.0.0` in a container."),
        Setting("PORT", "Port on which the web server listens."),
        Setting(
            "ALLOWED_HOSTS",
            "Host names that console and API answer to, beside loopback names. Probes and `/metrics` answer under "
            "any name.",
            "`HOST`",
        ),
        Setting(
            "BEHIND_HTTPS_PROXY",
            "`1`: a proxy speaks HTTPS to the browser. It must set `X-Forwarded-Proto` itself and add the caller to "
            "`X-Forwarded-For`: calls of the API and wrong logins are counted by that address.",
        ),
        Setting("CSRF_TRUSTED_ORIGINS", "Origins of the console behind such a proxy, as `https://push.example.org`."),
        Setting("REQUIRE_SECOND_FACTOR", "`1`: everybody in the console sets up an authenticator app first."),
        Setting(
            "SESSION_MAX_HOURS", "Hours after which a session of the console ends, also while somebody works in it."
        ),
        Setting("SESSION_IDLE_MINUTES", "Minutes without work in the console after which a person logs in again."),
        Setting("API_CALLS_PER_MINUTE", "Maximum number of calls of the API in a minute, for each token."),
        Setting("DEBUG", "`1`: Django's debug pages. Never in production."),
    ),
    "Canary": (
        Setting(
            "CANARY_PERIOD_SECONDS",
            "Seconds between two round trips of the [canary](canary.md), and of that of XMPP where it is configured. "
            "`0`: only on demand.",
        ),
        Setting(
            "CANARY_DEVICE_TOKEN",
            "Device token of a phone of yours that the canary notifies. Without one gorush drops the canary's "
            "pushes, as it always does those of the canary of XMPP.",
        ),
        Setting("CANARY_APP_TOPIC", "Topic of the app on that phone, if it is Apple's."),
    ),
    "Retention": (
        Setting("ENVELOPE_RETENTION_DAYS", "Days after which envelopes and replies are deleted."),
        Setting(
            "NOTIFICATION_RETENTION_DAYS",
            "Days after which requests, notifications, attempts and ended halts are deleted.",
        ),
        Setting(
            "EVENT_RETENTION_DAYS",
            "Days after which the history of registrations is deleted, and what is in the lake of the reports, which "
            "is kept for 40 days at least.",
        ),
        Setting(
            "ACCESS_LOG_RETENTION_DAYS",
            "Days for which the access log keeps which person or program opened whose record.",
        ),
    ),
    "Reports": (
        Setting("REPORTS_NIGHTLY", "`1`: the reports of a day are made in the night after it. `0`: only on demand."),
        Setting("REPORTS_HOUR", "Hour (UTC) from which they are made."),
        Setting(
            "REPORTS_LAKE",
            "Where reports keep their Parquet files: a path, or a URL that Spark reads, without a password.",
            "`DATA_DIR/lake`",
        ),
        Setting(
            "SPARK_MASTER",
            "The Spark master that computes reports.",
            value="`local[…]`, `spark://…`, or `sc://…` for Spark Connect",
        ),
        Setting(
            "SPARK_DRIVER_MEMORY",
            "Memory of Spark's driver, which with `local` does all the work.",
            value="as `512m` or `2g`",
        ),
        Setting(
            "REPORTS_PSEUDONYM_PERIOD",
            "Period for which a pseudonym in the lake stays the same.",
            value="`day`, `week`, `month` or `year`",
        ),
        Setting(
            "REPORT_RECIPIENTS", "Addresses that get each night's summary by mail.", "nobody", "comma list of addresses"
        ),
    ),
    "Alerts and mail": (
        Setting(
            "ALERTS_TO",
            "Mail addresses and URLs of webhooks that get an [alert](console.md#alerts) when an indicator gets bad.",
            "nobody",
        ),
        Setting("EMAIL_HOST", "Server that takes mail."),
        Setting("EMAIL_PORT", "Port of that server."),
        Setting("EMAIL_ENCRYPTION", "Encryption of the link to it.", value="`starttls`, `tls` or `none`"),
        Setting("EMAIL_USER", "Account of this server on it."),
        Setting("EMAIL_PASSWORD", "Password of that account."),
        Setting("EMAIL_FROM", "Sender of the mail."),
    ),
    "Metrics, traces and log": (
        Setting(
            "METRICS_TOKEN",
            "Opens `/metrics`.",
            "none: closed",
            "secret: 16 to 200 letters, digits or `._~+/-`",
        ),
        Setting(
            "METRICS_DIR",
            "Folder in which the processes of one machine count. Containers must not share it.",
            "`DATA_DIR/metrics`",
        ),
        Setting("METRICS_HOST", "Address on which bridges and workers serve their metrics, for containers."),
        Setting("METRICS_PORT", "Port on which bridges and workers serve their metrics. `0`: none."),
        Setting("LOG_FORMAT", "`json` for machines.", value="`text` or `json`"),
        Setting("LOG_LEVEL", "Lowest level that is logged.", value="`DEBUG`, `INFO`, `WARNING` or `ERROR`"),
        Setting(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "Base URL of a collector that takes OTLP over HTTP: [traces and errors](monitoring/README.md#traces).",
            "none: nothing is traced",
            "URL, as `http://collector:4318`",
        ),
        Setting("OTEL_EXPORTER_OTLP_HEADERS", "HTTP headers for the collector."),
        Setting("OTEL_TRACES_SAMPLER_ARG", "Share of the messages that are traced."),
        Setting("OTEL_SERVICE_NAME", "Name of this server in the collector."),
        Setting(
            "OTEL_RESOURCE_ATTRIBUTES",
            "Further attributes of this server in the collector.",
            value="`name=value,name=value`, values as in a URL",
        ),
        Setting(
            "TRACE_PAGE",
            "Page of a trace, to which timelines of the console link.",
            value="URL, as `https://jaeger.example.org/trace/{trace_id}`",
        ),
    ),
}
NAMES = tuple(setting.name for own in GROUPS.values() for setting in own)
