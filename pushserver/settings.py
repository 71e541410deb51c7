"""Settings of the whole server, and their table. Only this module reads the environment.

A call of ``env`` is a row of the table: name, kind with its bounds and default of a variable, and which processes need
a secret. The text below it is its meaning. Checks and docs/settings.md are made from the table, and tests compare with
it which secrets compose, chart and units hand out.
"""

import hmac
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from kit.db import sessions
from kit.db.sessions import IDLE_SECONDS, Timeouts
from pushserver.config import data_dir, kinds
from pushserver.config.environment import Environment, GeneratedSecrets
from pushserver.config.kinds import DOMAINS, FLAG, ITEMS, LIMITS, TEXT, URLS, count, is_near, number, word
from pushserver.config.logs import configure_logging
from pushserver.config.role import PROCESSES, Role, processes, role
from pushserver.release import version

BASE_DIR = Path(__file__).resolve().parent.parent
VERSION = version()
ROLE = role()
if ROLE is not Role.COMMAND:
    os.umask(0o077)  # whatever a server writes is for its own account
ENVIRONMENT = env = Environment(os.environ, processes())
ALL, LASTING = " ".join(PROCESSES), " ".join(PROCESSES[1:])

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Database, broker and secrets"
DATA_DIR = Path(env("DATA_DIR", TEXT, str(BASE_DIR / ".data"), words="`./.data`")).resolve()
"""Folder of the embedded servers and of generated secrets."""
DEBUG = env("DEBUG", FLAG, "0")
"""`1`: Django's debug pages. Never in production."""
# Secrets are generated only beside an embedded database; an operator who sets DATABASE_URL sets secrets, too.
if DEBUG or not env.is_set("DATABASE_URL"):
    env.generate = GeneratedSecrets(DATA_DIR / "secrets")


def _is_configured(name: str) -> bool:
    """Return whether the environment configures the server of a variable. An XMPP server is known by the component."""
    return env.is_set("XMPP_COMPONENT_JID" if name.startswith("XMPP_COMPONENT_") else name)


# Servers that the environment does not configure run embedded.
EMBEDDED = data_dir.settings_of(DATA_DIR, _is_configured)
EMBEDDED_POSTGRES_DIR = DATA_DIR / data_dir.POSTGRES_FOLDER
env.values = {**os.environ, **EMBEDDED}
# Pages say who the people of `manage.py demo` are, and that their faults are staged.
DEMONSTRATION = "DEMONSTRATION" in EMBEDDED

DATABASE_URL = env("DATABASE_URL", kinds.DATABASE_URL, words="embedded", used_by=ALL)
"""PostgreSQL 15 to 18; an older one is refused. Of several servers, `host:port,host:port`, the primary is used
([fail-over](backup.md#fail-over)). PgBouncer in transaction mode is refused. In session mode it needs
`ignore_startup_parameters = options`, which removes the time limits of statements; `manage.py check --database default`
says what to set instead."""
REDIS_URL = env("REDIS_URL", kinds.REDIS_URL, words="embedded", used_by=ALL) or "redis://127.0.0.1:6379/0"
"""Redis 7 or newer, or Valkey. With `rediss://` its certificate and name are always verified; `?ssl_ca_certs=path`
names an authority of your own."""
SECRET_KEY = env("SECRET_KEY", kinds.SECRET_KEY, used_by="web")
"""Django's secret."""
# `migrate` refuses keys that do not fit the database before anything else starts; reports make pseudonyms of them.
_HAVE_FIELD_KEYS = "migrate web xmpp batches tasks reports"
FIELD_ENCRYPTION_KEYS = env("FIELD_ENCRYPTION_KEYS", kinds.FIELD_KEYS, used_by=_HAVE_FIELD_KEYS)
"""Keys of what is stored encrypted. The first encrypts, all decrypt. Change them
[step by step](backup.md#changing-the-field-keys), or senders get `WRONG_TOKEN` in between."""
# The bridge knows by it which topics are ours; web registers and recognises devices of XMPP, and runs commands.
_HAVE_SERVER_KEY = "web bridge xmpp batches tasks"
SERVER_PRIVATE_KEY = env("SERVER_PRIVATE_KEY", kinds.PRIVATE_KEY, used_by=_HAVE_SERVER_KEY)
"""The key by which clients know this server."""
OTHER_SERVER_PRIVATE_KEYS = env("OTHER_SERVER_PRIVATE_KEYS", kinds.PRIVATE_KEYS, used_by=_HAVE_SERVER_KEY)
"""Further keys by which clients know this server. It serves them alike while its key is being changed:
[how](backup.md#changing-the-servers-key)."""
env("SSL_CERT_FILE", kinds.CERTIFICATES)
"""Your own authorities (PEM) for all links but that to PostgreSQL, beside the system's and the public ones."""

NO_DATABASE = "postgresql://127.0.0.1/pushserver"  # commands that need none, such as makemigrations, still run

# A host that vanished without a word is noticed within ten seconds, by us and by PostgreSQL, whose locks are free then.
_CLIENT_SILENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 3,
    "keepalives_interval": 3,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
_SERVER_SILENCE = {
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "10000ms",
}
# What a statement of the message path, of the console and of the API may take, and how long it waits for a lock.
# Reports, retention and migrations have timeouts of their own, see `kit.db.base`; commands have no end.
DATABASE_TIMEOUTS = Timeouts(
    statement_seconds=0 if ROLE is Role.COMMAND else 20.0,
    lock_seconds=10.0,
    idle_seconds=0 if ROLE is Role.COMMAND else IDLE_SECONDS,
)


def _database() -> dict[str, Any]:
    """Return Django's description of the database."""
    given: dict[str, Any] = conninfo_to_dict(DATABASE_URL or NO_DATABASE)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    named = {setting: given.pop(name, "") for setting, name in names.items()}
    if "," in named["HOST"]:
        given.setdefault("target_session_attrs", "read-write")  # of several servers, the primary
    ours = sessions.options({**sessions.EVERY_SESSION, **DATABASE_TIMEOUTS.settings, **_SERVER_SILENCE})
    session = f"{given.pop('options', '')} {ours}".strip()
    # Django's default forbids prepared statements altogether. Its own cursors bind on the client and never prepare, so
    # this is for `kit.db.base`.
    parameters = {"prepare_threshold": 5, **_CLIENT_SILENCE, **given, "options": session}
    kept_open = {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
    return {"ENGINE": "kit.db", **named, **kept_open, "OPTIONS": parameters}


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "pushserver",
        # While Redis hangs, heartbeats and probes must report it and not hang as well.
        "OPTIONS": {
            "socket_connect_timeout": 2,
            "socket_timeout": 2,
            "serializer": "kit.processes.status.JsonSerializer",
        },
    }
}

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Waku"
WAKU_NODES = env("WAKU_NODES", URLS, words="embedded")
"""REST addresses of [Waku nodes](waku.md). The bridge reads all of them; replies go to the first that works well."""
WAKU_STORE_NODES = env("WAKU_STORE_NODES", URLS, words="`WAKU_NODES`") or WAKU_NODES
"""Nodes with store v3. The bridge reads there what the live path missed, and two of them confirm its replies."""
WAKU_PUBSUB_TOPICS = env("WAKU_PUBSUB_TOPICS", kinds.SHARDS, "/waku/2/rs/16/32")
"""Shards that the bridge reads."""
# Nodes have 50 without an option; the development node gets this value as its option.
USUAL_RING = 10_000 if "WAKU_NODES" in EMBEDDED else 50
_RING_WORDS = "`50`; `10000` with the development node"
WAKU_RING_CAPACITY = env("WAKU_RING_CAPACITY", count(1, 1_000_000), str(USUAL_RING), words=_RING_WORDS)
"""The value of `--rest-relay-cache-capacity` on the nodes. A page of half that size is an alarm. Below 200 the bridge
reads more often, so that a burst fits."""

# A component of the operator's own XMPP server, if there is one -------------------------------------------------------
env.group = "XMPP"
XMPP_COMPONENT_JID = env("XMPP_COMPONENT_JID", kinds.DOMAIN, words="none: no XMPP")
"""Domain of this server's component on [your XMPP server](xmpp.md)."""
XMPP_COMPONENT_SECRET = env("XMPP_COMPONENT_SECRET", TEXT, used_by="xmpp")
"""Secret that the component shares with the XMPP server."""
XMPP_COMPONENT_HOST = env("XMPP_COMPONENT_HOST", TEXT, "127.0.0.1")
"""Host of the XMPP server's component port."""
XMPP_COMPONENT_PORT = env("XMPP_COMPONENT_PORT", count(1, kinds.MAX_PORT), "5347")
"""Component port of the XMPP server."""
_IS_TUNNELLED = env("XMPP_COMPONENT_TUNNELLED", FLAG, "0")
"""`1`: the XMPP server is another machine, and the link to it leads through a tunnel of yours."""
XMPP_DENIED_DOMAINS = env("XMPP_DENIED_DOMAINS", DOMAINS)
"""Domains that are not served, with all domains below them."""
XMPP_ALLOWED_DOMAINS = env("XMPP_ALLOWED_DOMAINS", DOMAINS, words="none: all are served")
"""The only domains that are served, with all domains below them."""
XMPP_MAX_DEVICES = env("XMPP_MAX_DEVICES", count(100, 1_000_000_000), "2000000")
"""Maximum number of registered devices of XMPP. The other limits of XMPP are in [limits.md](limits.md#xmpp)."""
# The gateway of devices that register through XMPP.
XMPP_GATEWAY = "gorush"

# ----------------------------------------------------------------------------------------------------------------------
env.group = "gorush"
GORUSH_URLS = env("GORUSH_URL", URLS, words="embedded")
"""Addresses of [gorush](gorush.md). The server uses the first that it reaches."""
GORUSH_SHIELDED = env("GORUSH_SHIELDED", FLAG, "0")
"""`1`: nobody but this server reaches gorush, though it listens on every interface."""
# As part of a header in gorush's settings it can hold neither colon nor space. `tasks` compares whether both use it.
GORUSH_HOOK_SECRET = env("GORUSH_HOOK_SECRET", kinds.HOOK_SECRET, words="none: closed", used_by="web tasks")
"""Opens `/hooks/gorush` for [gorush's feedback](gorush.md#feedback)."""
GORUSH_TIMEOUT_SECONDS = env("GORUSH_TIMEOUT_SECONDS", number(1, 600), "65")
"""Seconds to wait for an answer of gorush. After them the result of the push is ambiguous."""
# How long a worker may hold a notification before the worker counts as dead and the push as ambiguous: for longer than
# a push takes with waiting for a connection and making it, see connections.py.
DELIVERY_LEASE_SECONDS = 1.2 * GORUSH_TIMEOUT_SECONDS + 12
# The gateway of phones that register through Waku, whose addresses are device tokens of Apple and Firebase.
STATUS_GATEWAY = "gorush"

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Registrations and requests"
REPLY_DEADLINE_SECONDS = env("REPLY_DEADLINE_SECONDS", number(0.1, 60), "2")
"""Seconds within which a request is answered. Clients wait 3 seconds."""
NOTIFICATION_TTL_SECONDS = env("NOTIFICATION_TTL_SECONDS", count(60, 2_592_000), "86400")
"""Seconds for which a notification is tried."""
STRICT_VERSION_CHECK = env("STRICT_VERSION_CHECK", FLAG, "0")
"""`1`: a registration that repeats the version of the last one is refused, as the text of the protocol has it."""
CHECK_DEVICE_TOKENS = env("CHECK_DEVICE_TOKENS", FLAG, "1")
"""`1`: a device token that Apple or Firebase cannot have made is refused ([limits](limits.md#what-is-registered)). Set
`0` should they change the form of theirs."""
NEW_INSTALLATIONS_PER_MINUTE = env("NEW_INSTALLATIONS_PER_MINUTE", count(1, 10_000_000), "60000")
"""Maximum number of new installations in a minute, which bounds CPU. Beyond it they are refused with `INTERNAL_ERROR`
([limits](limits.md#what-is-registered))."""
MAX_REGISTRATIONS = env("MAX_REGISTRATIONS", count(100, 1_000_000_000), "2000000")
"""Maximum number of registrations. Beyond it new ones replace those that were never reached
([limits](limits.md#what-is-registered))."""
REGISTRATION_EXPIRY_DAYS = env("REGISTRATION_EXPIRY_DAYS", count(30, 3650), "180")
"""Days after which a registration ends that was neither repeated nor reached."""

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Limits of pushes"
_OPEN = min(100 * NOTIFICATION_TTL_SECONDS, 100_000_000)
_OPEN_WORDS = "100 for each second of `NOTIFICATION_TTL_SECONDS`: `8640000`"
MAX_OPEN_NOTIFICATIONS = env("MAX_OPEN_NOTIFICATIONS", count(1, 100_000_000), str(_OPEN), words=_OPEN_WORDS)
"""Maximum number of notifications that wait. The queues of addresses that nothing was delivered to yet share a tenth of
it, the other queues share the rest, each in equal parts ([admission](delivery.md#admission)). A full queue refuses what
comes with `INTERNAL_ERROR`."""
MAX_OPEN_PER_ROUTE = env("MAX_OPEN_PER_ROUTE", count(1, 10_000), "50")
"""Maximum number of notifications that wait for one address. Each further one replaces the oldest, and a later one
wakes the phone. What failed under way is kept beside them until the next one comes."""
# Mentions, contact requests and join requests have limits of their own, see `notifications.acceptance`.
ROUTE_LIMITS = env("ROUTE_LIMITS", LIMITS, "30/10,600/3600")
"""Limits of the wake-ups of one address. Beyond them one wake-up follows as soon as the limits allow, and the sender is
answered with success. Mentions, contact requests and join requests have limits of their own, fixed at
`30/10,600/3600`."""
SENDER_LIMITS = env("SENDER_LIMITS", LIMITS, "1000/10,20000/3600")
"""The same for the pushes of one sender key to all addresses."""
GLOBAL_LIMITS = env("GLOBAL_LIMITS", LIMITS, "30000/10,7200000/3600")
"""The same for all pushes of the server. What comes by XMPP has the same limits, on its own."""

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Web server, console and API"
HOST = env("HOST", TEXT, "127.0.0.1")
"""Address on which the web server listens; `0.0.0.0` in a container."""
PORT = env("PORT", count(1, kinds.MAX_PORT), "8000")
"""Port on which the web server listens."""
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *env("ALLOWED_HOSTS", ITEMS, HOST, words="`HOST`")]
"""Host names that console and API answer to, beside loopback names. Probes and `/metrics` answer under any name."""
IS_BEHIND_HTTPS_PROXY = env("BEHIND_HTTPS_PROXY", FLAG, "0")
"""`1`: a proxy speaks HTTPS to the browser. It must set `X-Forwarded-Proto` itself and add the caller to
`X-Forwarded-For`: calls of the API and wrong logins are counted by that address."""
CSRF_TRUSTED_ORIGINS = env("CSRF_TRUSTED_ORIGINS", URLS)
"""Origins of the console behind such a proxy, as `https://push.example.org`."""
REQUIRE_SECOND_FACTOR = env("REQUIRE_SECOND_FACTOR", FLAG, "0")
"""`1`: everybody in the console sets up an authenticator app first."""
SESSION_MAX_SECONDS = 3600 * env("SESSION_MAX_HOURS", count(1, 720), "12")
"""Hours after which a session of the console ends, also while somebody works in it."""
SESSION_COOKIE_AGE = 60 * env("SESSION_IDLE_MINUTES", count(5, 1440), "60")
"""Minutes without work in the console after which a person logs in again."""
API_CALLS_PER_MINUTE = env("API_CALLS_PER_MINUTE", count(1, 100_000), "600")
"""Maximum number of calls of the API in a minute, for each token."""

# A round trip through the whole server --------------------------------------------------------------------------------
env.group = "Canary"
CANARY_PERIOD_SECONDS = env("CANARY_PERIOD_SECONDS", number(0, 86_400), "60")
"""Seconds between two round trips of the [canary](canary.md), and of that of XMPP where it is configured. `0`: only on
demand."""
CANARY_DEVICE_TOKEN = env("CANARY_DEVICE_TOKEN", TEXT, used_by="web tasks")
"""Device token of a phone of yours that the canary notifies. Without one gorush drops the canary's pushes, as it always
does those of the canary of XMPP."""
CANARY_APP_TOPIC = env("CANARY_APP_TOPIC", TEXT)  # none: it is an Android phone
"""Topic of the app on that phone, if it is Apple's."""
# Nobody else can compute and register these device tokens, whose pushes the gateway drops. The first is in use; a push
# may have been sent under another key.
CANARY_DRY_RUN_TOKENS = [
    hmac.digest(key, b"canary dry run", "sha256").hex()
    for key in (SERVER_PRIVATE_KEY, *OTHER_SERVER_PRIVATE_KEYS)
    if key
]
# No app has this topic, and nobody else can name it: what others send has no part in the canary's app.
CANARY_DRY_RUN_TOPIC = "canary." + hmac.digest(SERVER_PRIVATE_KEY, b"canary dry run topic", "sha256").hex()[:32]

# Each day of envelopes and notifications is a partition, and what looks at all days locks all of them -----------------
env.group = "Retention"
ENVELOPE_RETENTION_DAYS = env("ENVELOPE_RETENTION_DAYS", count(3, 60), "3")
"""Days after which envelopes and replies are deleted."""
NOTIFICATION_RETENTION_DAYS = env("NOTIFICATION_RETENTION_DAYS", count(2, 120), "30")
"""Days after which requests, notifications, attempts and ended halts are deleted."""
EVENT_RETENTION_DAYS = env("EVENT_RETENTION_DAYS", count(2, 3650), "400")
"""Days after which the history of registrations is deleted, and what is in the lake of the reports, which is kept for
40 days at least."""
ACCESS_LOG_RETENTION_DAYS = env("ACCESS_LOG_RETENTION_DAYS", count(7, 3650), "400")
"""Days for which the access log keeps which person or program opened whose record."""

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Reports"
REPORTS_NIGHTLY = env("REPORTS_NIGHTLY", FLAG, "1")
"""`1`: the reports of a day are made in the night after it. `0`: only on demand."""
REPORTS_HOUR = env("REPORTS_HOUR", count(0, 23), "1")
"""Hour (UTC) from which they are made."""
REPORTS_LAKE = env("REPORTS_LAKE", kinds.LAKE, str(DATA_DIR / "lake"), words="`DATA_DIR/lake`")
"""Where reports keep their Parquet files: a path, or a URL that Spark reads, without a password."""
SPARK_MASTER = env("SPARK_MASTER", kinds.SPARK_MASTER, "local[*]")
"""The Spark master that computes reports."""
SPARK_DRIVER_MEMORY = env("SPARK_DRIVER_MEMORY", kinds.MEMORY, "2g")
"""Memory of Spark's driver, which with `local` does all the work."""
REPORTS_PSEUDONYM_PERIOD = env("REPORTS_PSEUDONYM_PERIOD", word("day", "week", "month", "year"), "month")
"""Period for which a pseudonym in the lake stays the same."""
REPORT_RECIPIENTS = env("REPORT_RECIPIENTS", kinds.MAIL_ADDRESSES, words="nobody")
"""Addresses that get each night's summary by mail."""

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Alerts and mail"
ALERTS_TO = env("ALERTS_TO", kinds.TARGETS, words="nobody", used_by="web tasks")
"""Mail addresses and URLs of webhooks that get an [alert](console.md#alerts) when an indicator gets bad."""
EMAIL_HOST = env("EMAIL_HOST", TEXT)
"""Server that takes mail."""
EMAIL_PORT = env("EMAIL_PORT", count(1, kinds.MAX_PORT), "587")
"""Port of that server."""
EMAIL_ENCRYPTION = env("EMAIL_ENCRYPTION", word("starttls", "tls", "none"), "starttls")
"""Encryption of the link to it."""
EMAIL_HOST_USER = env("EMAIL_USER", TEXT)
"""Account of this server on it."""
EMAIL_HOST_PASSWORD = env("EMAIL_PASSWORD", TEXT, used_by="web tasks")
"""Password of that account."""
DEFAULT_FROM_EMAIL = env("EMAIL_FROM", kinds.MAIL, "push-server@localhost")
"""Sender of the mail."""
EMAIL_USE_TLS, EMAIL_USE_SSL = EMAIL_ENCRYPTION == "starttls", EMAIL_ENCRYPTION == "tls"
EMAIL_TIMEOUT = 30

# ----------------------------------------------------------------------------------------------------------------------
env.group = "Metrics, traces and log"
METRICS_TOKEN = env("METRICS_TOKEN", kinds.METRICS_TOKEN, words="none: closed", used_by=LASTING)
"""Opens `/metrics` of the web server, and of bridges and workers at `METRICS_PORT`."""
# Of one machine or container only, because its files are named after process ids.
METRICS_DIR = Path(env("METRICS_DIR", TEXT, str(DATA_DIR / "metrics"), words="`DATA_DIR/metrics`")).resolve()
"""Folder in which the processes of one machine count. Containers must not share it."""
METRICS_HOST = env("METRICS_HOST", TEXT, "127.0.0.1")
"""Address on which bridges and workers serve their metrics, for containers."""
METRICS_PORT = env("METRICS_PORT", count(0, kinds.MAX_PORT), "0")
"""Port on which bridges and workers serve their metrics. `0`: none."""
_IS_JSON = env("LOG_FORMAT", word("text", "json"), "text") == "json"
"""`json` for machines."""
_LOG_LEVEL = env("LOG_LEVEL", word("DEBUG", "INFO", "WARNING", "ERROR"), "INFO")
"""Lowest level that is logged."""
# A collector speaks OTLP over HTTP; OpenTelemetry gives its variables these names.
OTLP_URL = "".join(env("OTEL_EXPORTER_OTLP_ENDPOINT", kinds.COLLECTOR, words="none: nothing is traced")[:1])
"""Base URL of a collector that takes OTLP over HTTP: [traces and errors](monitoring/README.md#traces)."""
OTLP_HEADERS = env("OTEL_EXPORTER_OTLP_HEADERS", kinds.HEADERS, used_by=LASTING)
"""HTTP headers for the collector."""
TRACES_SHARE = env("OTEL_TRACES_SAMPLER_ARG", number(0, 1), "0.1")
"""Share of the messages that are traced."""
OTLP_SERVICE = env("OTEL_SERVICE_NAME", TEXT, "pushserver")
"""Name of this server in the collector."""
OTLP_RESOURCE = env("OTEL_RESOURCE_ATTRIBUTES", kinds.HEADERS)
"""Further attributes of this server in the collector."""
TRACE_PAGE = env("TRACE_PAGE", kinds.TRACE_PAGE)
"""Page of a trace, to which timelines of the console link."""
# The files are mapped into memory: a process that counts while the disk is full gets SIGBUS.
MIN_FREE_FOR_METRICS_BYTES = 2**20
OTLP_VERSION = VERSION if OTLP_URL else ""
# Ids of traces are digests with this key: the same in all processes, and nobody else can tell what they are of. A
# process without the server's key traces nothing.
TRACES = bool(OTLP_URL and SERVER_PRIVATE_KEY)
TRACES_KEY = hmac.digest(SERVER_PRIVATE_KEY, b"ids of traces", "sha256")

# What is wrong with several together: the problem, its words, and what to do ------------------------------------------
_SENDS_MAIL = REPORT_RECIPIENTS or any("://" not in target for target in ALERTS_TO)
for _is_wrong, *_problem in (
    (
        env.uses("xmpp") and bool(XMPP_COMPONENT_JID) != bool(XMPP_COMPONENT_SECRET),
        "half_xmpp_component",
        "Only one of XMPP_COMPONENT_JID and XMPP_COMPONENT_SECRET is set.",
        "Set both as in the XMPP server's configuration, or neither.",
    ),
    (
        XMPP_COMPONENT_JID and not is_near(XMPP_COMPONENT_HOST) and not _IS_TUNNELLED,
        "open_xmpp_component",
        "XMPP_COMPONENT_HOST is another machine, and nothing on the link to it is encrypted.",
        "Lead it through a tunnel of your own, and say so with XMPP_COMPONENT_TUNNELLED=1.",
    ),
    (
        env.uses("web", "tasks") and CANARY_APP_TOPIC and not CANARY_DEVICE_TOKEN,
        "missing_canary_token",
        "CANARY_APP_TOPIC is set, but no CANARY_DEVICE_TOKEN.",
        "Set both, or neither.",
    ),
    (
        EMAIL_ENCRYPTION == "none" and EMAIL_HOST_PASSWORD and not is_near(EMAIL_HOST),
        "open_email_password",
        "EMAIL_PASSWORD would cross the network in plain text, as EMAIL_ENCRYPTION is none.",
        "Set EMAIL_ENCRYPTION to starttls or tls, or no EMAIL_USER and EMAIL_PASSWORD.",
    ),
    (
        _SENDS_MAIL and not EMAIL_HOST,
        "missing_email_host",
        "REPORT_RECIPIENTS or ALERTS_TO has a mail address, but there is no EMAIL_HOST.",
        "Name the server that takes mail, or nobody.",
    ),
    (
        env.uses(*PROCESSES[1:]) and METRICS_PORT and not METRICS_TOKEN and not is_near(METRICS_HOST),
        "open_metrics_port",
        "METRICS_PORT would answer whoever reaches METRICS_HOST, as there is no METRICS_TOKEN.",
        "Set METRICS_TOKEN, which Prometheus then shows there, too.",
    ),
):
    if _is_wrong:
        env.report(*_problem)

# Start ----------------------------------------------------------------------------------------------------------------
STARTS_WHEN = "pushserver.checks"  # what `kit.processes.starting` asks


# Celery ---------------------------------------------------------------------------------------------------------------
def _every(seconds: float, task: str, *, expires: float | None = None) -> dict[str, Any]:
    """Return an entry of beat. A task that no worker has begun when the next one is due expires."""
    return {"task": task, "schedule": seconds, "options": {"expires": expires or seconds}}


BEAT_SCHEDULE = {
    "derive_topic_keys": _every(10.0, "waku_bridge.tasks.derive_topic_keys"),
    # Purges run often and briefly, so that the rows of a whole day never accumulate.
    "purge_envelopes": _every(60.0, "waku_bridge.tasks.purge"),
    "purge_requests": _every(60.0, "notifications.tasks.purge"),
    "expire_registrations": _every(21_600.0, "waku_bridge.tasks.expire_registrations", expires=3600),
    "purge_events": _every(21_600.0, "registrations.tasks.purge", expires=3600),
    "purge_devices": _every(300.0, "xmpp_bridge.tasks.purge"),
    # Each minute is counted soon after it is over.
    "count_traffic": _every(15.0, "pushserver.tasks.count_traffic"),
    "purge_visits": _every(300.0, "pushserver.tasks.purge_visits"),
    "check_gorush": _every(300.0, "notifications.gateways.gorush.tasks.check_gorush"),
    "check_nodes": _every(300.0, "waku_bridge.tasks.check_nodes"),
    # Often, as the database says what is due: a night that failed, or that the server missed, is repeated.
    "make_reports": _every(300.0, "spark_reports.tasks.make_reports"),
    "watch_reports": _every(300.0, "spark_reports.tasks.watch_reports"),
}
if CANARY_PERIOD_SECONDS:
    BEAT_SCHEDULE["canary"] = _every(CANARY_PERIOD_SECONDS, "waku_bridge.tasks.run_canary")
if CANARY_PERIOD_SECONDS and XMPP_COMPONENT_JID:
    BEAT_SCHEDULE["xmpp_canary"] = _every(CANARY_PERIOD_SECONDS, "xmpp_bridge.tasks.run_canary")
# Apart from the settings of Django, which Celery would read whole for `celery inspect conf`.
CELERY = {
    "broker_url": REDIS_URL,
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {"visibility_timeout": 900, "socket_timeout": 30, "socket_connect_timeout": 5},
    "beat_schedule": BEAT_SCHEDULE,
    "imports": ["pushserver.console.tasks"],
    "task_default_queue": "maintenance",
    "task_ignore_result": True,
    "task_publish_retry_policy": {
        "max_retries": 3,
        "interval_start": 0.1,
        "interval_step": 0.3,
        "interval_max": 1.0,
    },
    "task_routes": {
        "notifications.tasks.process_batches": {"queue": "batches"},
        # Keys are never derived in a process that makes batches, as each costs 15 ms of CPU time.
        "waku_bridge.tasks.derive_topic_keys": {"queue": "keys"},
        "waku_bridge.tasks.derive_wanted_keys": {"queue": "keys"},
        "waku_bridge.tasks.run_canary": {"queue": "canary"},
        "xmpp_bridge.tasks.run_canary": {"queue": "canary"},
        "spark_reports.tasks.make_reports": {"queue": "reports"},
    },
    "worker_disable_prefetch": True,  # a worker takes what it can begin at once, and leaves the rest to others
}

# Django ---------------------------------------------------------------------------------------------------------------
SHOWS_PAGES = ROLE is not Role.WORKER
# The console, the API and what only they need. Importing this takes longer than importing everything else.
PAGE_APPS = [
    "unfold.apps.BasicAppConfig",  # before the admin, whose templates it replaces
    "django.contrib.messages",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
    "csp",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "pushserver.console.toolkit",
]
INSTALLED_APPS = [
    *(PAGE_APPS if SHOWS_PAGES else []),
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "embedded",
    "waku_bridge",
    "xmpp_bridge",
    "kit.batches",
    "kit.buckets",
    "kit.expiry",
    "notifications",
    "notifications.gateways.gorush",
    "registrations",
    "spark_reports",
    *(["pushserver.console.pages.apps.SiteConfig"] if SHOWS_PAGES else []),  # shows what all others have registered
    "pushserver",  # last: it ends the start
]
MIDDLEWARE = [
    "pushserver.console.pages.middleware.AnyHostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "pushserver.console.pages.without_database.WithoutDatabaseMiddleware",
    "pushserver.console.pages.middleware.BrowserMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "pushserver.console.pages.middleware.AnonymousFormsMiddleware",
    "django_otp.middleware.OTPMiddleware",
    "pushserver.console.pages.second_factor.SecondFactorMiddleware",
    "pushserver.console.pages.middleware.StaffMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "pushserver.console.toolkit.rest.ProblemPages",
]
# No form takes a file. A file that is sent all the same is skipped, and not kept on the disk.
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.MemoryFileUploadHandler"]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "pushserver.console.pages.logins.NoWordOfOurs"},
]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["pushserver.api.access.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["pushserver.api.access.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_THROTTLE_CLASSES": ["pushserver.console.toolkit.throttling.PerToken"],
    "EXCEPTION_HANDLER": "pushserver.console.toolkit.rest.as_problem",
    "NUM_PROXIES": int(IS_BEHIND_HTTPS_PROXY),
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Push server",
    "DESCRIPTION": "Status and records for tools of monitoring and support, and registration of XMPP devices.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SCHEMA_PATH_PREFIX": "/api/v[0-9]",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "RegistrationState": "registrations.models.Registration.State",
        "RouteState": "registrations.models.Route.State",
        "RequestState": "notifications.models.NotificationRequest.State",
        "NotificationState": "notifications.models.Notification.State",
        "CanaryState": "pushserver.console.models.CanaryRun.State",
        "CanaryLink": "pushserver.console.models.WakuLink",
        "CanaryCause": "pushserver.console.models.WakuCause",
        "XmppCanaryLink": "pushserver.console.models.XmppLink",
        "XmppCanaryCause": "pushserver.console.models.XmppCause",
    },
}
ROOT_URLCONF = "pushserver.urls"
WSGI_APPLICATION = "pushserver.wsgi.application"
STATIC_URL = "static/"
# The admin's files are served from the packages themselves, so no collected copies can be out of date.
WHITENOISE_USE_FINDERS = True
TIME_ZONE = "UTC"
LANGUAGES = [("en", "English")]  # the theme names them all on each page
FORMAT_MODULE_PATH = "pushserver.console.toolkit"

# Security: plain http is for loopback only, and not even there behind a proxy that speaks https to browsers.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_BEHIND_HTTPS_PROXY or not is_near(HOST)
# A browser that came by https comes by nothing else for this time.
SECURE_HSTS_SECONDS = 86_400 * 365 if IS_BEHIND_HTTPS_PROXY else 0
# The message after an operation stays on the server, not in a cookie that is only signed.
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
SESSION_COOKIE_HTTPONLY = True
KNOWN_BROWSER_COOKIE_NAME = "known"
if SESSION_COOKIE_SECURE:  # browsers take such names from this host over https only, and give them to no other
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
    KNOWN_BROWSER_COOKIE_NAME = "__Host-known"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'", "'unsafe-eval'"],  # the theme's Alpine evaluates its attributes; no script is inline
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}
CSRF_FAILURE_VIEW = "pushserver.console.pages.middleware.stale_form"
OTP_ADMIN_HIDE_SENSITIVE_DATA = True  # keys and their QR codes, also on pages of django-otp that are not ours
OTP_TOTP_ISSUER = "Push server"
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if IS_BEHIND_HTTPS_PROXY else None

if SHOWS_PAGES:
    from pushserver.console.pages.theme import THEME as UNFOLD  # noqa: F401 - read by unfold
else:
    # System checks would import what these settings name.
    ROOT_URLCONF, MIDDLEWARE = "", []
    CSRF_FAILURE_VIEW = "django.views.csrf.csrf_failure"

# Logging --------------------------------------------------------------------------------------------------------------
LOGGING_CONFIG = None
configure_logging(as_json=_IS_JSON, level=_LOG_LEVEL, exports_errors=bool(OTLP_URL))


def _share_metrics() -> None:
    """Have every process count in files of its own in METRICS_DIR.

    prometheus_client reads the variable when it is imported, and none of our modules imports it before the settings are
    read.
    """
    with suppress(OSError):
        METRICS_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(METRICS_DIR, os.R_OK | os.W_OK | os.X_OK):
        env.report(
            "unwritable_metrics_dir",
            f"METRICS_DIR ({METRICS_DIR}) cannot be written to.",
            "Set it, or DATA_DIR in which it lies by default, to a folder on a local disk, of this machine alone.",
        )
    elif shutil.disk_usage(METRICS_DIR).free < MIN_FREE_FOR_METRICS_BYTES:
        env.report("full_metrics_dir", f"The disk of METRICS_DIR ({METRICS_DIR}) is full.", "Make room there.")
    else:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(METRICS_DIR)


if not env.problems:  # while something is wrong nothing is started, and nothing made
    _share_metrics()
CONFIGURATION_PROBLEMS = env.problems
