"""What staff did to rows, as the log of changes has it, for the pages of these rows."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from urllib.parse import urlencode

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, QuerySet
from django.urls import reverse

# The newest entries that a page shows. All of them are in the list of changes.
MAX_SHOWN = 10
WHY = " Why: "


def changes_of(model: type[Model], ids: Collection[str], *, since: datetime | None = None) -> QuerySet[LogEntry]:
    """Return what was done to these rows of one table, the newest first, found by an index."""
    kind = ContentType.objects.get_for_model(model)
    entries = LogEntry.objects.filter(content_type=kind, object_id__in=ids)
    entries = entries.filter(action_time__gte=since) if since else entries
    return entries.select_related("user").order_by("-pk")


def newest_changes(subjects: Mapping[type[Model], Collection[str]]) -> list[LogEntry]:
    """Return the newest changes of rows of several tables."""
    found: Iterable[LogEntry] = (
        entry for model, ids in subjects.items() if ids for entry in changes_of(model, ids)[:MAX_SHOWN]
    )
    return sorted(found, key=lambda entry: entry.pk, reverse=True)[:MAX_SHOWN]


def reason_of(entry: LogEntry) -> str:
    """Return why something was done, or an empty text where no reason was asked for."""
    return str(entry.get_change_message()).partition(WHY)[2]


def change_url(entry: LogEntry) -> str:
    """Return the address of the page of an entry."""
    return reverse("admin:admin_logentry_change", args=[entry.pk])


def changes_url(model: type[Model], object_id: str) -> str:
    """Return the address of the list of all changes of one row."""
    kind = ContentType.objects.get_for_model(model)
    query = urlencode({"content_type__id__exact": kind.pk, "object_id__exact": object_id})
    return f"{reverse('admin:admin_logentry_changelist')}?{query}"
