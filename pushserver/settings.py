"""Settings of the whole server. Only this module reads the environment; `config.catalogue` explains each variable."""

import hmac
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from kit.db import sessions
from kit.db.sessions import IDLE_SECONDS, Timeouts
from pushserver.config import embedded
from pushserver.config.catalogue import NAMES
from pushserver.config.environment import (
    ENCODE,
    MAIL_ADDRESS,
    Environment,
    GeneratedSecrets,
    is_near,
    wrong_in_url,
)
from pushserver.config.logs import configure_logging
from pushserver.config.retired import RETIRED
from pushserver.config.role import Role, role
from pushserver.release import version

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment(os.environ)
env.refuse_retired(RETIRED)
env.refuse_unfinished(NAMES)
env.refuse_unreadable_certificates()

VERSION = version()
ROLE = role()
if ROLE is not Role.COMMAND:
    os.umask(0o077)  # whatever a server writes is for its own account

# Where it runs --------------------------------------------------------------------------------------------------------
DATA_DIR = Path(env.text("DATA_DIR", str(BASE_DIR / ".data"))).resolve()
DEBUG = env.flag("DEBUG")
HOST = env.text("HOST", "127.0.0.1")
PORT = env.count("PORT", 8000, minimum=1, maximum=65535)
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *env.items("ALLOWED_HOSTS", HOST)]
IS_LOOPBACK = HOST in {"127.0.0.1", "localhost", "::1"}
IS_BEHIND_HTTPS_PROXY = env.flag("BEHIND_HTTPS_PROXY")

# Secrets are generated only beside an embedded database; an operator who sets DATABASE_URL sets secrets, too.
IS_DEVELOPMENT = DEBUG or not env.is_set("DATABASE_URL")
if IS_DEVELOPMENT:
    env.generate = GeneratedSecrets(DATA_DIR / "secrets")


def _is_configured(name: str) -> bool:
    """Return whether the environment configures the server of a variable. An XMPP server is known by the component."""
    return env.is_set("XMPP_COMPONENT_JID" if name.startswith("XMPP_COMPONENT_") else name)


# Servers that the environment does not configure run embedded.
EMBEDDED = embedded.settings_of(DATA_DIR, _is_configured)
EMBEDDED_POSTGRES_DIR = DATA_DIR / embedded.POSTGRES_FOLDER
env.values = {**os.environ, **EMBEDDED}
# Pages say who the people of `manage.py demo` are, and that their faults are staged.
DEMONSTRATION = "DEMONSTRATION" in EMBEDDED
SECRET_KEY = env.secret("SECRET_KEY") or env.generate("SECRET_KEY")
if not SECRET_KEY:
    env.report(
        "missing_secret_key",
        "SECRET_KEY is not set.",
        "Set a long random text, for example from `openssl rand -base64 48`.",
    )
    SECRET_KEY = "only-to-let-the-checks-run"  # noqa: S105 - nothing starts while a check fails
SERVER_PRIVATE_KEY = env.private_key("SERVER_PRIVATE_KEY")
OTHER_SERVER_PRIVATE_KEYS = env.private_keys("OTHER_SERVER_PRIVATE_KEYS")
FIELD_ENCRYPTION_KEYS = env.field_keys("FIELD_ENCRYPTION_KEYS")

# Database and broker --------------------------------------------------------------------------------------------------
NO_DATABASE = "postgresql://127.0.0.1/pushserver"  # commands that need none, such as makemigrations, still run
DATABASE_URL = env.secret("DATABASE_URL")

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
    given = _database_parameters()
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


def _database_parameters() -> dict[str, Any]:
    """Return what the URL says, as libpq reads it. One that libpq does not take, or without a name, is a problem."""
    wrong = wrong_in_url(DATABASE_URL or NO_DATABASE, ("postgresql", "postgres"))
    try:
        given = {} if wrong else conninfo_to_dict(DATABASE_URL or NO_DATABASE)
    except ProgrammingError:
        wrong = "has a character or an option that libpq does not read"
    if not wrong and given.get("dbname"):
        return given
    env.report(
        "bad_database_url",
        f"DATABASE_URL {wrong or 'has no name of a database at its end'}.",
        f"Example: postgresql://user:password@host:5432/name, with a standby ...@host:5432,other:5432/name. {ENCODE}",
    )
    return conninfo_to_dict(NO_DATABASE)


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.redis_url("REDIS_URL") or "redis://127.0.0.1:6379/0"
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

# Waku -----------------------------------------------------------------------------------------------------------------
WAKU_NODES = env.urls("WAKU_NODES")
WAKU_STORE_NODES = env.urls("WAKU_STORE_NODES") or WAKU_NODES
WAKU_PUBSUB_TOPICS = env.items("WAKU_PUBSUB_TOPICS", "/waku/2/rs/16/32")
if not all(topic.startswith("/waku/2/rs/") for topic in WAKU_PUBSUB_TOPICS):
    env.report("bad_pubsub_topic", "WAKU_PUBSUB_TOPICS holds a name that is no shard.", "Example: /waku/2/rs/16/32")
# Nodes have 50 without an option; the development node gets this value as its option.
USUAL_RING = 10_000 if "WAKU_NODES" in EMBEDDED else 50
WAKU_RING_CAPACITY = env.count("WAKU_RING_CAPACITY", USUAL_RING, minimum=1, maximum=1_000_000)

# XMPP: a component of the operator's own XMPP server, if there is one ------------------------------------------------
XMPP_COMPONENT_JID = env.domain("XMPP_COMPONENT_JID")
XMPP_COMPONENT_SECRET = env.secret("XMPP_COMPONENT_SECRET")
XMPP_COMPONENT_HOST = env.text("XMPP_COMPONENT_HOST", "127.0.0.1")
XMPP_COMPONENT_PORT = env.count("XMPP_COMPONENT_PORT", 5347, minimum=1, maximum=65535)
if bool(XMPP_COMPONENT_JID) != bool(XMPP_COMPONENT_SECRET):
    env.report(
        "half_xmpp_component",
        "Only one of XMPP_COMPONENT_JID and XMPP_COMPONENT_SECRET is set.",
        "Set both as in the XMPP server's configuration, or neither.",
    )
    XMPP_COMPONENT_JID = XMPP_COMPONENT_SECRET = ""
if XMPP_COMPONENT_JID and not is_near(XMPP_COMPONENT_HOST) and not env.flag("XMPP_COMPONENT_TUNNELLED"):
    env.report(
        "open_xmpp_component",
        "XMPP_COMPONENT_HOST is another machine, and nothing on the link to it is encrypted.",
        "Lead it through a tunnel of your own, and say so with XMPP_COMPONENT_TUNNELLED=1.",
    )
XMPP_DENIED_DOMAINS = env.domains("XMPP_DENIED_DOMAINS")
XMPP_ALLOWED_DOMAINS = env.domains("XMPP_ALLOWED_DOMAINS")
XMPP_MAX_DEVICES = env.count("XMPP_MAX_DEVICES", 2_000_000, minimum=100, maximum=1_000_000_000)
# The gateway of devices that register through XMPP.
XMPP_GATEWAY = "gorush"

# What we promise to clients -------------------------------------------------------------------------------------------
STRICT_VERSION_CHECK = env.flag("STRICT_VERSION_CHECK")
CHECK_DEVICE_TOKENS = env.flag("CHECK_DEVICE_TOKENS", default=True)
NEW_INSTALLATIONS_PER_MINUTE = env.count("NEW_INSTALLATIONS_PER_MINUTE", 60_000, minimum=1, maximum=10_000_000)
MAX_REGISTRATIONS = env.count("MAX_REGISTRATIONS", 2_000_000, minimum=100, maximum=1_000_000_000)
REPLY_DEADLINE_SECONDS = env.number("REPLY_DEADLINE_SECONDS", 2.0, minimum=0.1, maximum=60)
NOTIFICATION_TTL_SECONDS = env.count("NOTIFICATION_TTL_SECONDS", 86_400, minimum=60, maximum=2_592_000)

# The gateway of phones that register through Waku, whose addresses are device tokens of Apple and Firebase.
STATUS_GATEWAY = "gorush"

# gorush ---------------------------------------------------------------------------------------------------------------
GORUSH_URLS = env.urls("GORUSH_URL")
GORUSH_TIMEOUT_SECONDS = env.number("GORUSH_TIMEOUT_SECONDS", 65.0, minimum=1, maximum=600)
GORUSH_SHIELDED = env.flag("GORUSH_SHIELDED")
# The secret opens /hooks/gorush. As part of a header in gorush's settings it can hold neither colon nor space.
GORUSH_HOOK_SECRET = env.secret("GORUSH_HOOK_SECRET")
if GORUSH_HOOK_SECRET and not re.fullmatch(r"[A-Za-z0-9_-]{32,200}", GORUSH_HOOK_SECRET):
    env.report(
        "bad_hook_secret",
        "GORUSH_HOOK_SECRET is not 32 to 200 letters, digits, - or _.",
        "Make one: openssl rand -hex 32. gorush drops a header with a second colon without a word.",
    )
    GORUSH_HOOK_SECRET = ""
# How long a worker may hold a notification before the worker counts as dead and the push as ambiguous: for longer than
# a push takes with waiting for a connection and making it, see connections.py.
DELIVERY_LEASE_SECONDS = 1.2 * GORUSH_TIMEOUT_SECONDS + 12
# By default what comes at 100 a second until it expires.
MAX_OPEN_NOTIFICATIONS = env.count(
    "MAX_OPEN_NOTIFICATIONS", min(100 * NOTIFICATION_TTL_SECONDS, 100_000_000), minimum=1, maximum=100_000_000
)
MAX_OPEN_PER_ROUTE = env.count("MAX_OPEN_PER_ROUTE", 50, minimum=1, maximum=10_000)
# Mentions, contact requests and join requests have limits of their own, see `notifications.acceptance`.
ROUTE_LIMITS = env.limits("ROUTE_LIMITS", "30/10,600/3600")
SENDER_LIMITS = env.limits("SENDER_LIMITS", "1000/10,20000/3600")
GLOBAL_LIMITS = env.limits("GLOBAL_LIMITS", "30000/10,7200000/3600")

# Canary: a round trip through the whole server ------------------------------------------------------------------------
CANARY_PERIOD_SECONDS = env.number("CANARY_PERIOD_SECONDS", 60.0, minimum=0, maximum=86_400)
CANARY_DEVICE_TOKEN = env.secret("CANARY_DEVICE_TOKEN")
CANARY_APP_TOPIC = env.text("CANARY_APP_TOPIC")  # none: it is an Android phone
if CANARY_APP_TOPIC and not CANARY_DEVICE_TOKEN:
    env.report("missing_canary_token", "CANARY_APP_TOPIC is set, but no CANARY_DEVICE_TOKEN.", "Set both, or neither.")
# Nobody else can compute and register these device tokens, whose pushes the gateway drops. The first is in use; a push
# may have been sent under another key.
CANARY_DRY_RUN_TOKENS = [
    hmac.digest(key, b"canary dry run", "sha256").hex() for key in (SERVER_PRIVATE_KEY, *OTHER_SERVER_PRIVATE_KEYS)
]
# No app has this topic, and nobody else can name it: what others send has no part in the canary's channel.
CANARY_DRY_RUN_TOPIC = "canary." + hmac.digest(SERVER_PRIVATE_KEY, b"canary dry run topic", "sha256").hex()[:32]

# Retention, in days ---------------------------------------------------------------------------------------------------
# Each day of envelopes and notifications is a partition, and what looks at all days locks all of them.
ENVELOPE_RETENTION_DAYS = env.count("ENVELOPE_RETENTION_DAYS", 3, minimum=3, maximum=60)
NOTIFICATION_RETENTION_DAYS = env.count("NOTIFICATION_RETENTION_DAYS", 30, minimum=2, maximum=120)
EVENT_RETENTION_DAYS = env.count("EVENT_RETENTION_DAYS", 400, minimum=2, maximum=3650)
REGISTRATION_EXPIRY_DAYS = env.count("REGISTRATION_EXPIRY_DAYS", 180, minimum=30, maximum=3650)
ACCESS_LOG_RETENTION_DAYS = env.count("ACCESS_LOG_RETENTION_DAYS", 400, minimum=7, maximum=3650)

# Reports --------------------------------------------------------------------------------------------------------------
REPORTS_LAKE = env.lake("REPORTS_LAKE", str(DATA_DIR / "lake"))
SPARK_MASTER = env.text("SPARK_MASTER", "local[*]")
if not re.match(r"(local(\[.+\])?$|yarn$|spark://|k8s://|sc://)", SPARK_MASTER):
    env.report(
        "bad_spark_master",
        "SPARK_MASTER is no master that Spark knows.",
        "Example: local[*], spark://host:7077, or sc://host:15002 for Spark Connect",
    )
SPARK_DRIVER_MEMORY = env.text("SPARK_DRIVER_MEMORY", "2g")
if not re.fullmatch(r"[1-9]\d{0,5}[mg]", SPARK_DRIVER_MEMORY):
    env.report("bad_driver_memory", "SPARK_DRIVER_MEMORY is no size as Java reads it.", "Example: 2g")
REPORTS_PSEUDONYM_PERIOD = env.choice("REPORTS_PSEUDONYM_PERIOD", "month", "day", "week", "year")
REPORTS_NIGHTLY = env.flag("REPORTS_NIGHTLY", default=True)
REPORTS_HOUR = env.count("REPORTS_HOUR", 1, minimum=0, maximum=23)
REPORT_RECIPIENTS = env.items("REPORT_RECIPIENTS")
ALERTS_TO = env.targets("ALERTS_TO")
EMAIL_HOST = env.text("EMAIL_HOST")
EMAIL_PORT = env.count("EMAIL_PORT", 587, minimum=1, maximum=65535)
EMAIL_HOST_USER = env.text("EMAIL_USER")
EMAIL_HOST_PASSWORD = env.secret("EMAIL_PASSWORD")
EMAIL_ENCRYPTION = env.choice("EMAIL_ENCRYPTION", "starttls", "tls", "none")
EMAIL_USE_TLS, EMAIL_USE_SSL = EMAIL_ENCRYPTION == "starttls", EMAIL_ENCRYPTION == "tls"
EMAIL_TIMEOUT = 30
DEFAULT_FROM_EMAIL = env.text("EMAIL_FROM", "push-server@localhost")
if EMAIL_ENCRYPTION == "none" and EMAIL_HOST_PASSWORD and not is_near(EMAIL_HOST):
    env.report(
        "open_email_password",
        "EMAIL_PASSWORD would cross the network in plain text, as EMAIL_ENCRYPTION is none.",
        "Set EMAIL_ENCRYPTION to starttls or tls, or no EMAIL_USER and EMAIL_PASSWORD.",
    )
if any(not MAIL_ADDRESS.fullmatch(address) for address in [*REPORT_RECIPIENTS, DEFAULT_FROM_EMAIL]):
    env.report(
        "bad_email_address",
        "REPORT_RECIPIENTS or EMAIL_FROM holds no address.",
        "Example: ann@example.org,bob@example.org",
    )
if (REPORT_RECIPIENTS or any("://" not in target for target in ALERTS_TO)) and not EMAIL_HOST:
    env.report(
        "missing_email_host",
        "REPORT_RECIPIENTS or ALERTS_TO has a mail address, but there is no EMAIL_HOST.",
        "Name the server that takes mail, or nobody.",
    )

# Start ----------------------------------------------------------------------------------------------------------------
STARTS_WHEN = "pushserver.fitting"  # what `kit.processes.starting` asks
BROKER_CHECK = "pushserver.console.health.asking.refusing_broker"  # what it asks before workers start
WATCH = "pushserver.console.health.alerts.watch.Watch"  # the thread of workers for maintenance that takes snapshots

# Celery ---------------------------------------------------------------------------------------------------------------
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 900,
    "socket_timeout": 30,
    "socket_connect_timeout": 5,
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1.0}
CELERY_WORKER_DISABLE_PREFETCH = True  # a worker takes what it can begin at once, and leaves the rest to others
CELERY_TASK_DEFAULT_QUEUE = "maintenance"


def _every(seconds: float, task: str, *, expires: float | None = None) -> dict[str, Any]:
    """Return an entry of beat. A task that no worker has begun when the next one is due expires."""
    return {"task": task, "schedule": seconds, "options": {"expires": expires or seconds}}


CELERY_BEAT_SCHEDULE = {
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
    CELERY_BEAT_SCHEDULE["canary"] = _every(CANARY_PERIOD_SECONDS, "waku_bridge.tasks.run_canary")
if CANARY_PERIOD_SECONDS and XMPP_COMPONENT_JID:
    CELERY_BEAT_SCHEDULE["xmpp_canary"] = _every(CANARY_PERIOD_SECONDS, "xmpp_bridge.tasks.run_canary")
CELERY_TASK_ROUTES = {
    "notifications.tasks.process_batches": {"queue": "batches"},
    # Keys are never derived in a process that makes batches, as each costs 15 ms of CPU time.
    "waku_bridge.tasks.derive_topic_keys": {"queue": "keys"},
    "waku_bridge.tasks.derive_wanted_keys": {"queue": "keys"},
    "waku_bridge.tasks.run_canary": {"queue": "canary"},
    "xmpp_bridge.tasks.run_canary": {"queue": "canary"},
    "spark_reports.tasks.make_reports": {"queue": "reports"},
}

# Metrics --------------------------------------------------------------------------------------------------------------
# A folder of one machine or container only, because its files are named after process ids.
METRICS_DIR = Path(env.text("METRICS_DIR", str(DATA_DIR / "metrics"))).resolve()
# The files are mapped into memory: a process that counts while the disk is full gets SIGBUS.
MIN_FREE_FOR_METRICS_BYTES = 2**20
METRICS_TOKEN = env.secret("METRICS_TOKEN")
METRICS_HOST = env.text("METRICS_HOST", "127.0.0.1")
METRICS_PORT = env.count("METRICS_PORT", 0, minimum=0, maximum=65535)  # 0: none
if METRICS_TOKEN and not re.fullmatch(r"[A-Za-z0-9._~+/-]{16,200}=*", METRICS_TOKEN):
    env.report(
        "bad_metrics_token",
        "METRICS_TOKEN is not 16 to 200 letters, digits or ._~+/-.",
        "Make one: openssl rand -hex 32. It is secret.",
    )
    METRICS_TOKEN = ""

# Traces and errors for a collector that speaks OTLP over HTTP, by the names that OpenTelemetry gives its variables ----
OTLP_URL = next(iter(env.urls("OTEL_EXPORTER_OTLP_ENDPOINT")), "")
OTLP_HEADERS = env.headers("OTEL_EXPORTER_OTLP_HEADERS")
OTLP_SERVICE = env.text("OTEL_SERVICE_NAME", "pushserver")
OTLP_RESOURCE = env.headers("OTEL_RESOURCE_ATTRIBUTES")
OTLP_VERSION = VERSION if OTLP_URL else ""
TRACES = bool(OTLP_URL)
TRACES_SHARE = env.number("OTEL_TRACES_SAMPLER_ARG", 0.1, minimum=0, maximum=1)
# Ids of traces are digests with this key: the same in all processes, and nobody else can tell what they are of.
TRACES_KEY = hmac.digest(SERVER_PRIVATE_KEY, b"ids of traces", "sha256")
TRACE_PAGE = env.text("TRACE_PAGE")
if TRACE_PAGE and not (TRACE_PAGE.startswith(("http://", "https://")) and "{trace_id}" in TRACE_PAGE):
    env.report(
        "bad_trace_page",
        "TRACE_PAGE is no URL with {trace_id} in it.",
        "Example: https://jaeger.example.org/trace/{trace_id}",
    )
    TRACE_PAGE = ""

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
    "pushserver.console.apps.ConsoleConfig",
    *(["pushserver.console.pages.apps.SiteConfig"] if SHOWS_PAGES else []),  # shows what all others have registered
    "pushserver",  # last: it ends the start
]
MIDDLEWARE = [
    "pushserver.console.pages.middleware.AnyHostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "pushserver.console.pages.without_database.WithoutDatabaseMiddleware",
    "pushserver.console.pages.middleware.NothingKeptMiddleware",
    "pushserver.console.pages.middleware.WholePageMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "pushserver.console.pages.middleware.AnonymousFormsMiddleware",
    "django_otp.middleware.OTPMiddleware",
    "pushserver.console.pages.second_factor.SecondFactorMiddleware",
    "pushserver.console.pages.middleware.WorkingSessionMiddleware",
    "pushserver.console.pages.middleware.AuditMiddleware",
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
API_CALLS_PER_MINUTE = env.count("API_CALLS_PER_MINUTE", 600, minimum=1, maximum=100_000)
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
        "CanaryState": "pushserver.console.waku.models.CanaryRun.State",
        "CanaryLink": "pushserver.console.waku.models.CanaryRun.Link",
        "CanaryCause": "pushserver.console.waku.models.CanaryRun.Cause",
        "XmppCanaryLink": "pushserver.console.xmpp.models.CanaryRun.Link",
        "XmppCanaryCause": "pushserver.console.xmpp.models.CanaryRun.Cause",
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
REQUIRE_SECOND_FACTOR = env.flag("REQUIRE_SECOND_FACTOR")
SESSION_COOKIE_AGE = 60 * env.count("SESSION_IDLE_MINUTES", 60, minimum=5, maximum=1440)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_BEHIND_HTTPS_PROXY or not IS_LOOPBACK
# A browser that came by https comes by nothing else for this time.
SECURE_HSTS_SECONDS = 86_400 * 365 if IS_BEHIND_HTTPS_PROXY else 0
# The message after an operation stays on the server, not in a cookie that is only signed.
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
SESSION_COOKIE_HTTPONLY = True
SESSION_MAX_SECONDS = 3600 * env.count("SESSION_MAX_HOURS", 12, minimum=1, maximum=720)
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
CSRF_TRUSTED_ORIGINS = env.urls("CSRF_TRUSTED_ORIGINS")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if IS_BEHIND_HTTPS_PROXY else None

if SHOWS_PAGES:
    from pushserver.console.pages.theme import THEME as UNFOLD  # noqa: F401 - read by unfold
else:
    # System checks would import what these settings name.
    ROOT_URLCONF, MIDDLEWARE = "", []
    CSRF_FAILURE_VIEW = "django.views.csrf.csrf_failure"

# Logging --------------------------------------------------------------------------------------------------------------
LOGGING_CONFIG = None
configure_logging(
    as_json=env.choice("LOG_FORMAT", "text", "json") == "json",
    level=env.choice("LOG_LEVEL", "INFO", "DEBUG", "WARNING", "ERROR"),
    exports_errors=TRACES,
)


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
