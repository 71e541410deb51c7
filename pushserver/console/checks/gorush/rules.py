"""The rules of the config check: how a gorush deviates from what our delivery needs, and what to do about it.

The module is pure. A missing value is no complaint, except for the values that everything depends on. The texts contain
our names and numbers and gorush's numbers, never its texts: a configuration contains secrets, and `/readyz` is public.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from notifications.gateways.gorush.errors import NAMES
from pushserver.console.checks.gorush.readings import Config, Reading
from pushserver.console.checks.peers import UNREACHABLE, Complaint

TESTED_VERSION = (1, 22, 0)
DEFAULT_QUEUE_NUM = 8192
ESSENTIAL = (
    "core.sync",
    "queue.engine",
    *(f"{p}.{key}" for p in NAMES.values() for key in ("enabled", "max_retry")),
)
EXTERNAL_ENGINES = ("redis", "nsq", "nats")
ANY_ADDRESS = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - looked for, not bound to


@dataclass(frozen=True, slots=True)
class Expectations:
    """Our side of the comparison. ``concurrency`` is the number of pushes that a worker process has in flight at
    gorush.

    ``failures`` counts our failed attempts on each platform, since shortly before ``previous`` was counted.
    """

    concurrency: int
    platforms: frozenset[str] = frozenset(NAMES.values())  # the platforms that active routes lead to
    is_hook_open: bool = False
    is_shielded: bool = False  # the operator states that nobody else reaches gorush
    previous: Mapping[str, int] | None = None
    failures: Mapping[str, int] = field(default_factory=dict)


Rule = Callable[[Config, Expectations], Iterator[Complaint]]


def complaints(reading: Reading, expected: Expectations) -> list[Complaint]:
    """Return the complaints of all rules about a gorush."""
    if not reading.is_reachable:
        return [NO_ANSWER]
    found = [complaint for rule in RULES for complaint in rule(reading.config, expected)] if reading.config else []
    return [*_unreadable(reading), *found, *_outdated(reading), *_hidden_failures(reading, expected)]


NO_ANSWER = Complaint(
    UNREACHABLE,
    "gorush does not answer",
    "No push goes through it; with no other gorush, all pushes wait.",
    "Start it, or correct GORUSH_URL. Without the keys of Apple and Google it ends at once, as its log says.",
)


def _unreadable(reading: Reading) -> Iterator[Complaint]:
    missing = [
        path for path, answer in (("/api/config", reading.config), ("/api/stat/app", reading.counters)) if not answer
    ]
    if missing:
        yield Complaint(
            "unreadable",
            f"no usable answer from {' and '.join(missing)}",
            "Whether gorush is set up so that no push is lost or doubled is unknown.",
            "Let this server read these paths at GORUSH_URL: the api.* settings of gorush, or a proxy, block them.",
        )


def _incomplete(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    missing = [name for name in ESSENTIAL if config.text(name) is None]
    if missing:
        yield Complaint(
            "incomplete",
            f"/api/config lacks {', '.join(missing)}",
            "Whether gorush is set up so that no push is lost or doubled is unknown.",
            "Use the tested version of gorush.",
        )


def _not_sync(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    if config.flag("core.sync") is False:
        yield Complaint(
            "not_sync",
            "core.sync is off",
            "gorush answers before it has sent anything: every push counts as delivered, dead tokens are never found.",
            "Set GORUSH_CORE_SYNC=true.",
        )


def _queue_engine(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    engine = config.text("queue.engine")
    if engine is not None and engine != "local":
        yield Complaint(
            "queue_engine",
            f"queue.engine is {engine if engine in EXTERNAL_ENGINES else 'neither local nor known'}",
            "It switches sync mode off without any message, and loses pushes or sends them twice.",
            "Set GORUSH_QUEUE_ENGINE=local.",
        )


def _max_retry(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    for platform in NAMES.values():
        retries = config.number(f"{platform}.max_retry") or 0
        if retries > 0:
            yield Complaint(
                f"max_retry_{platform}",
                f"{platform}.max_retry is {retries}",
                "gorush reports a failure even when its retry succeeded, so we send that push a second time.",
                f"Set GORUSH_{platform.upper()}_MAX_RETRY=0: retries are ours.",
            )


def _platform_off(config: Config, expected: Expectations) -> Iterator[Complaint]:
    for platform in NAMES.values():
        if platform in expected.platforms and config.flag(f"{platform}.enabled") is False:
            yield Complaint(
                f"platform_off_{platform}",
                f"{platform}.enabled is off, and phones of this platform are registered",
                "gorush drops their pushes and answers as if they were delivered.",
                f"Set GORUSH_{platform.upper()}_ENABLED=true and its key.",
            )


def _worker_num(config: Config, expected: Expectations) -> Iterator[Complaint]:
    workers = config.number("core.worker_num")
    if workers is not None and workers < expected.concurrency:
        shown = workers if workers > 0 else "0: one per CPU"
        yield Complaint(
            "worker_num",
            f"core.worker_num ({shown}) is below the {expected.concurrency} pushes of a worker process at once",
            "The other pushes wait inside gorush while our timeout runs, and end ambiguous.",
            f"Set GORUSH_CORE_WORKER_NUM to {expected.concurrency} for each worker process.",
        )


def _max_concurrent_pushes(config: Config, expected: Expectations) -> Iterator[Complaint]:
    limit = config.number("ios.max_concurrent_pushes")
    if limit is not None and limit < expected.concurrency and "ios" in expected.platforms:
        yield Complaint(
            "max_concurrent_pushes",
            f"ios.max_concurrent_pushes ({limit}) is below the {expected.concurrency} pushes of a worker process",
            "With any number of workers, pushes to Apple wait for each other while our timeout runs.",
            "Set GORUSH_IOS_MAX_CONCURRENT_PUSHES to the number of workers.",
        )


def _queue_num(config: Config, expected: Expectations) -> Iterator[Complaint]:
    places = config.number("core.queue_num")
    if places is not None and (places or DEFAULT_QUEUE_NUM) < expected.concurrency:
        yield Complaint(
            "queue_num",
            f"core.queue_num ({places}) is below the {expected.concurrency} pushes of a worker process at once",
            "In sync mode a full queue never answers: each push above it ends ambiguous.",
            f"Set GORUSH_CORE_QUEUE_NUM to {DEFAULT_QUEUE_NUM}.",
        )


def _max_notification(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    limit = config.number("core.max_notification")
    if limit is not None and limit < 1:
        yield Complaint(
            "max_notification",
            f"core.max_notification is {limit}",
            "gorush refuses every request, and a refused push is given up.",
            "Set GORUSH_CORE_MAX_NOTIFICATION=100.",
        )


def _unmasked(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    if config.flag("log.hide_token") is False:
        yield Complaint(
            "tokens_in_log",
            "log.hide_token is off",
            "gorush's log holds device tokens, and anybody who reads it can reach phones. We do not need them there.",
            "Set GORUSH_LOG_HIDE_TOKEN=true, and restrict access to old logs.",
        )


def _open_address(config: Config, expected: Expectations) -> Iterator[Complaint]:
    if config.text("core.address") in ANY_ADDRESS and not expected.is_shielded:
        yield Complaint(
            "open_address",
            "core.address is every interface",
            "gorush has no password: anybody who reaches it can send pushes in your name.",
            "Set GORUSH_CORE_ADDRESS=127.0.0.1; or keep others out by network or proxy, and set our GORUSH_SHIELDED=1.",
        )


def _grpc(config: Config, _expected: Expectations) -> Iterator[Complaint]:
    if config.flag("grpc.enabled"):
        yield Complaint(
            "grpc_open",
            "grpc.enabled is on",
            "Its port listens on every interface, regardless of core.address, and has no password.",
            "Set GORUSH_GRPC_ENABLED=false: we do not use it.",
        )


def _hook(config: Config, expected: Expectations) -> Iterator[Complaint]:
    url = config.text("core.feedback_hook_url")
    if url and not expected.is_hook_open:
        yield Complaint(
            "hook_not_ours",
            "core.feedback_hook_url is set, and our webhook is off",
            "Each failed push keeps a worker of gorush busy until the hook has answered, for nothing.",
            "Remove GORUSH_CORE_FEEDBACK_HOOK_URL, or open our webhook with GORUSH_HOOK_SECRET.",
        )
    if url == "" and expected.is_hook_open:
        yield Complaint(
            "hook_unused",
            "our webhook is open, and core.feedback_hook_url is not set",
            "This gorush never calls it.",
            "Set GORUSH_CORE_FEEDBACK_HOOK_URL and GORUSH_CORE_FEEDBACK_HEADER, or remove GORUSH_HOOK_SECRET.",
        )


def _outdated(reading: Reading) -> Iterator[Complaint]:
    if reading.version and reading.version < TESTED_VERSION:
        yield Complaint(
            "old_version",
            f"version {_dotted(reading.version)} is older than {_dotted(TESTED_VERSION)}, the one we tested",
            "This server may misread its answers.",
            f"Update gorush to {_dotted(TESTED_VERSION)} or newer.",
        )


def _hidden_failures(reading: Reading, expected: Expectations) -> Iterator[Complaint]:
    """Yield a complaint when gorush counted more failures than this server recorded.

    A counter that fell was reset, so it is not compared.
    """
    if not reading.counters or not expected.previous:
        return
    for platform, count in reading.counters.items():
        grown = count - expected.previous.get(platform, count)
        known = expected.failures.get(platform, 0)
        if grown > known:
            yield Complaint(
                f"hidden_failures_{platform}",
                f"{platform}.push_error grew by {grown}, and we recorded {known} failures",
                "gorush reported failed pushes as delivered, or somebody else sends through it.",
                "Look for the errors in gorush's log; make sure that nobody else reaches it.",
            )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


RULES: tuple[Rule, ...] = (
    _incomplete,
    _not_sync,
    _queue_engine,
    _max_retry,
    _platform_off,
    _worker_num,
    _max_concurrent_pushes,
    _queue_num,
    _max_notification,
    _unmasked,
    _open_address,
    _grpc,
    _hook,
)
