"""Settings of the whole server. The environment is read here and nowhere else; see the table in README.md."""

import hmac
import json
import os
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url

from pushserver.console.theme import THEME
from pushserver.environment import Environment, GeneratedSecrets, no_generation
from pushserver.logs import configure_logging

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment(os.environ)

# Where it runs --------------------------------------------------------------------------------------------------------
DATA_DIR = Path(env.text("DATA_DIR", str(BASE_DIR / ".data"))).resolve()
DEBUG = env.flag("DEBUG")
HOST = env.text("HOST", "127.0.0.1")
PORT = env.count("PORT", 8000, minimum=1, maximum=65535)
ALLOWED_HOSTS = env.items("ALLOWED_HOSTS", f"localhost,127.0.0.1,[::1],{HOST}")
IS_LOOPBACK = HOST in {"127.0.0.1", "localhost", "::1"}

# Servers that were not configured run embedded; `manage.py up` notes here where they listen.
EMBEDDED_FILE = DATA_DIR / "embedded.json"


def _embedded() -> dict[str, str]:
    try:
        return dict(json.loads(EMBEDDED_FILE.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


EMBEDDED = _embedded()

# Secrets are made up and kept beside an embedded database; who brings a database brings secrets, too.
IS_DEVELOPMENT = DEBUG or not env.secret("DATABASE_URL")
_generate = GeneratedSecrets(DATA_DIR / "secrets") if IS_DEVELOPMENT else no_generation
SECRET_KEY = env.secret("SECRET_KEY") or _generate("SECRET_KEY")
if not SECRET_KEY:
    env.report(7, "SECRET_KEY is not set.", "Set a long random text, for example from `openssl rand -base64 48`.")
    SECRET_KEY = "only-to-let-the-checks-run"  # noqa: S105 - nothing starts while a check fails
SERVER_PRIVATE_KEY = env.private_key("SERVER_PRIVATE_KEY", _generate)
FIELD_ENCRYPTION_KEYS = env.field_keys("FIELD_ENCRYPTION_KEYS", _generate)

# Database and broker --------------------------------------------------------------------------------------------------
NO_DATABASE = "postgresql://127.0.0.1/pushserver"  # commands that need none, such as makemigrations, still run
DATABASE_URL = env.secret("DATABASE_URL") or EMBEDDED.get("DATABASE_URL", "")


def _database() -> dict[str, Any]:
    try:
        database = dict(dj_database_url.parse(DATABASE_URL or NO_DATABASE, conn_max_age=60, conn_health_checks=True))
    except (ValueError, KeyError):
        database = {"ENGINE": ""}
    if database["ENGINE"] != "django.db.backends.postgresql":
        env.report(8, "DATABASE_URL is not a PostgreSQL URL.", "Example: postgresql://user:password@host:5432/name")
        return dict(dj_database_url.parse(NO_DATABASE))
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.secret("REDIS_URL") or EMBEDDED.get("REDIS_URL", "redis://127.0.0.1:6379/0")
if not REDIS_URL.startswith(("redis://", "rediss://")):
    env.report(9, "REDIS_URL is not a Redis URL.", "Example: redis://127.0.0.1:6379/0")
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "pushserver",
        # Heartbeats and probes must tell that it hangs, not hang with it.
        "OPTIONS": {"socket_connect_timeout": 2, "socket_timeout": 2},
    }
}

# Waku -----------------------------------------------------------------------------------------------------------------
WAKU_NODES = env.urls("WAKU_NODES", EMBEDDED.get("WAKU_NODES", ""))
WAKU_STORE_NODES = env.urls("WAKU_STORE_NODES") or WAKU_NODES
WAKU_PUBSUB_TOPICS = env.items("WAKU_PUBSUB_TOPICS", "/waku/2/rs/16/32")
if not all(topic.startswith("/waku/2/rs/") for topic in WAKU_PUBSUB_TOPICS):
    env.report(10, "WAKU_PUBSUB_TOPICS holds a name that is no shard.", "Example: /waku/2/rs/16/32")
# What the nodes were told with --rest-relay-cache-capacity: a page of half that size is an alarm.
WAKU_RING_CAPACITY = env.count("WAKU_RING_CAPACITY", 50, minimum=1, maximum=1_000_000)
# Stores: how often the last minute is read, how much of an outage is caught up with, how much of the past is searched
# for a topic that is new.
WAKU_STORE_PERIOD_SECONDS = env.number("WAKU_STORE_PERIOD_SECONDS", 3.0, minimum=0.5, maximum=60)
WAKU_STORE_RECOVERY_HOURS = env.number("WAKU_STORE_RECOVERY_HOURS", 48.0, minimum=1, maximum=24 * 365)
WAKU_BACKFILL_SECONDS = env.number("WAKU_BACKFILL_SECONDS", 300.0, minimum=10, maximum=86_400)
# Of one core, for deriving the keys of query topics before somebody needs them; 15 ms each.
TOPIC_KEY_CPU_SHARE = env.number("TOPIC_KEY_CPU_SHARE", 0.1, minimum=0, maximum=1)

# What we promise to clients -------------------------------------------------------------------------------------------
STRICT_VERSION_CHECK = env.flag("STRICT_VERSION_CHECK")
REPLY_DEADLINE_SECONDS = env.number("REPLY_DEADLINE_SECONDS", 2.0, minimum=0.1, maximum=60)
NOTIFICATION_TTL_SECONDS = env.count("NOTIFICATION_TTL_SECONDS", 86_400, minimum=60, maximum=2_592_000)

# gorush ---------------------------------------------------------------------------------------------------------------
GORUSH_URLS = env.urls("GORUSH_URL", EMBEDDED.get("GORUSH_URL", ""))
GORUSH_TIMEOUT_SECONDS = env.number("GORUSH_TIMEOUT_SECONDS", 65.0, minimum=1, maximum=600)
# Nobody but us reaches gorush, though it listens on every interface: the operator's word, see docs/gorush.md.
GORUSH_SHIELDED = env.flag("GORUSH_SHIELDED")
# Opens /hooks/gorush. As part of a header in gorush's settings it can hold neither colon nor space.
GORUSH_HOOK_SECRET = env.secret("GORUSH_HOOK_SECRET")
if GORUSH_HOOK_SECRET and not re.fullmatch(r"[A-Za-z0-9_-]{32,200}", GORUSH_HOOK_SECRET):
    env.report(
        13,
        "GORUSH_HOOK_SECRET is not 32 to 200 letters, digits, - or _.",
        "Make one: openssl rand -hex 32. gorush drops a header with a second colon without a word.",
    )
    GORUSH_HOOK_SECRET = ""
# How long a worker may hold a notification before it is taken for dead, and its push for ambiguous.
DELIVERY_LEASE_SECONDS = env.number("DELIVERY_LEASE_SECONDS", 90.0, minimum=10, maximum=3600)
if DELIVERY_LEASE_SECONDS < GORUSH_TIMEOUT_SECONDS + 12:  # waiting for a connection and making it, see connections.py
    env.report(
        12,
        "DELIVERY_LEASE_SECONDS is shorter than GORUSH_TIMEOUT_SECONDS and 12 seconds.",
        "A push that is still on its way would be sent a second time.",
    )
# How long a worker's thread sits with pushes; then it leaves them to the process and takes the next task. The maximum
# is shorter than any lease.
DELIVERY_PATIENCE_SECONDS = env.number("DELIVERY_PATIENCE_SECONDS", 2.0, minimum=0.1, maximum=10)
# Pushes of one channel (app and platform) under way in one process; of its 256 connections, others need some, too.
CHANNEL_IN_FLIGHT = env.count("CHANNEL_IN_FLIGHT", 128, minimum=1, maximum=256)
MAX_OPEN_NOTIFICATIONS = env.count("MAX_OPEN_NOTIFICATIONS", 200_000, minimum=1, maximum=100_000_000)
# Breakers: refused for the set-up, tokens dying in numbers, routes that never work.
CONFIG_TRIP_COUNT = env.count("CONFIG_TRIP_COUNT", 5, minimum=2, maximum=100)
CONFIG_TRIP_SECONDS = env.number("CONFIG_TRIP_SECONDS", 300.0, minimum=10, maximum=86_400)
CHANNEL_PROBE_SECONDS = env.number("CHANNEL_PROBE_SECONDS", 30.0, minimum=1, maximum=3600)
DEAD_TOKEN_SHARE = env.number("DEAD_TOKEN_SHARE", 0.2, minimum=0.01, maximum=1)
ROUTE_FAILING_HOURS = env.number("ROUTE_FAILING_HOURS", 72.0, minimum=1, maximum=8760)
PUSH_TEXTS = {
    "message": env.text("PUSH_TEXT_MESSAGE", "New message in Messenger"),
    "mention": env.text("PUSH_TEXT_MENTION", "New mention or reply in Communities"),
    "request_to_join": env.text(
        "PUSH_TEXT_REQUEST_TO_JOIN", "Someone requested to join a community you are an admin of"
    ),
    "contact_request": env.text("PUSH_TEXT_CONTACT_REQUEST", "Someone sent you a contact request"),
}
PUSH_DEEP_LINKS = {
    "message": env.text("PUSH_DEEP_LINK_MESSAGE", "status-app://chats"),
    "contact_request": env.text("PUSH_DEEP_LINK_CONTACT_REQUEST", "status-app://contact-requests"),
    "other": env.text("PUSH_DEEP_LINK_OTHER", "status-app://ac"),
}
PUSH_SOUND = env.text("PUSH_SOUND", "default")
PUSH_PRIORITY = env.text("PUSH_PRIORITY", "high")
if PUSH_PRIORITY not in {"high", "normal"}:
    env.report(11, "PUSH_PRIORITY is neither high nor normal.", "gorush drops any other value without a word.")

# Canary: a round trip through all of it, every so many seconds (0: never) ---------------------------------------------
CANARY_PERIOD_SECONDS = env.number("CANARY_PERIOD_SECONDS", 60.0, minimum=0, maximum=86_400)
# How long it waits for each answer.
CANARY_PATIENCE_SECONDS = env.number("CANARY_PATIENCE_SECONDS", 10.0, minimum=1, maximum=60)
CANARY_RETENTION_DAYS = env.count("CANARY_RETENTION_DAYS", 7, minimum=1, maximum=3650)
# A phone of the operator's own that is notified each time. Without one, gorush is told to drop the canary's pushes.
CANARY_DEVICE_TOKEN = env.secret("CANARY_DEVICE_TOKEN")
CANARY_APN_TOPIC = env.text("CANARY_APN_TOPIC")  # of the app on it; none: it is an Android phone
if CANARY_APN_TOPIC and not CANARY_DEVICE_TOKEN:
    env.report(20, "CANARY_APN_TOPIC is set, but no CANARY_DEVICE_TOKEN.", "Set both, or neither.")
# Nobody else can register this one: delivery recognises it.
CANARY_DRY_RUN_TOKEN = hmac.digest(SERVER_PRIVATE_KEY, b"canary dry run", "sha256").hex()

# Retention, in days ---------------------------------------------------------------------------------------------------
ENVELOPE_RETENTION_DAYS = env.count("ENVELOPE_RETENTION_DAYS", 3, minimum=3, maximum=3650)
if WAKU_STORE_RECOVERY_HOURS > ENVELOPE_RETENTION_DAYS * 24 - 12:
    env.report(
        19,
        "WAKU_STORE_RECOVERY_HOURS reaches further back than ENVELOPE_RETENTION_DAYS, less half a day.",
        "What is read again must still be known, or it would be processed twice. Keep envelopes for longer.",
    )
NOTIFICATION_RETENTION_DAYS = env.count("NOTIFICATION_RETENTION_DAYS", 30, minimum=2, maximum=3650)
EVENT_RETENTION_DAYS = env.count("EVENT_RETENTION_DAYS", 400, minimum=2, maximum=3650)
# Who of the staff, and which program, looked at whom.
OPENED_RECORD_RETENTION_DAYS = env.count("OPENED_RECORD_RETENTION_DAYS", 400, minimum=7, maximum=3650)

# Reports --------------------------------------------------------------------------------------------------------------
REPORTS_LAKE = env.lake("REPORTS_LAKE", str(DATA_DIR / "lake"))
SPARK_MASTER = env.text("SPARK_MASTER", "local[*]")
if not re.match(r"(local(\[.+\])?$|yarn$|spark://|k8s://)", SPARK_MASTER):
    env.report(16, "SPARK_MASTER is no master that Spark knows.", "Example: local[*], or spark://host:7077")
SPARK_DRIVER_MEMORY = env.text("SPARK_DRIVER_MEMORY", "2g")
if not re.fullmatch(r"[1-9]\d{0,5}[mg]", SPARK_DRIVER_MEMORY):
    env.report(17, "SPARK_DRIVER_MEMORY is no size as Java reads it.", "Example: 2g")
REPORTS_TIMEOUT_SECONDS = env.number("REPORTS_TIMEOUT_SECONDS", 14_400.0, minimum=60, maximum=172_800)
# How long a pseudonym in the lake stays the same: day, week, month or year.
REPORTS_PSEUDONYM_PERIOD = env.text("REPORTS_PSEUDONYM_PERIOD", "month")
if REPORTS_PSEUDONYM_PERIOD not in {"day", "week", "month", "year"}:
    env.report(18, "REPORTS_PSEUDONYM_PERIOD is none of day, week, month, year.", "The default is month.")
    REPORTS_PSEUDONYM_PERIOD = "month"
# Made every night, from this hour (UTC) on.
REPORTS_NIGHTLY = env.flag("REPORTS_NIGHTLY", default=True)
REPORTS_HOUR = env.count("REPORTS_HOUR", 1, minimum=0, maximum=23)
# Who gets each night's summary by mail: nobody unless they are named, and a mail server with them.
REPORT_RECIPIENTS = env.items("REPORT_RECIPIENTS")
EMAIL_HOST = env.text("EMAIL_HOST")
EMAIL_PORT = env.count("EMAIL_PORT", 587, minimum=1, maximum=65535)
EMAIL_HOST_USER = env.text("EMAIL_USER")
EMAIL_HOST_PASSWORD = env.secret("EMAIL_PASSWORD")
EMAIL_ENCRYPTION = env.text("EMAIL_ENCRYPTION", "starttls")
EMAIL_USE_TLS, EMAIL_USE_SSL = EMAIL_ENCRYPTION == "starttls", EMAIL_ENCRYPTION == "tls"
EMAIL_TIMEOUT = 30
DEFAULT_FROM_EMAIL = env.text("EMAIL_FROM", "push-server@localhost")
if EMAIL_ENCRYPTION not in {"starttls", "tls", "none"}:
    env.report(21, "EMAIL_ENCRYPTION is none of starttls, tls, none.", "The default is starttls.")
if any(not re.fullmatch(r"[^@\s<>]+@[^@\s<>]+", address) for address in [*REPORT_RECIPIENTS, DEFAULT_FROM_EMAIL]):
    env.report(22, "REPORT_RECIPIENTS or EMAIL_FROM holds no address.", "Example: ann@example.org,bob@example.org")
if REPORT_RECIPIENTS and not EMAIL_HOST:
    env.report(23, "REPORT_RECIPIENTS is set, but no EMAIL_HOST.", "Name the server that takes mail, or nobody.")

# Celery ---------------------------------------------------------------------------------------------------------------
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # Longer than the longest task. A task lost with its worker is not waited for: the sweeps re-enqueue its rows.
    "visibility_timeout": 900,
    "socket_timeout": 30,
    "socket_connect_timeout": 5,
}
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1.0}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TASK_DEFAULT_QUEUE = "maintenance"
# A queue entry older than this is taken for lost with a worker or the broker; too early costs an empty task.
QUEUE_PATIENCE_SECONDS = env.number("QUEUE_PATIENCE_SECONDS", 10.0, minimum=1, maximum=3600)
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "waku_bridge.tasks.sweep", "schedule": 2.0, "options": {"expires": 10}},
    "confirm_replies": {"task": "waku_bridge.tasks.confirm_replies", "schedule": 2.0, "options": {"expires": 2}},
    "derive_topic_keys": {"task": "waku_bridge.tasks.derive_topic_keys", "schedule": 2.0, "options": {"expires": 2}},
    # Often and briefly, so that a day's worth never piles up.
    "purge": {"task": "waku_bridge.tasks.purge", "schedule": 300.0, "options": {"expires": 300}},
    # Minutes, soon after they are over.
    "count_traffic": {"task": "pushserver.tasks.count_traffic", "schedule": 15.0, "options": {"expires": 15}},
    "purge_visits": {"task": "pushserver.tasks.purge_visits", "schedule": 300.0, "options": {"expires": 300}},
    "watch_gorush": {"task": "waku_bridge.tasks.watch_gorush", "schedule": 300.0, "options": {"expires": 300}},
    "watch_nodes": {"task": "waku_bridge.tasks.watch_nodes", "schedule": 300.0, "options": {"expires": 300}},
    # Often: the database says what is due, so a night that failed, or that nobody was up for, comes again.
    "make_reports": {"task": "spark_reports.tasks.make_reports", "schedule": 300.0, "options": {"expires": 300}},
    "watch_reports": {"task": "spark_reports.tasks.watch_reports", "schedule": 300.0, "options": {"expires": 300}},
}
if CANARY_PERIOD_SECONDS:
    CELERY_BEAT_SCHEDULE["canary"] = {
        "task": "waku_bridge.tasks.run_canary",
        "schedule": CANARY_PERIOD_SECONDS,
        "options": {"expires": CANARY_PERIOD_SECONDS},
    }
CELERY_TASK_ROUTES = {
    "waku_bridge.tasks.process_envelopes": {"queue": "envelopes"},
    # Whatever failed or was left behind waits for it: it must not wait for a backlog of envelopes itself.
    "waku_bridge.tasks.sweep": {"queue": "replies"},
    "waku_bridge.tasks.answer_overdue_requests": {"queue": "replies"},
    "waku_bridge.tasks.deliver_notifications": {"queue": "delivery"},
    "waku_bridge.tasks.publish_replies": {"queue": "replies"},
    "waku_bridge.tasks.run_canary": {"queue": "canary"},
    "waku_bridge.tasks.confirm_replies": {"queue": "replies"},
    "spark_reports.tasks.make_reports": {"queue": "reports"},
}

# Metrics --------------------------------------------------------------------------------------------------------------
# Of one machine or container only: the files in it are named after process ids.
METRICS_DIR = Path(env.text("METRICS_DIR", str(DATA_DIR / "metrics"))).resolve()
METRICS_TOKEN = env.secret("METRICS_TOKEN")
METRICS_HOST = env.text("METRICS_HOST", "127.0.0.1")
METRICS_PORT = env.count("METRICS_PORT", 0, minimum=0, maximum=65535)  # 0: none
if METRICS_TOKEN and not re.fullmatch(r"[A-Za-z0-9._~+/-]{16,200}=*", METRICS_TOKEN):
    env.report(
        24, "METRICS_TOKEN is not 16 to 200 letters, digits or ._~+/-.", "Make one: openssl rand -hex 32. It is secret."
    )
    METRICS_TOKEN = ""

# Django ---------------------------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # before the admin, whose templates it replaces
    "pushserver.apps.ConsoleConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.messages",
    "axes",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
    "csp",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "pushserver",
    "waku_bridge",
    "notifications",
    "registrations",
    "spark_reports",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "pushserver.console.sessions.WholePageMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_otp.middleware.OTPMiddleware",
    "pushserver.console.second_factor.SecondFactorMiddleware",
    "pushserver.console.sessions.WorkingSessionMiddleware",
    "pushserver.console.audit.AuditMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "pushserver.api.problems.ProblemPages",
    "axes.middleware.AxesMiddleware",  # last: it answers for who is locked out
]
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
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["pushserver.api.access.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["pushserver.api.access.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_THROTTLE_CLASSES": ["pushserver.api.access.PerToken"],
    "DEFAULT_THROTTLE_RATES": {
        "token": f"{env.count('API_CALLS_PER_MINUTE', 600, minimum=1, maximum=100_000)}/min",
        "anonymous": "30/min",
    },
    "EXCEPTION_HANDLER": "pushserver.api.problems.as_problem",
    "NUM_PROXIES": 1 if env.flag("BEHIND_HTTPS_PROXY") else 0,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Push server",
    "DESCRIPTION": "What monitoring and support tools may know. All of it is read-only.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SCHEMA_PATH_PREFIX": "/api/v[0-9]",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "RegistrationState": "registrations.models.Registration.State",
        "RouteState": "registrations.models.Route.State",
        "RequestState": "notifications.models.NotificationRequest.State",
        "NotificationState": "notifications.models.Notification.State",
        "ChannelState": "notifications.models.Channel.State",
        "CanaryState": "waku_bridge.models.CanaryRun.State",
        "CanaryLink": "waku_bridge.models.CanaryRun.Link",
        "CanaryCause": "waku_bridge.models.CanaryRun.Cause",
    },
}
ROOT_URLCONF = "pushserver.urls"
WSGI_APPLICATION = "pushserver.wsgi.application"
STATIC_URL = "static/"
# The admin's files are served from the packages themselves: nothing to collect, and nothing that can be out of date.
WHITENOISE_USE_FINDERS = True
UNFOLD = THEME
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
SILENCED_SYSTEM_CHECKS: list[str] = []

# Security: plain http is for loopback only.
REQUIRE_SECOND_FACTOR = env.flag("REQUIRE_SECOND_FACTOR")
SESSION_COOKIE_AGE = 60 * env.count("SESSION_IDLE_MINUTES", 60, minimum=5, maximum=1440)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not IS_LOOPBACK
SESSION_COOKIE_HTTPONLY = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'", "'unsafe-eval'"],  # the theme's Alpine evaluates its attributes; no script is inline
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}
# Who guesses passwords waits; somebody else's guesses lock nobody out who comes from elsewhere.
AXES_FAILURE_LIMIT = env.count("LOGIN_FAILURE_LIMIT", 5, minimum=2, maximum=100)
AXES_COOLOFF_TIME = timedelta(minutes=env.count("LOGIN_COOLOFF_MINUTES", 15, minimum=1, maximum=1440))
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_CLIENT_IP_CALLABLE = "pushserver.console.addresses.client_address"
AXES_RESET_ON_SUCCESS = True
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
# What was typed is kept with the failed login, and in part logged: a code may still be good for half a minute, and some
# type their password where the name belongs.
AXES_SENSITIVE_PARAMETERS = ["username", "ip_address", "code", "csrfmiddlewaretoken"]
AXES_LOCKOUT_CALLABLE = "pushserver.console.refusals.locked_out"
CSRF_FAILURE_VIEW = "pushserver.console.refusals.stale_form"
OTP_ADMIN_HIDE_SENSITIVE_DATA = True
OTP_TOTP_ISSUER = "Push server"
CSRF_TRUSTED_ORIGINS = env.urls("CSRF_TRUSTED_ORIGINS")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.flag("BEHIND_HTTPS_PROXY") else None

# Logging --------------------------------------------------------------------------------------------------------------
LOGGING_CONFIG = None
configure_logging(as_json=env.text("LOG_FORMAT", "text") == "json", level=env.text("LOG_LEVEL", "INFO").upper())


def _share_metrics() -> None:
    """Every process counts in files of its own in this folder. prometheus_client looks for it when it is imported, and
    nothing of ours imports it before the settings are read.
    """
    with suppress(OSError):
        METRICS_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.access(METRICS_DIR, os.R_OK | os.W_OK | os.X_OK):
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(METRICS_DIR)
    else:
        env.report(14, "METRICS_DIR cannot be written to.", "Name a folder on a local disk, of this machine alone.")


if not env.problems:  # while something is wrong nothing is started, and nothing made
    _share_metrics()
CONFIGURATION_PROBLEMS = env.problems
