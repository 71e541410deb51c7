"""The config check of gorush: how its configuration deviates from what our delivery needs (docs/gorush.md).

gorush reports about itself at `/api/config`, `/version` and `/api/stat/app` (gorush.md, 1.1 and 1.7). No answer is
trusted: an unclean one counts as missing. A missing value is no complaint, except for those that everything depends on.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import orjson
import yaml
from django.conf import settings
from django.db.models import Count

from kit.http import MAX_CONNECTIONS
from notifications.gateways.gorush.errors import NAMES
from notifications.messages import Outcome
from notifications.models import Attempt
from pushserver.console.checks.engine import NoticeCache, ask_peer, read_all
from pushserver.console.checks.peers import UNREACHABLE, Rule, complaints_of
from registrations.models import Route

NOTICES = NoticeCache("gorush")
ANSWERED = range(200, 300)  # versions of gorush differ: 200 or 201
# A push that gorush has counted may have begun this long before the count, and its attempt with it.
LONGEST_PUSH = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one gorush in one check, and what we need of it. An answer that was missing or unreadable is empty
    or None.

    ``values`` are its configuration, by gorush's own names (`core.sync`). They are read one by one, as flags, numbers
    or known words, so that no secret gets any further. ``counters`` are the pushes that failed at Apple (`ios`) or
    Google (`android`) since gorush started, and ``previous`` those of the check before. ``failures`` counts our failed
    attempts on each platform, since shortly before that check.
    """

    is_reachable: bool
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: tuple[int, ...] | None = None
    counters: Mapping[str, int] | None = None
    previous: Mapping[str, int] | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    platforms: frozenset[str] = frozenset(NAMES.values())  # those that active routes lead to
    is_hook_open: bool = False  # our webhook
    is_shielded: bool = False  # the operator states that nobody else reaches gorush

    def flag(self, name: str) -> bool | None:
        """Return a value that is a boolean, or None."""
        word = self.values.get(name, "").lower()
        return word in TRUE if word in TRUE | FALSE else None

    def number(self, name: str) -> int | None:
        """Return a value that is a whole number, or None."""
        digits = self.values.get(name, "")
        is_number = digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) <= MAX_DIGITS
        return int(digits) if is_number else None

    def below(self, name: str, limit: int = MAX_CONNECTIONS) -> str:
        """Return a number that is below a limit, by default that of a worker's pushes at once, or an empty text."""
        number = self.number(name)
        return str(number) if number is not None and number < limit else ""


# Rules ----------------------------------------------------------------------------------------------------------------
TESTED_VERSION = (1, 22, 0)
TESTED = ".".join(map(str, TESTED_VERSION))
DEFAULT_QUEUE_NUM = 8192
ESSENTIAL = (
    "core.sync",
    "queue.engine",
    *(f"{p}.{key}" for p in NAMES.values() for key in ("enabled", "max_retry")),
)
EXTERNAL_ENGINES = ("redis", "nsq", "nats")
ANY_ADDRESS = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - looked for, not bound to


def _unreadable(gorush: Reading) -> str:
    answers = {"/api/config": gorush.values, "/api/stat/app": gorush.counters}
    return " and ".join(path for path, answer in answers.items() if not answer)


def _incomplete(gorush: Reading) -> str:
    return ", ".join(name for name in ESSENTIAL if name not in gorush.values) if gorush.values else ""


def _queue_engine(gorush: Reading) -> str:
    engine = gorush.values.get("queue.engine", "local")
    return "" if engine == "local" else engine if engine in EXTERNAL_ENGINES else "neither local nor known"


def _workers(gorush: Reading) -> str:
    found = gorush.below("core.worker_num")
    return "0: one per CPU" if found and int(found) <= 0 else found


def _max_retry(platform: str) -> Rule[Reading]:
    return Rule(
        f"max_retry_{platform}",
        lambda gorush: max(gorush.number(f"{platform}.max_retry") or 0, 0),
        platform + ".max_retry is {found}",
        "gorush reports a failure even when its retry succeeded, so we send that push a second time.",
        f"Set GORUSH_{platform.upper()}_MAX_RETRY=0: retries are ours.",
    )


def _platform_off(platform: str) -> Rule[Reading]:
    return Rule(
        f"platform_off_{platform}",
        lambda gorush: platform in gorush.platforms and gorush.flag(f"{platform}.enabled") is False,
        f"{platform}.enabled is off, and phones of this platform are registered",
        "gorush drops their pushes and answers as if they were delivered.",
        f"Set GORUSH_{platform.upper()}_ENABLED=true and its key.",
    )


def _hidden_failures(platform: str) -> Rule[Reading]:
    """Return the rule about failures that gorush counted and this server did not record.

    A counter that fell was reset, so it is not compared.
    """

    def find(gorush: Reading) -> tuple[int, int] | None:
        count, known = (gorush.counters or {}).get(platform, 0), gorush.failures.get(platform, 0)
        grown = count - (gorush.previous or {}).get(platform, count)
        return (grown, known) if grown > known else None

    return Rule(
        f"hidden_failures_{platform}",
        find,
        platform + ".push_error grew by {found[0]}, and we recorded {found[1]} failures",
        "gorush reported failed pushes as delivered, or somebody else sends through it.",
        "Look for the errors in gorush's log; make sure that nobody else reaches it.",
    )


RULES: Sequence[Rule[Reading]] = (
    Rule(
        UNREACHABLE,
        lambda gorush: not gorush.is_reachable,
        "gorush does not answer",
        "No push goes through it; with no other gorush, all pushes wait.",
        "Start it, or correct GORUSH_URL. Without the keys of Apple and Google it ends at once, as its log says.",
    ),
    Rule(
        "unreadable",
        _unreadable,
        "no usable answer from {found}",
        "Whether gorush is set up so that no push is lost or doubled is unknown.",
        "Let this server read these paths at GORUSH_URL: the api.* settings of gorush, or a proxy, block them.",
    ),
    Rule(
        "incomplete",
        _incomplete,
        "/api/config lacks {found}",
        "Whether gorush is set up so that no push is lost or doubled is unknown.",
        "Use the tested version of gorush.",
    ),
    Rule(
        "not_sync",
        lambda gorush: gorush.flag("core.sync") is False,
        "core.sync is off",
        "gorush answers before it has sent anything: every push counts as delivered, dead tokens are never found.",
        "Set GORUSH_CORE_SYNC=true.",
    ),
    Rule(
        "queue_engine",
        _queue_engine,
        "queue.engine is {found}",
        "It switches sync mode off without any message, and loses pushes or sends them twice.",
        "Set GORUSH_QUEUE_ENGINE=local.",
    ),
    *map(_max_retry, NAMES.values()),
    *map(_platform_off, NAMES.values()),
    Rule(
        "worker_num",
        _workers,
        f"core.worker_num ({{found}}) is below the {MAX_CONNECTIONS} pushes of a worker process at once",
        "The other pushes wait inside gorush while our timeout runs, and end ambiguous.",
        f"Set GORUSH_CORE_WORKER_NUM to {MAX_CONNECTIONS} for each worker process.",
    ),
    Rule(
        "max_concurrent_pushes",
        lambda gorush: "ios" in gorush.platforms and gorush.below("ios.max_concurrent_pushes"),
        f"ios.max_concurrent_pushes ({{found}}) is below the {MAX_CONNECTIONS} pushes of a worker process",
        "With any number of workers, pushes to Apple wait for each other while our timeout runs.",
        "Set GORUSH_IOS_MAX_CONCURRENT_PUSHES to the number of workers.",
    ),
    Rule(
        "queue_num",
        # 0 stands for the default, which is enough.
        lambda gorush: gorush.number("core.queue_num") and gorush.below("core.queue_num"),
        f"core.queue_num ({{found}}) is below the {MAX_CONNECTIONS} pushes of a worker process at once",
        "In sync mode a full queue never answers: each push above it ends ambiguous.",
        f"Set GORUSH_CORE_QUEUE_NUM to {DEFAULT_QUEUE_NUM}.",
    ),
    Rule(
        "max_notification",
        lambda gorush: gorush.below("core.max_notification", 1),
        "core.max_notification is {found}",
        "gorush refuses every request, and a refused push is given up.",
        "Set GORUSH_CORE_MAX_NOTIFICATION=100.",
    ),
    Rule(
        "tokens_in_log",
        lambda gorush: gorush.flag("log.hide_token") is False,
        "log.hide_token is off",
        "gorush's log holds device tokens, and anybody who reads it can reach phones. We do not need them there.",
        "Set GORUSH_LOG_HIDE_TOKEN=true, and restrict access to old logs.",
    ),
    Rule(
        "open_address",
        lambda gorush: gorush.values.get("core.address") in ANY_ADDRESS and not gorush.is_shielded,
        "core.address is every interface",
        "gorush has no password: anybody who reaches it can send pushes in your name.",
        "Set GORUSH_CORE_ADDRESS=127.0.0.1; or keep others out by network or proxy, and set our GORUSH_SHIELDED=1.",
    ),
    Rule(
        "grpc_open",
        lambda gorush: gorush.flag("grpc.enabled"),
        "grpc.enabled is on",
        "Its port listens on every interface, regardless of core.address, and has no password.",
        "Set GORUSH_GRPC_ENABLED=false: we do not use it.",
    ),
    Rule(
        "hook_not_ours",
        lambda gorush: gorush.values.get("core.feedback_hook_url") and not gorush.is_hook_open,
        "core.feedback_hook_url is set, and our webhook is off",
        "Each failed push keeps a worker of gorush busy until the hook has answered, for nothing.",
        "Remove GORUSH_CORE_FEEDBACK_HOOK_URL, or open our webhook with GORUSH_HOOK_SECRET.",
    ),
    Rule(
        "hook_unused",
        lambda gorush: gorush.values.get("core.feedback_hook_url") == "" and gorush.is_hook_open,
        "our webhook is open, and core.feedback_hook_url is not set",
        "This gorush never calls it.",
        "Set GORUSH_CORE_FEEDBACK_HOOK_URL and GORUSH_CORE_FEEDBACK_HEADER, or remove GORUSH_HOOK_SECRET.",
    ),
    Rule(
        "old_version",
        lambda gorush: gorush.version and gorush.version < TESTED_VERSION and ".".join(map(str, gorush.version)),
        f"version {{found}} is older than {TESTED}, the one we tested",
        "This server may misread its answers.",
        f"Update gorush to {TESTED} or newer.",
    ),
    *map(_hidden_failures, NAMES.values()),
)


# Reading --------------------------------------------------------------------------------------------------------------
MAX_DEPTH = 8  # gorush's own configuration has three levels
MAX_DIGITS = 18
VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?!\d)")
TRUE, FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
# It makes texts of all scalars.
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def check_all(urls: Sequence[str], *, now: datetime) -> None:
    """Check each gorush once. It is safe to run twice, and with any answer of the peer."""
    before = NOTICES.read(urls)
    readings = read_all(_read, urls)
    failures = _failures_since(min((notice.looked_at for notice in before.values()), default=now) - LONGEST_PUSH)
    active = Route.objects.filter(state=Route.State.ACTIVE)
    platforms = frozenset(name for number, name in NAMES.items() if active.filter(token_type=number).exists())
    for url, answers in zip(urls, readings, strict=True):
        known = before.get(url)
        reading = replace(
            answers,
            previous=known.memory["push_errors"] if known and known.memory else None,
            failures=failures,
            platforms=platforms,
            is_hook_open=bool(settings.GORUSH_HOOK_SECRET),
            is_shielded=settings.GORUSH_SHIELDED,
        )
        memory = {"push_errors": reading.counters} if reading.counters else None
        NOTICES.note(url, complaints_of(RULES, reading), known=known, now=now, memory=memory)


def _failures_since(start: datetime) -> Mapping[str, int]:
    """Return the number of attempts on each platform that failed or have not ended.

    The number is rather too high than too low, so that a warning is justified.
    """
    attempts = Attempt.objects.filter(started_at__gte=start).exclude(outcome=Outcome.DELIVERED)
    counts = attempts.order_by().values_list("token_type").annotate(Count("pk"))
    return {NAMES[number]: count for number, count in counts if number in NAMES}


async def _read(client: httpx.AsyncClient, url: str) -> Reading:
    paths = ("/api/config", "/version", "/api/stat/app")
    answers = await asyncio.gather(*(ask_peer(client, url + path) for path in paths))
    config, version, counters = (each.content if each and each.status_code in ANSWERED else b"" for each in answers)
    is_reachable = any(answer is not None for answer in answers)
    return Reading(is_reachable, read_config(config), read_version(version), read_counters(counters))


def read_config(body: bytes) -> dict[str, str]:
    """Return the values of the configuration by section and name, or nothing for another document.

    It is YAML with sections, of which at least `core` has to be there, because a page of a proxy may be YAML too.
    """
    try:
        sections = yaml.load(body, Loader=_Loader) if _is_plain(body) else None  # noqa: S506 - it makes only texts
    except (yaml.YAMLError, ValueError):
        return {}
    values = _values(sections) if isinstance(sections, dict) else {}
    return values if any(name.startswith("core.") for name in values) else {}


def _is_plain(body: bytes) -> bool:
    """Return whether a document has no anchors and tags, and only a few levels, as what gorush writes.

    PyYAML's C parser recurses into a document when it builds values, and crashes on deep ones. Events are a flat
    stream.
    """
    depth = 0
    for event in yaml.parse(body, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or getattr(event, "anchor", None) or getattr(event, "tag", None):
            return False
    return True


def _values(sections: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in (values.items() if isinstance(values, dict) else ())
        if isinstance(value, str)
    }


def read_version(body: bytes) -> tuple[int, ...] | None:
    """Return the three numbers of a version, or None.

    A gorush that was built without a version number reports words instead.
    """
    found = VERSION.match(str(_read_object(body).get("version")))
    return tuple(map(int, found.groups())) if found else None


def read_counters(body: bytes) -> dict[str, int] | None:
    """Return the counters, or None when there are none."""
    answer = _read_object(body)
    push_errors = {platform: _count(answer.get(platform)) for platform in NAMES.values()}
    return {platform: count for platform, count in push_errors.items() if count is not None} or None


def _count(platform: Any) -> int | None:
    count = platform.get("push_error") if isinstance(platform, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}
