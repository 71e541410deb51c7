"""The operator's side of gateways and bridges: their parts of console, readiness, metrics and reports.

A gateway or bridge has a subclass of `Operations` that overrides what applies to it, and one line in `_registered`. The
class is imported at its first use, because most processes never need it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import Model
from django.utils.module_loading import import_string

from kit.telemetry import StoredGauge
from pushserver.console.checks.engine import NoticeCache
from pushserver.console.health.indicators import Indicator, Kind
from pushserver.console.health.waiting import Tile


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts about the last hour, given to a part that is to read its own tables.

    ``gauges`` has the value of each gauge by name, as the sum over its labels. It is None if the database did not count
    in time. ``requests`` is the number of requests by this bridge, and ``replies`` the number of replies that it sent.
    Without Redis (``is_blind``) the results of config checks are unknown.
    """

    now: datetime
    gauges: Mapping[str, float] | None
    requests: int = 0
    replies: int = 0
    is_blind: bool = False


@dataclass(frozen=True, slots=True)
class PeerPage:
    """A page of the console about the servers behind a part: their indicators, and the results of config checks.

    ``kinds`` are the ids of the indicators of each server. ``describe`` turns the memory of the last check into facts.
    ``nothing`` is the text for a part without configured servers.
    """

    title: str
    icon: str
    url_name: str
    path: str
    urls: Callable[[], Sequence[str]]
    notices: NoticeCache
    kinds: Sequence[str]
    nothing: str
    describe: Callable[[Mapping[str, Any]], Sequence[tuple[str, str]]] = lambda _memory: ()


@dataclass(frozen=True, slots=True)
class ListPage:
    """A list of rows in a section of the menu. ``model`` is a label such as `registrations.registration`."""

    section: str
    title: str
    icon: str
    model: str


@dataclass(frozen=True, slots=True)
class Found:
    """A result of a search by an operator, and the permission to see it."""

    kind: str
    text: str
    url: str
    permission: str


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The number of clients by the key of this server that they use.

    ``own`` has the names of this server's keys in the order of the settings. ``kind`` is the word for the clients, and
    ``others`` a sentence about clients that use none of these keys.
    """

    kind: str
    own: Sequence[bytes]
    counts: Mapping[bytes, int]
    others: str


class Operations:
    """The operator's side of one gateway or bridge, a part. A part lacks everything that it does not override.

    ``name`` is the value that its routes or requests have in the database, and ``label`` the name for people.
    """

    name = ""
    label = ""
    is_bridge = False
    # The label of its app. Support staff may view the rows of this app, and operators may act on them.
    app_label = ""
    # The name of its page in docs/.
    document = ""
    # Celery tasks that check the servers behind it: by beat's schedule, and soon after a start.
    checks: Sequence[str] = ()
    kinds: Sequence[Kind] = ()
    # Metrics that its indicators also use.
    gauges: Sequence[StoredGauge] = ()
    # Dotted paths of modules with metrics, by heading, and of modules with URL patterns, by URL prefix.
    metric_modules: ClassVar[Mapping[str, str]] = {}
    url_modules: ClassVar[Mapping[str, str]] = {}
    # The module with the URL patterns of its endpoints in the API.
    api_urls = ""
    peer_page: PeerPage | None = None
    list_pages: Sequence[ListPage] = ()
    # A query with one row, `ms` or null, for each reply that was sent from %(begin)s until before %(end)s.
    replies = ""

    def is_in_use(self) -> bool:
        """Return whether the settings enable this part."""
        return True

    # Indicators -------------------------------------------------------------------------------------------------------
    def ask(self) -> Any:
        """Request the state of the servers behind the part, within two seconds.

        It runs in a thread of its own, and uses neither database nor cache.
        """
        return None

    def reach(self, asked: Any, leaders: Mapping[str, float] | None, *, is_blind: bool) -> Any:
        """Return facts from the result of `ask`, from the leaders and from the cache.

        ``leaders`` has the seconds since the last sign of each `Leader` by its name, and is None while PostgreSQL does
        not answer. Without Redis (``is_blind``) use no cache.
        """
        return asked

    def judge_reached(self, reached: Any, *, is_redis_down: bool) -> Iterator[Indicator]:
        """Yield the indicators from the facts of `reach`, including those that decide readiness. It does no I/O."""
        return iter(())

    def read(self, evidence: Evidence) -> Any:
        """Read and return the facts from the database, within a transaction."""
        return None

    def judge_stored(self, stored: Any, reached: Any, now: datetime) -> Iterator[Indicator]:
        """Yield the indicators from the facts of `read`. It does no I/O."""
        return iter(())

    def tiles(self, stored: Any) -> Iterator[Tile]:
        """Yield the queues of the part for the dashboard. ``stored`` is None while the database does not answer."""
        return iter(())

    def purge(self, *, now: datetime) -> Iterator[int]:
        """Remove old rows that only operators see, such as runs of the canary. Yields how many each step removed."""
        return iter(())

    def advice(self, code: str) -> str:
        """Return what an operator can do when many attempts fail with this code, or an empty text."""
        return ""

    def key_use(self) -> KeyUse | None:
        """Return the number of clients by key, for a part whose clients depend on a key of this server."""
        return None

    def own_keys(self) -> Sequence[bytes]:
        """Return the names of this server's keys by which clients address it, that of new clients first."""
        return ()

    def has_clients_of(self, key: bytes) -> bool:
        """Return whether any client depends on the key of this name."""
        return False

    def knows_newest_clients(self, number: int) -> bool:
        """Return whether any of the ``number`` newest clients uses a key that this server still has."""
        return True

    # The console ------------------------------------------------------------------------------------------------------
    def rule_urls(self, attempts: Sequence[Any]) -> Mapping[int, str]:
        """Return the page of the rule that classified the error of each attempt, by the attempt's primary key."""
        return {}

    def owners(self) -> Sequence[type[Model]]:
        """Return the models, besides registrations, whose rows own a route.

        They have the fields ``route``, ``state`` and ``ended_at``.
        """
        return ()

    def owner_of(self, notification: Any) -> Model | None:
        """Return the row of `owners` that a notification was for, with its primary key at least."""
        return None

    # What a push was beyond, in words, by the limits of pushes that only this part has.
    push_limits: ClassVar[Mapping[str, str]] = {}
    # Permissions of which an operator needs one to search with `find`.
    found_permissions: Sequence[str] = ()
    # Sentences about the terms that `find` and `searchable` take, for the help text of the search.
    search_terms: Sequence[str] = ()

    def find(self, term: str) -> Iterator[Found]:
        """Yield the results for a search term that may appear in a URL."""
        return iter(())

    def searchable(self, term: str) -> str | None:
        """Return a term that may appear in a URL in place of a secret search term, or None for other secrets."""
        return None


_registered = {
    "waku": "pushserver.console.waku.part.WakuOperations",
    "xmpp": "pushserver.console.xmpp.part.XmppOperations",
    "gorush": "pushserver.console.gorush.part.GorushOperations",
}
_loaded: dict[str, Operations] = {}


def register(name: str, operations: str) -> None:
    """Register the operator's side of a gateway or bridge, by the dotted path of its class."""
    _registered[name] = operations
    _loaded.pop(name, None)


def parts() -> list[Operations]:
    """Return all parts."""
    for name, path in _registered.items():
        if name not in _loaded:
            _loaded[name] = import_string(path)()
    return [_loaded[name] for name in _registered]


def parts_in_use() -> list[Operations]:
    """Return the parts that the settings enable."""
    return [part for part in parts() if part.is_in_use()]
