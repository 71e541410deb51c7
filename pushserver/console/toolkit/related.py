"""What the page of a row shows beside its fields: its first line, links to related rows, and staff actions on it.

What rows of different apps mean together is known to `pages`, which registers sentences, links and subjects here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import singledispatch
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, Q, QuerySet
from django.urls import reverse

from pushserver.console.toolkit.labels import Family

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry  # workers, which mail reports with links, have no admin


@dataclass(frozen=True, slots=True)
class FirstLine:
    """A sentence, safe as HTML, and the family of states whose colour it has."""

    text: str
    family: Family


@singledispatch
def first_line_of(_row: Model) -> FirstLine | None:
    """Return the first line of the page of a row, or None where no function is registered for its model."""
    return None


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


# The page of a row shows this many of the newest entries, and links to the list of all of them.
MAX_SHOWN = 10
WHY = " Why: "  # between what was done and the reason, in an entry

Subjects = Mapping[type[Model], Collection[str]]


@singledispatch
def acted_on_through(_row: Model) -> Subjects:
    """Return the rows from whose pages staff act on a row, where a function is registered for its model.

    The log names the row from whose page an operation was started: a route is disabled from its registration.
    """
    return {}


def changes_of(model: type[Model], ids: Collection[str], *, since: datetime | None = None) -> "QuerySet[LogEntry]":
    """Return the log entries of these rows of one table, the newest first. The query uses an index."""
    kind = ContentType.objects.get_for_model(model)
    entries = apps.get_model("admin.LogEntry").objects.filter(content_type=kind, object_id__in=ids)
    entries = entries.filter(action_time__gte=since) if since else entries
    return entries.select_related("user").order_by("-pk")


def readable_by(user: Any) -> Q:
    """Return the condition for the log entries that a reader of the log may see.

    Entries about rows of a list that this person may not open are left out. So only admins see those about accounts.
    """
    from django.contrib import admin  # noqa: PLC0415 - workers have no admin

    options = [model._meta for model in admin.site._registry]  # noqa: SLF001 - documented
    closed = [each.model for each in options if not user.has_perm(f"{each.app_label}.view_{each.model_name}")]
    return ~Q(content_type__in=[kind.pk for kind in ContentType.objects.get_for_models(*closed).values()])


def newest_changes(subjects: Subjects) -> "list[LogEntry]":
    """Return the newest log entries of rows of several tables."""
    found = (entry for model, ids in subjects.items() if ids for entry in changes_of(model, ids)[:MAX_SHOWN])
    return sorted(found, key=lambda entry: entry.pk, reverse=True)[:MAX_SHOWN]


def reason_of(entry: "LogEntry") -> str:
    """Return the reason that an entry gives, or an empty text for an operation that needs none."""
    return str(entry.get_change_message()).partition(WHY)[2]


def change_url(entry: "LogEntry") -> str:
    """Return the address of the page of an entry."""
    return reverse("admin:admin_logentry_change", args=[entry.pk])


def changes_url(model: type[Model], object_id: str) -> str:
    """Return the address of the list of all changes of one row."""
    kind = ContentType.objects.get_for_model(model)
    query = urlencode({"content_type__id__exact": kind.pk, "object_id__exact": object_id})
    return f"{reverse('admin:admin_logentry_changelist')}?{query}"
