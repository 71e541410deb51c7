"""Ways from one row to related ones, shown on top of its page.

Which rows belong together across apps is known in `pushserver` alone; it hands the ways in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Model


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    url: str


Links = Callable[[Any], Iterable[Link]]
_links: dict[type[Model], Links] = {}


def links_from(model: type[Model]) -> Callable[[Links], Links]:
    """Decorates the function that knows where a row of ``model`` leads."""

    def remember(links: Links) -> Links:
        _links[model] = links
        return links

    return remember


def links_of(row: Model) -> list[Link]:
    links = _links.get(type(row))
    return list(links(row)) if links else []
