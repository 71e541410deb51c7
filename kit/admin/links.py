"""Links from one row to related rows, shown at the top of its page.

`pushserver` knows which rows of different apps belong together, and registers the links here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Model
from django.urls import reverse


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    url: str


def list_url(name: str, **query: str) -> str:
    """Return the address of a list of rows. ``name`` joins app and model, such as `notifications_attempt`."""
    return f"{reverse(f'admin:{name}_changelist')}?{urlencode(query)}"


Links = Callable[[Any], Iterable[Link]]
_links: dict[type[Model], Links] = {}


def links_from(model: type[Model]) -> Callable[[Links], Links]:
    """Return a decorator that registers the function which returns the links from a row of ``model``."""

    def remember(links: Links) -> Links:
        _links[model] = links
        return links

    return remember


def links_of(row: Model) -> list[Link]:
    links = _links.get(type(row))
    return list(links(row)) if links else []
