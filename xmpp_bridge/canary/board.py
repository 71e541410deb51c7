"""The last run, kept in the cache: for `/readyz`, which must answer while the database hangs, and for the console."""

from dataclasses import asdict, dataclass
from datetime import datetime

from django.conf import settings
from django.core.cache import cache
from redis.exceptions import RedisError

from xmpp_bridge.models import CanaryRun

KEY = "xmpp-canary:1"
# The canary counts as missing when this many runs did not come.
MISSED_RUNS = 3
MIN_TTL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Last:
    """The result of the last run. ``broken_link`` and ``cause`` are empty when all links held.

    ``timings_ms`` are by link, in the order of the chain, and None for links that were not reached.
    """

    finished_at: datetime
    broken_link: str
    cause: str
    detail: str
    timings_ms: dict[str, int | None]

    @property
    def words(self) -> str:
        """Return what is broken, for an operator."""
        if not self.cause:
            return "every link of the chain holds"
        text = CanaryRun.Cause(self.cause).label
        return f"{text} ({self.detail})" if self.detail else str(text)


def is_expected() -> bool:
    """Return whether the settings have the canary run by itself."""
    return bool(settings.CANARY_PERIOD_SECONDS and settings.XMPP_COMPONENT_JID)


def pin(run: CanaryRun) -> None:
    """Keep the result of a run.

    Raises RedisError while the cache is away, and ValueError when the run is not over.
    """
    if run.finished_at is None:
        raise ValueError("the run is not over")
    found = Last(run.finished_at, run.broken_link, run.cause, run.detail, run.timings())
    cache.set(KEY, asdict(found), max(MIN_TTL_SECONDS, MISSED_RUNS * settings.CANARY_PERIOD_SECONDS))


def last() -> Last | None:
    """Return the result of the last run, or None when there was none lately or the cache is away."""
    try:
        found = cache.get(KEY)
    except RedisError:
        return None
    return Last(**found) if found else None
