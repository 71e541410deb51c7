"""List and pages of incidents: when an indicator was not green, its cause, and the person who takes care of it."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget

from kit.db.clock import database_now
from kit.display import counted, exact
from pushserver.console.health.verdicts import State, duration
from pushserver.console.models import Incident, ServerStart
from pushserver.console.pages import labels
from pushserver.console.pages.overview import LOOKS
from pushserver.console.toolkit.columns import moment, word
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.labels import with_code
from pushserver.console.toolkit.lists import OnlyFilter, RecentValuesFilter
from pushserver.console.toolkit.operations import Done, Operated, Operation, done
from pushserver.console.toolkit.related import changes_of, readable_by

# A change in this time before an incident may be its reason.
BEFORE = timedelta(hours=1)
MAX_CHANGES = 20


class IncidentOperation(Operation):
    permission = "pushserver.operate_incident"


class Acknowledge(IncidentOperation):
    label = "Acknowledge"

    @classmethod
    def fits(cls, row: Incident) -> bool:
        return row.ended_at is None and row.acknowledged_at is None

    def touched(self, rows: Sequence[Incident]) -> Iterable[str]:
        yield labels.ACKNOWLEDGE_EFFECT.format(fitting=self.fitting(rows))
        yield labels.ACKNOWLEDGED_EFFECT

    def run(self, rows: Sequence[Incident], *, by: str) -> Done:
        chosen = Incident.objects.filter(pk__in=[row.pk for row in rows], ended_at=None, acknowledged_at=None)
        count = chosen.update(acknowledged_by=by, acknowledged_at=database_now())
        return done(count, f"Acknowledged {counted(count, 'incident')}.")


class Snooze(IncidentOperation):
    label = "Snooze"

    hours = forms.TypedChoiceField(
        label="For",
        coerce=int,
        choices=[(1, "1 hour"), (4, "4 hours"), (12, "12 hours"), (24, "a day")],
        widget=UnfoldAdminSelectWidget,
    )

    def touched(self, rows: Sequence[Incident]) -> Iterable[str]:
        names = ", ".join(dict.fromkeys(row.name for row in rows))
        yield labels.SNOOZE_EFFECT.format(names=names)
        yield labels.SNOOZE_IS_SILENT

    def run(self, rows: Sequence[Incident], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        until = database_now() + timedelta(hours=self.cleaned_data["hours"])
        Incident.objects.filter(pk__in=[row.pk for row in rows]).update(snoozed_until=until)
        return Done(f"Snoozed until {exact(until)}.")


class AddNote(IncidentOperation):
    label = "Add a note"

    def touched(self, rows: Sequence[Incident]) -> Iterable[str]:  # noqa: ARG002 - the same for all
        yield labels.NOTE_EFFECT

    def run(self, rows: Sequence[Incident], *, by: str) -> Done:  # noqa: ARG002 - it is only logged
        return Done("Noted.")


class GoesOnFilter(OnlyFilter):
    title = "end"
    parameter_name = "open"
    words = "goes on"
    condition = Q(ended_at=None)


class OwnCauseFilter(OnlyFilter):
    title = "cause"
    parameter_name = "own"
    words = "follows from no other"
    condition = Q(cause="")


@admin.register(Incident)
class IncidentAdmin(Operated, FactAdmin):
    change_form_template = "console/incident.html"
    operations: ClassVar[Any] = {"acknowledge": Acknowledge, "snooze": Snooze, "note": AddNote}
    list_display = (
        *("name", "colour", "began", "ended", "lasted", "happened"),
        *(word("cause", "follows from"), word("acknowledged_by", "taken care of by")),
    )
    list_filter = (GoesOnFilter, OwnCauseFilter, ("indicator", RecentValuesFilter))
    shown: ClassVar[Any] = {
        "Incident": ("name", "colour", "happened", word("cause", "follows from"), "lasted"),
        "Times": (
            moment("began_at", "began"),
            moment("red_from", "last red from"),
            moment("red_until", "last red until"),
            "ended",
        ),
        "Care": (
            word("acknowledged_by", "taken care of by"),
            moment("acknowledged_at", "since"),
            moment("snoozed_until", "snoozed until"),
        ),
    }

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        incident = context["original"]
        context["alerts"] = incident.alerts.order_by("pk")
        context["effects"] = Incident.objects.filter(
            cause=incident.indicator, began_at__gte=incident.began_at, began_at__lte=incident.ended_at or database_now()
        )[:MAX_CHANGES]
        may_read = request.user.has_perm("admin.view_logentry")
        context["notes"] = changes_of(Incident, [str(incident.pk)])[:MAX_CHANGES] if may_read else []
        context["changes"] = sorted(_before(incident, request.user if may_read else None), reverse=True)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="indicator was")
    def colour(self, incident: Incident) -> SafeString:
        family = LOOKS[State(incident.worst)][0]
        return format_html('<span class="state-word {}">{}</span>', family, incident.worst)

    @admin.display(description="what happened")
    def happened(self, incident: Incident) -> SafeString:
        return with_code(incident.sentence)

    @admin.display(description="from")
    def began(self, incident: Incident) -> str:
        return exact(incident.began_at)

    @admin.display(description="until")
    def ended(self, incident: Incident) -> str:
        return exact(incident.ended_at) if incident.ended_at else "it goes on"

    @admin.display(description="for")
    def lasted(self, incident: Incident) -> str:
        return duration(((incident.ended_at or database_now()) - incident.began_at).total_seconds())


def _before(incident: Incident, reader: Any) -> Iterator[tuple[str, str]]:
    """Yield time and text of each change shortly before an incident: starts of workers, and what staff did.

    Only a reader of the log sees the latter.
    """
    span = (incident.began_at - BEFORE, incident.began_at)
    for start in ServerStart.objects.filter(started_at__range=span).order_by("-started_at")[:MAX_CHANGES]:
        yield exact(start.started_at), f"A worker of version {start.version} started."
    if reader:
        entries = LogEntry.objects.filter(readable_by(reader), action_time__range=span).select_related("user")
        for entry in entries.order_by("-action_time")[:MAX_CHANGES]:
            yield exact(entry.action_time), f"{entry.user}: {entry.object_repr}: {entry.get_change_message()}"
