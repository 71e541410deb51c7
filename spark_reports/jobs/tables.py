"""Tables of the lake: the grain of each, and every column with its meaning, type and unit.

This module is the only definition. Spark's schemas (`sources`), the export's Parquet schemas, the models of reports,
their pages, CSV files and API, and docs/figures.md are made from it. Plain Python: the server reads it without PySpark.
"""

from dataclasses import dataclass
from enum import StrEnum

# Raise this when a column is removed or changes its meaning. Older days then have to be exported again. A new optional
# column needs no new version: it is null in older days.
SCHEMA_VERSION = 5
# The number of weekly cohorts of device tokens that `token_lifetime` follows.
LIFETIME_WEEKS = 26
# The number of senders, and of recipients, with a pseudonym in the lake: those with the most notifications.
HEAVIEST = 20
# The number of actors in a crowd. The export does not tell which of them has which pseudonym of the crowd.
CROWD = 5
# A figure is compared with this number of days before it, if this minimum of them is known.
USUAL_DAYS = 7
MIN_USUAL_DAYS = 3
# A rate of fewer events is not flagged, because it proves nothing.
MIN_TOTAL = 50
# A failure is new if it was not seen for this number of days before.
NEW_AFTER_DAYS = 30


class Type(StrEnum):
    """The type of a column, by Spark's name."""

    TIMESTAMP = "timestamp"
    DATE = "date"
    STRING = "string"
    INT = "int"
    LONG = "bigint"
    DOUBLE = "double"
    BOOLEAN = "boolean"


class Kind(StrEnum):
    """The kind of a figure in a report, by which it is added up and shown."""

    COUNT = "count"
    # Flows of device tokens. Those between two places are no loss and no gain of the server.
    FLOW_IN = "flow in"
    FLOW_OUT = "flow out"
    MOVE_IN = "flow in from another place"
    MOVE_OUT = "flow out to another place"
    STAYED = "no flow"
    RATE = "rate"
    POINTS = "difference of two rates"
    MILLISECONDS = "milliseconds"
    MICROSECONDS = "microseconds"
    RATIO = "ratio"
    FIRST, LAST = "first day", "last day"
    # What figures rest on, and how a program judges them. Files have these columns, and pages do not.
    DAYS = "days compared with"
    SCORE = "deviations"


FLOWS = (Kind.FLOW_IN, Kind.MOVE_IN, Kind.STAYED, Kind.FLOW_OUT, Kind.MOVE_OUT)
USUAL_KINDS = {Type.LONG: Kind.COUNT, Type.INT: Kind.COUNT, Type.DOUBLE: Kind.RATE}


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``heading`` is its name on pages, if that is not its own."""

    name: str
    type: Type
    meaning: str
    is_nullable: bool = False
    kind: Kind | None = None
    heading: str = ""

    @property
    def title(self) -> str:
        return self.heading or self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake. ``day`` is no column of its files, but part of their path, and every reader adds it.

    ``question`` is what a report answers on a page of its own.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    question: str = ""

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    def of_kind(self, *kinds: Kind) -> list[str]:
        return [column.name for column in self.columns if column.kind in kinds]


def required(name: str, type_: Type, meaning: str, kind: Kind | None = None, heading: str = "") -> Column:
    return Column(name, type_, meaning, kind=kind or USUAL_KINDS.get(type_), heading=heading)


def optional(name: str, type_: Type, meaning: str, kind: Kind | None = None, heading: str = "") -> Column:
    return Column(name, type_, meaning, is_nullable=True, kind=kind or USUAL_KINDS.get(type_), heading=heading)


PLATFORM = required("platform", Type.STRING, "`ios`, `android`, or `none` where nothing tells")
APP_TOPIC = required("app_topic", Type.STRING, "APNs topic; empty for Firebase, `(other)` for apps that are not known")
BRIDGE = required("bridge", Type.STRING, "the bridge that it came by")
_PLACE = (PLATFORM, APP_TOPIC, BRIDGE)
PLACE = (PLATFORM.name, APP_TOPIC.name, BRIDGE.name)
STAGE = required("stage", Type.STRING, "the step in a message's life")

# Facts, as they are exported -----------------------------------------------------------------------------------------
ENVELOPES = Table(
    "envelopes",
    "one row per Waku message received on a topic of ours, on the day it was received",
    (
        required("at", Type.TIMESTAMP, "when it was received, to the minute"),
        required("type", Type.STRING, "`registration`, `query`, `request`, …, or `unknown` when it could not be read"),
        required(
            "state",
            Type.STRING,
            "`processed`, `dropped`, `failed`, or one of those that still wait: `received`, `postponed`, `pending_key`",
        ),
        required("reason", Type.STRING, "of a drop, a refusal or a failure, in our words; else empty"),
        optional("processed_us", Type.LONG, "from received to processed"),
    ),
)
NOTIFICATIONS = Table(
    "notifications",
    "one row per notification asked for, on the day it was accepted or refused, and nothing about whom it is of",
    (
        required("at", Type.TIMESTAMP, "when it was accepted or refused, to the hour"),
        *_PLACE,
        required("state", Type.STRING, "as in docs/delivery.md, at the time of the export"),
        required("report", Type.STRING, "what the sender was told; empty while it was not"),
    ),
)
ROLE = required("role", Type.STRING, "`sender` or `recipient`")
ACTORS = Table(
    "actors",
    "one row per role and each of the 20 actors with the most notifications, and per role and number of notifications "
    "for all others together; without hour, place and order",
    (
        ROLE,
        optional("rank", Type.INT, "1 is the heaviest; null for those after the 20th"),
        optional(
            "actor",
            Type.LONG,
            "pseudonym of one of the five actors of ranks 1 to 5, 6 to 10, … : each of the five has one of these rows, "
            "and it is not told which; null where there are fewer than five, and for those without a rank",
        ),
        required("actors", Type.LONG, "how many actors the row is about"),
        required("notifications", Type.LONG, "how many notifications each of them sent or got"),
        required("tried", Type.LONG, "how many of all of these had an attempt"),
        required("attempts", Type.LONG, "attempts of all of these at the gateway so far"),
        required("refused", Type.LONG, "how many of all of these were refused"),
    ),
)
NOTIFICATION_TIMES = Table(
    "notification_times",
    "one row per notification of Waku whose answer was fixed or that ended; not of graded pushes, which are answered "
    "at once and may be planned for later",
    (
        required("at", Type.TIMESTAMP, "when it was accepted or refused, to the minute"),
        PLATFORM,
        BRIDGE,
        optional("delivered_us", Type.LONG, "of delivered ones: from accepted to delivered"),
        optional(
            "answered_us",
            Type.LONG,
            "first notification of a request only: from the request's arrival until its answer was fixed",
        ),
        required("deadline_us", Type.LONG, "from the request's arrival until its answer was due"),
    ),
)
ATTEMPTS = Table(
    "attempts",
    "one row per attempt at a gateway, on the day it was claimed",
    (
        required("at", Type.TIMESTAMP, "when the attempt was claimed, to the minute"),
        *_PLACE,
        required("number", Type.INT, "1 for the first attempt of its notification"),
        required("outcome", Type.STRING, "class as in docs/delivery.md; `open` while it is not known"),
        required("code", Type.STRING, "the gateway's error in our words; empty for a success"),
        optional("latency_us", Type.LONG, "how long the gateway took, measured to the millisecond"),
        optional(
            "queued_us", Type.LONG, "first push only: from the arrival of its message, or its planned time, to its POST"
        ),
    ),
)
REPLIES = Table(
    "replies",
    "one row per message of ours to a client, on the day it was made",
    (
        required("at", Type.TIMESTAMP, "when it was put into the outbox, to the minute"),
        required("type", Type.STRING, "`registration_response`, `query_response`, `response`"),
        required(
            "state", Type.STRING, "`pending`, `published` (not looked for yet), `confirmed`, `unconfirmed`, `abandoned`"
        ),
        required("attempts", Type.INT, "attempts to publish it"),
        required("repeats", Type.INT, "how often no store knew it, so that it was published again"),
        optional(
            "published_us",
            Type.LONG,
            "from the outbox to the node; null for what was published again, since only its last publication is known",
        ),
        optional(
            "since_received_us",
            Type.LONG,
            "from the arrival of the message it answers until it was published; null likewise",
        ),
        required("deadline_us", Type.LONG, "the reply deadline in force at the export"),
    ),
)
REGISTRATION_EVENTS = Table(
    "registration_events",
    "one row per change of an installation, or of a bridge's device, on the day it happened, with the state before and "
    "after",
    (
        required("at", Type.TIMESTAMP, "when it happened, to the hour"),
        required("kind", Type.STRING, "kind of `RegistrationEvent`"),
        *_PLACE,
        required("is_first", Type.BOOLEAN, "nothing earlier is known of the installation"),
        required("was_active", Type.BOOLEAN, "could be pushed to before the event"),
        required("is_active", Type.BOOLEAN, "can be pushed to after it"),
        required("previous_platform", Type.STRING, "platform before; as after when nothing was before"),
        required("previous_app_topic", Type.STRING, "app topic before, likewise"),
    ),
)
ACTIVE_TOKENS = Table(
    "active_tokens",
    "one row per platform, app topic and bridge: device tokens that can be pushed to; counted in SQL over the "
    "whole history, apart from the events of the day, so that the two can be compared",
    (
        *_PLACE,
        required("at_start", Type.LONG, "how many were active at 00:00 UTC"),
        required("at_end", Type.LONG, "how many were active 24 hours later"),
    ),
)
TOKEN_SPELLS = Table(
    "token_spells",
    "one row per platform, app topic, bridge, day of first registration, last day and end: the device tokens of "
    "the last 26 weeks by how long they lived, read from the whole history of each token",
    (
        *_PLACE,
        required("began_on", Type.DATE, "day on which these device tokens were first registered"),
        required("last_day", Type.DATE, "last day on which they were at risk: of their end, or the day of the export"),
        required(
            "end",
            Type.STRING,
            "`ended`: died, expired or were replaced; `left`: unregistered, or moved with their token to another "
            "place; `alive`: neither by the end of the day; whatever happened to a token after its first end is "
            "not looked at",
        ),
        required("tokens", Type.LONG, "how many device tokens"),
    ),
)
UNKNOWN_ERRORS = Table(
    "unknown_errors",
    "one row per kind of gateway error that no rule knows; counters as they stand at the export, none when the next "
    "day was closed by then",
    (
        PLATFORM,
        required("signature", Type.STRING, "the error without anything of one device"),
        required("total", Type.LONG, "how often it came so far"),
        required("first_seen_at", Type.TIMESTAMP, "when it came first, to the hour"),
        required("last_seen_at", Type.TIMESTAMP, "when it came last, to the hour"),
    ),
)
DAYS = Table(
    "days",
    "one row per table; the day counts when the footers of all tables have this `export_id`",
    (
        required("table_name", Type.STRING, "of which table"),
        required("rows", Type.LONG, "its rows"),
        required("sha256", Type.STRING, "of its file"),
        required("export_id", Type.STRING, "as in the footers"),
        required("schema_version", Type.INT, "of the columns"),
        required("key_id", Type.STRING, "of the pseudonyms: days with different keys cannot be joined"),
        required("is_complete", Type.BOOLEAN, "false if retention had removed a part"),
        required("events_since", Type.DATE, "first day with all registration events"),
    ),
)
EVENT_TABLES = (
    ENVELOPES,
    NOTIFICATIONS,
    ACTORS,
    NOTIFICATION_TIMES,
    ATTEMPTS,
    REPLIES,
    REGISTRATION_EVENTS,
    ACTIVE_TOKENS,
    TOKEN_SPELLS,
    UNKNOWN_ERRORS,
)

# Reports, as the jobs write them -------------------------------------------------------------------------------------
# Pages show both ends of an interval, …_low and …_high, as one column.
_SCORE = (
    "how many times the usual spread it is away from what is usual on the seven days before; null with fewer than three"
)
_USUAL_DAYS = required("usual_days", Type.INT, "how many of the seven days before it is compared with", Kind.DAYS)
_WILSON, _RANGE = "95 % interval", "usually between"
ERROR_RATES = Table(
    "error_rates",
    "one row per day, hour (and once for the whole day), stage, platform, app topic, bridge, outcome class and code",
    (
        optional("hour", Type.INT, "0 to 23 UTC; null for the whole day"),
        STAGE,
        *_PLACE,
        required("outcome", Type.STRING, "outcome class"),
        required("code", Type.STRING, "what exactly, in our words; may be empty"),
        required("is_failure", Type.BOOLEAN, "whether this outcome counts as an error"),
        required("events", Type.LONG, "how many ended so"),
        required("total", Type.LONG, "all of this hour, stage, platform, app topic and bridge", heading="of"),
        required("rate", Type.DOUBLE, "events / total"),
        required("rate_low", Type.DOUBLE, "95 % Wilson interval, lower end", heading=_WILSON),
        required("rate_high", Type.DOUBLE, "95 % Wilson interval, upper end"),
        optional(
            "usual_rate",
            Type.DOUBLE,
            "median of the rates of the seven days before, of the same hour; 0 where the cell had events and this "
            "outcome none",
            heading="usual",
        ),
        optional("change", Type.DOUBLE, "rate - usual rate", Kind.POINTS),
        optional("z_score", Type.DOUBLE, _SCORE, Kind.SCORE),
        _USUAL_DAYS,
    ),
    "Which share of messages fails at each step, and is that unusual?",
)
TOKEN_CHURN = Table(
    "token_churn",
    "one row per day, platform, app topic and bridge",
    (
        *_PLACE,
        required("active_at_start", Type.LONG, "device tokens that can be pushed to at 00:00 UTC", heading="at start"),
        required("new", Type.LONG, "in: installations never seen before", Kind.FLOW_IN),
        required("returned", Type.LONG, "in: registered or revived again after it died or expired", Kind.FLOW_IN),
        required("moved_in", Type.LONG, "in: from another platform or app topic", Kind.MOVE_IN),
        required(
            "refreshed",
            Type.LONG,
            "stayed: registered again with the same token, with or without other settings, or revived",
            Kind.STAYED,
        ),
        required("token_changed", Type.LONG, "stayed: registered again with a new token", Kind.STAYED),
        required("unregistered", Type.LONG, "out: by the user", Kind.FLOW_OUT),
        required("died", Type.LONG, "out: the gateway said that the token is dead", Kind.FLOW_OUT),
        required("expired", Type.LONG, "out: every push failed for days", Kind.FLOW_OUT),
        required("moved_out", Type.LONG, "out: to another platform or app topic", Kind.MOVE_OUT),
        required("active_at_end", Type.LONG, "device tokens that can be pushed to 24 hours later", heading="at end"),
        required("unexplained", Type.LONG, "start + in - out - end: 0 unless data is missing"),
        optional("churn_rate", Type.DOUBLE, "(unregistered + died + expired) / active at start"),
        required("net_growth", Type.LONG, "active at end - active at start"),
    ),
    "How many device tokens come and go, and why?",
)
TOKEN_LIFETIME = Table(
    "token_lifetime",
    "one row per day, platform, app topic, bridge, weekly cohort of device tokens and age in weeks: Kaplan-Meier "
    "survival as known at the end of the day; the last 26 cohorts",
    (
        *_PLACE,
        required(
            "cohort",
            Type.DATE,
            "Monday of the week in which the tokens were first registered",
            heading="first registered in week of",
        ),
        required("age_weeks", Type.INT, "1: survived the first seven days"),
        required("tokens", Type.LONG, "size of the cohort: all tokens first registered in this week and place"),
        required("at_risk", Type.LONG, "token-days observed in this week of age"),
        required("ended", Type.LONG, "tokens that died, expired or were replaced in this week of age"),
        required("survival", Type.DOUBLE, "share that survives to this age"),
        required(
            "survival_low", Type.DOUBLE, "95 % interval, Greenwood on the log-log scale: lower end", heading=_WILSON
        ),
        required("survival_high", Type.DOUBLE, "95 % interval, Greenwood on the log-log scale: upper end"),
        required("is_complete", Type.BOOLEAN, "false where retention had removed a part of the cohort's history"),
    ),
    "How long can a device be reached?",
)
LATENCY = Table(
    "latency",
    "one row per day, stage, platform (and once for all platforms) and bridge (and once for all bridges)",
    (
        required("stage", Type.STRING, "`decide`, `answer`, `reply`, `queue`, `gateway`, `deliver`: see docs"),
        required("platform", Type.STRING, "as above, or `all`"),
        required("bridge", Type.STRING, "as above, or `all`"),
        required("events", Type.LONG, "how many were measured"),
        required(
            "p50_ms",
            Type.DOUBLE,
            "median, of durations rounded down to 1 ms below 10 s and to 1 s above",
            Kind.MILLISECONDS,
            "median",
        ),
        required("p90_ms", Type.DOUBLE, "90th percentile, likewise", Kind.MILLISECONDS, "p90"),
        required("p95_ms", Type.DOUBLE, "95th percentile, likewise", Kind.MILLISECONDS, "p95"),
        required("p99_ms", Type.DOUBLE, "99th percentile, likewise", Kind.MILLISECONDS, "p99"),
        required("max_us", Type.LONG, "longest, in microseconds as the database has it", Kind.MICROSECONDS, "longest"),
        optional("within_deadline", Type.DOUBLE, "share within the reply deadline; only `answer` and `reply` have one"),
    ),
    "How long does each step take?",
)
FAILURE_SIGNATURES = Table(
    "failure_signatures",
    "one row per day, source, platform and signature: the 200 of each day that matter most",
    (
        required("source", Type.STRING, "`code` of attempts, or `unknown` texts that no rule knows (redacted)"),
        PLATFORM,
        required("signature", Type.STRING, "code, or the text without anything of one device"),
        required("events", Type.LONG, "how often on this day"),
        optional(
            "usual_events",
            Type.DOUBLE,
            "median of the seven days before; 0 where others of its source came and this did not",
            Kind.COUNT,
            "usual",
        ),
        required("is_new", Type.BOOLEAN, "not seen in the thirty days before"),
        required("is_rising", Type.BOOLEAN, "new, or at least 10 and twice as often as usual"),
        required("first_seen_on", Type.DATE, "first day it was seen, of those known", Kind.FIRST),
        required("last_seen_on", Type.DATE, "last day it was seen", Kind.LAST),
        _USUAL_DAYS,
        required(
            "known_days", Type.INT, "how many of the thirty days before are known: newness is judged by them", Kind.DAYS
        ),
    ),
    "Which errors are frequent, new or rising?",
)
LOAD_PROFILE = Table(
    "load_profile",
    "one row per day and role",
    (
        ROLE,
        required("actors", Type.LONG, "how many different senders or recipients"),
        required("notifications", Type.LONG, "asked for; of recipients without those refused or suppressed at once"),
        required("top_actors", Type.LONG, "the 1 % with the most notifications, rounded up", heading="heaviest 1 %"),
        required("top_share", Type.DOUBLE, "their share of the notifications", heading="share of the heaviest 1 %"),
        required("tried", Type.LONG, "notifications with at least one attempt"),
        required("attempts", Type.LONG, "attempts at the gateway"),
        optional("retry_amplification", Type.DOUBLE, "attempts / tried", Kind.RATIO, "attempts per notification"),
    ),
    "How unevenly is the load spread, and how much of it is retries?",
)
HEAVY_ACTORS = Table(
    "heavy_actors",
    "one row per day, role and rank: the 20 with the most notifications",
    (
        ROLE,
        required("rank", Type.INT, "1 is the heaviest"),
        required(
            "actor",
            Type.STRING,
            "pseudonym of one of the five actors of ranks 1 to 5, 6 to 10, … , in no order: 16 hex digits that change "
            "with the pseudonym key; empty where there are fewer than five",
            heading="pseudonym",
        ),
        required("notifications", Type.LONG, "asked for"),
        required("attempts", Type.LONG, "attempts at the gateway"),
        required("refused", Type.LONG, "refused: wrong token, not registered, overload"),
        required("share", Type.DOUBLE, "of the notifications of this role in `load_profile`"),
    ),
)
ANOMALIES = Table(
    "anomalies",
    "one row per day and figure outside of its usual range",
    (
        required("figure", Type.STRING, "`error_rate` or `churn_rate`"),
        required("stage", Type.STRING, "the step in a message's life; `churn` for churn rates"),
        *_PLACE,
        required("events", Type.LONG, "failures, or tokens lost"),
        required("total", Type.LONG, "of so many", heading="of"),
        required("value", Type.DOUBLE, "the rate of this day", heading="rate"),
        required("usual", Type.DOUBLE, "median of the seven days before"),
        required("band_low", Type.DOUBLE, "lower end of the usual range", heading=_RANGE),
        required("band_high", Type.DOUBLE, "upper end of the usual range"),
        required("z_score", Type.DOUBLE, _SCORE, Kind.SCORE),
        _USUAL_DAYS,
    ),
)
DATA_QUALITY = Table(
    "data_quality",
    "one row per day, check and subject",
    (
        required(
            "check_name",
            Type.STRING,
            "`row_count`, `timestamps`, `unknown_values`, `reconciliation`, `continuity`, `history` or `retention`",
        ),
        required("subject", Type.STRING, "table, report, or platform, app topic and bridge"),
        required("is_ok", Type.BOOLEAN, "false puts a banner on the report"),
        required("expected", Type.LONG, "what it should be"),
        required("found", Type.LONG, "what it is"),
    ),
)
REPORT_TABLES = (
    ERROR_RATES,
    TOKEN_CHURN,
    TOKEN_LIFETIME,
    LATENCY,
    FAILURE_SIGNATURES,
    LOAD_PROFILE,
    HEAVY_ACTORS,
    ANOMALIES,
    DATA_QUALITY,
)
