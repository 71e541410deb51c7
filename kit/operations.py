"""The operator's side of gateways and bridges: what the console, readiness, metrics and reports know of each.

A gateway or bridge overrides what it has in a class of its own, and registers the dotted path of that class in
`AppConfig.ready`. It is imported when somebody first asks for it, as most processes never do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import Model
from django.utils.module_loading import import_string

from kit.admin.links import Link
from kit.health.indicators import Indicator, Kind
from kit.health.waiting import Tile
from kit.http.notices import NoticeCache
from kit.metrics.kinds import StoredGauge


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the last hour when a part is asked to read its own tables.

    ``gauges`` has the values of the gauges by name, each the sum over its labels, and is None where the database did
    not count in time. ``requests`` came by this bridge, and ``replies`` were sent by it. Without Redis (``is_blind``)
    nothing is known of config checks.
    """

    now: datetime
    gauges: Mapping[str, float] | None
    requests: int = 0
    replies: int = 0
    is_blind: bool = False


@dataclass(frozen=True, slots=True)
class PeerPage:
    """A page of the console about the servers behind a part: their indicators, and what the config checks found.

    ``kinds`` are the ids of the indicators that each server has. ``describe`` makes facts of what the last check
    remembered; ``nothing`` is shown where no server is configured.
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
    """A list of rows in a section of the menu, for people who may view them. ``model`` is its label in lower case."""

    section: str
    title: str
    icon: str
    model: str


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a person looked for, and the permission to see it."""

    kind: str
    text: str
    url: str
    permission: str


@dataclass(frozen=True, slots=True)
class KeyUse:
    """How many clients know this server by which of its keys. ``own`` are the names of these, in the settings' order;
    ``kind`` is what the clients are called, and ``others`` says what is the case with those that know none of them.
    """

    kind: str
    own: Sequence[bytes]
    counts: Mapping[bytes, int]
    others: str


class Operations:
    """The operator's side of one gateway or bridge. Whatever a part does not override it does not have.

    ``name`` is the one under which its routes or requests are stored, and ``label`` is for people.
    """

    name = ""
    label = ""
    is_bridge = False
    # The label of its app, whose rows support may view and operators act on.
    app_label = ""
    # The name of its page in docs/.
    document = ""
    # Celery tasks that check the servers behind it: by beat's schedule, and soon after a start.
    checks: Sequence[str] = ()
    kinds: Sequence[Kind] = ()
    # Gauges that its indicators are judged by, besides being metrics.
    gauges: Sequence[StoredGauge] = ()
    # Modules with metrics by their heading, and modules with URL patterns, both by dotted path.
    metric_modules: ClassVar[Mapping[str, str]] = {}
    url_modules: ClassVar[Mapping[str, str]] = {}
    # The module with the URL patterns of its endpoints in the API.
    api_urls = ""
    peer_page: PeerPage | None = None
    list_pages: Sequence[ListPage] = ()
    # SQL: the pseudonyms, and the installation ids, that its canary has registered with.
    canary_pseudonyms = ""
    canary_installations = ""
    # SQL with one row, `ms` or null, for each reply that was sent, from %(begin)s on and before %(end)s.
    replies = ""

    def is_in_use(self) -> bool:
        """Return whether the settings have it take part."""
        return True

    # Indicators -------------------------------------------------------------------------------------------------------
    def ask(self) -> Any:
        """Ask the servers behind it, within two seconds, in a thread of its own: without database and cache."""
        return None

    def reach(self, asked: Any, *, is_blind: bool) -> Any:
        """Return the facts that the servers and the cache know. Without Redis (``is_blind``) no cache is asked."""
        return asked

    def judge_reached(self, reached: Any, *, is_redis_down: bool) -> Iterator[Indicator]:
        """Yield the indicators of these facts, those that decide readiness among them. Does no I/O."""
        return iter(())

    def read(self, evidence: Evidence) -> Any:
        """Return the facts that the database knows, within a transaction."""
        return None

    def judge_stored(self, stored: Any, reached: Any, now: datetime) -> Iterator[Indicator]:
        """Yield the indicators of what the database knows. Does no I/O."""
        return iter(())

    def tiles(self, stored: Any) -> Iterator[Tile]:
        """Yield its queues for the dashboard. ``stored`` is None while the database does not answer."""
        return iter(())

    def advice(self, code: str) -> str:
        """Return what to do when many attempts fail with this code, or nothing."""
        return ""

    def key_use(self) -> KeyUse | None:
        """Return by which keys of this server its clients know it, where they depend on them."""
        return None

    def knows_newest_clients(self, number: int) -> bool:
        """Return whether any of so many newest clients registered with a key that this server still has."""
        return True

    # The console ------------------------------------------------------------------------------------------------------
    def rule_urls(self, attempts: Sequence[Any]) -> Mapping[int, str]:
        """Return by primary key the page of the rule by which the error of an attempt was read."""
        return {}

    def recipient_link(self, notification: Any) -> Link | None:
        """Return the link to whom a notification is for, where it is no user."""
        return None

    def owners(self) -> Sequence[type[Model]]:
        """Return the models whose rows own a route beside registrations, with ``route``, ``state`` and ``ended_at``."""
        return ()

    def owner_of(self, notification: Any) -> Model | None:
        """Return the row of those that a notification was for."""
        return None

    # The permissions to see any of what `find` yields.
    found_permissions: Sequence[str] = ()
    # What `find` and `searchable` take, in words.
    search_terms: Sequence[str] = ()

    def find(self, term: str) -> Iterator[Found]:
        """Yield what is found by a term that may stand in a URL."""
        return iter(())

    def searchable(self, term: str) -> str | None:
        """Return what to look for in place of a secret that somebody typed, or None for what is none of ours."""
        return None


_registered: dict[str, str] = {}
_loaded: dict[str, Operations] = {}


def register(name: str, operations: str) -> None:
    """Make the operator's side of a gateway or a bridge known by the dotted path of its class."""
    _registered[name] = operations
    _loaded.pop(name, None)


def parts() -> list[Operations]:
    """Return all parts, in the order in which their apps are installed."""
    for name, path in _registered.items():
        if name not in _loaded:
            _loaded[name] = import_string(path)()
    return [_loaded[name] for name in _registered]


def parts_in_use() -> list[Operations]:
    """Return the parts that the settings have take part."""
    return [part for part in parts() if part.is_in_use()]
