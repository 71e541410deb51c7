"""What one gateway or bridge can add to the console, health, metrics and reports: a value with what applies to it.

`console.parts` lists them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Model

from kit.telemetry import StoredGauge
from pushserver.console.canary.engine import Canary
from pushserver.console.checks.engine import NoticeCache
from pushserver.console.health.verdicts import Facts, Kind


@dataclass(frozen=True, slots=True)
class PeerPage:
    """A page of the console about the servers behind a part: their indicators, and the results of config checks.

    ``kinds`` are the ids of the indicators of each server. ``nothing`` is the text for a part without servers.
    """

    title: str
    icon: str
    url_name: str
    path: str
    urls: Callable[[], Sequence[str]]
    notices: NoticeCache
    kinds: Sequence[str]
    nothing: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One gateway or bridge for operators. ``name`` is the value that its routes or requests have in the database.

    A member that is not given means that it has no such thing.
    """

    name: str
    label: str  # for people
    is_bridge: bool = False
    is_in_use: Callable[[], bool] = lambda: True  # by the settings
    # The label of its app. Support staff may view the rows of this app, and operators may act on them.
    app_label: str = ""

    # Health: kinds of indicators, and their facts. ``ask`` has two seconds for requests to servers, and runs in a
    # thread of its own without database and cache. ``reach`` adds facts from the cache, but not while the fact `broker`
    # says that Redis is away, and ``read`` facts from the database, within a transaction.
    kinds: Sequence[Kind] = ()
    ask: Callable[[], Mapping[str, Any]] = dict
    reach: Callable[[Facts], Mapping[str, Any]] = lambda _facts: {}
    read: Callable[[Facts], Mapping[str, Any]] = lambda _facts: {}
    gauges: Sequence[StoredGauge] = ()  # those that a `Queue` of its kinds names
    canary: Canary | None = None
    # What an operator can do when many attempts fail with this code, or an empty text.
    advice: Callable[[str], str] = lambda _code: ""
    # A query with one row, `ms` or null, for each reply that was sent from %(begin)s until before %(end)s.
    replies: str = ""

    # Modules: with its pages, which workers must not import; with metrics by heading; with URL patterns by URL prefix,
    # and with those of its endpoints in the API.
    admin_module: str = ""
    metric_modules: Mapping[str, str] = field(default_factory=dict)
    url_modules: Mapping[str, str] = field(default_factory=dict)
    api_urls: str = ""

    # The keys of this server by which clients address it, that of new clients first; whether any client depends on a
    # key; the number of clients by key; and whether any of the newest clients uses a key that this server still has.
    own_keys: Callable[[], Sequence[bytes]] = list
    has_clients_of: Callable[[bytes], bool] = lambda _key: False
    key_use: Callable[[], KeyUse | None] = lambda: None
    knows_newest_clients: Callable[[int], bool] = lambda _number: True

    # Pages.
    peer_page: PeerPage | None = None
    list_pages: Sequence[ListPage] = ()
    # The page of the rule that classified the error of each attempt, by the attempt's primary key.
    rule_urls: Callable[[Sequence[Any]], Mapping[int, str]] = lambda _attempts: {}
    # Models, besides registrations, whose rows own a route and have the fields ``route``, ``state`` and ``ended_at``;
    # and the row of these that a notification was for, with its primary key at least.
    owners: Sequence[type[Model]] = ()
    owner_of: Callable[[Any], Model | None] = lambda _notification: None
    # What a push was beyond, in words, by the limits of pushes that only this part has.
    push_limits: Mapping[str, str] = field(default_factory=dict)

    # Search: permissions of which an operator needs one; sentences about the terms, for its help text; the results for
    # a term that may appear in a URL; and such a term in place of a secret one, or None for other secrets.
    found_permissions: Sequence[str] = ()
    search_terms: Sequence[str] = ()
    find: Callable[[str], Iterable[Found]] = lambda _term: ()
    searchable: Callable[[str], str | None] = lambda _term: None
