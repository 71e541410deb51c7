"""Links from one row to related rows, shown at the top of its page.

An app registers the links between its own rows here, and `pushserver` registers those between rows of different apps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
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


@singledispatch
def links_from(_row: Model) -> Iterable[Link]:
    """Return the links of a row: those of the function that is registered for its model, or none."""
    return ()
