"""List and pages of incidents: when an indicator was not green, its cause, and the person who takes care of it."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget

from kit.db.clock import database_now
from kit.display import counted, exact
from pushserver.console.health.incidents import causes_of, is_own, with_effects
from pushserver.console.health.indicators import ENDED_PAGE, FAILED_ATTEMPTS_PAGE, OPEN_PAGE, kind_of, kinds_of
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import Page, State, Verdict, duration
from pushserver.console.models import Incident, ServerStart
from pushserver.console.pages import labels, overview
from pushserver.console.pages.documentation import RUNBOOKS, read_page
from pushserver.console.pages.figures import incident_figure
from pushserver.console.pages.middleware import REFRESH_HEADER
from pushserver.console.pages.overview import LOOKS, url_of
from pushserver.console.parts import parts
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.labels import Family, with_code
from pushserver.console.toolkit.lists import ConditionFilter, RecentValuesFilter
from pushserver.console.toolkit.operations import Done, Operated, Operation, done
from pushserver.console.toolkit.related import Link, changes_of, readable_by
from pushserver.console.toolkit.times import span

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


class GoesOnFilter(ConditionFilter):
    title = "end"
    parameter_name = "open"
    conditions: ClassVar[Any] = {"yes": ("goes on", Q(ended_at=None))}


class EffectsFilter(ConditionFilter):
    """A list has one row for each fault, unless its effects, or the incidents of one indicator, are asked for."""

    title = parameter_name = "effects"
    conditions: ClassVar[Any] = {"yes": ("have rows of their own", Q())}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        is_all = self.value() or "indicator__exact" in request.GET
        return queryset if is_all else queryset.filter(is_own())


@admin.register(Incident)
class IncidentAdmin(Operated, FactAdmin):
    change_form_template = "console/incident.html"
    operations: ClassVar[Any] = {"acknowledge": Acknowledge, "snooze": Snooze, "note": AddNote}
    list_display = ("name", "colour", "began", "lasted", "happened")
    list_filter = (GoesOnFilter, EffectsFilter, ("indicator", RecentValuesFilter))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Incident]:  # noqa: ARG002 - the same for all
        return with_effects()

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the story of an incident, or only its changing part for a page that refreshes itself."""
        response: HttpResponse = super().change_view(request, object_id, *args, **kwargs)
        if REFRESH_HEADER in request.headers and isinstance(response, TemplateResponse):
            response.template_name = "console/story.html"
        return response

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        incident, user = context["original"], request.user
        may_read = user.has_perm("admin.view_logentry")
        context |= _story(incident, user)
        context["alerts"] = incident.alerts.order_by("pk")
        context["notes"] = changes_of(Incident, [str(incident.pk)])[:MAX_CHANGES] if may_read else []
        context["changes"] = sorted(_before(incident, user if may_read else None), reverse=True)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="indicator was")
    def colour(self, incident: Incident) -> SafeString:
        family = LOOKS[State(incident.worst)][0]
        return format_html('<span class="state-word {}">{}</span>', family, incident.worst)

    @admin.display(description="what happened")
    def happened(self, incident: Any) -> SafeString:
        effects = ", ".join(dict.fromkeys(effect["name"] for effect in incident.effects))
        care = incident.acknowledged_by and f"{incident.acknowledged_by} takes care of it."
        lines = filter(None, (effects and f"Effects: {effects}.", care))
        return format_html(  # one element: a cell is a row of them on a phone
            "<div>{} {}</div>",
            with_code(incident.sentence),
            format_html_join("", '<p class="note">{}</p>', ((line,) for line in lines)),
        )

    @admin.display(description="from")
    def began(self, incident: Incident) -> str:
        return exact(incident.began_at)

    @admin.display(description="for")
    def lasted(self, incident: Incident) -> str:
        length = duration(((incident.ended_at or database_now()) - incident.began_at).total_seconds())
        return length if incident.ended_at else f"{length}, goes on"


# The page of an incident ----------------------------------------------------------------------------------------------
def _story(incident: Incident, user: Any) -> dict[str, Any]:
    """Return what the page of an incident says, with the figures of this moment while it goes on."""
    now = timezone.now()
    found = _seen(incident, now)
    kinds = {kind.id: kind for kind in kinds_of(parts())}
    kind = kinds.get(kind_of(incident.indicator, kinds))  # None for an indicator of an earlier version
    state = found.state if found else State(incident.worst)
    family, icon = (Family.QUIET, "history") if incident.ended_at else LOOKS[state]
    known = {"incident": incident, "now": now, "state": state, "family": family, "icon": icon}
    return known | {
        "sentence": found.sentence if found else incident.sentence,
        "first_step": found.first_step if found else "",
        "runbook": read_page(f"{RUNBOOKS}/{kind.runbook_of(state)}") if kind else None,
        "course": list(_course(incident)),
        "cause": causes_of(incident).last(),
        "touched": list(_touched(incident, (found and found.page) or (kind.page if kind else None), now, user)),
        "figure": incident_figure(incident, kind, now, user),
        "may_acknowledge": Acknowledge.fits(incident) and user.has_perm(Acknowledge.permission),
        "refresh_seconds": overview.REFRESH_SECONDS,
    }


def _seen(incident: Incident, now: datetime) -> Verdict | None:
    """Return the indicator of an incident that goes on as it is now, bad or not known. A snapshot may end it."""
    if incident.ended_at:
        return None
    found = next((one for one in take_snapshot(now=now).indicators if one.id == incident.indicator), None)
    incident.refresh_from_db()
    return found if found and (found.is_bad or found.state == State.GREY) else None


def _course(incident: Incident) -> Iterator[str]:
    """Yield the colours of an incident with their times. Of several times in red, only the newest is known."""
    is_red_at_once = incident.red_from == incident.began_at
    known = (
        (State.RED if is_red_at_once else "bad" if incident.red_from else State.YELLOW, incident.began_at),
        (State.RED, None if is_red_at_once else incident.red_from),
        (State.YELLOW, None if incident.red_until == incident.ended_at else incident.red_until),
        (State.GREEN, incident.ended_at),
        (f"{incident.acknowledged_by} takes care of it", incident.acknowledged_at),
    )
    yield from (f"{words} from {exact(at)}" for words, at in known if at)
    if incident.snoozed_until:
        yield f"no alert before {exact(incident.snoozed_until)}"


def _touched(incident: Incident, own: Page | None, now: datetime, user: Any) -> Iterator[Link]:
    """Yield the page of an indicator, and the lists of what an incident touched, for people who may open them."""
    during = {"during": span(incident.began_at, incident.ended_at or now)}
    lists = {FAILED_ATTEMPTS_PAGE: during, ENDED_PAGE: during} | ({own: {}} if own else {})
    for page, query in (lists | ({} if incident.ended_at else {OPEN_PAGE: {}})).items():
        if url := url_of(page, user, **query):
            yield Link(f"{page.title} meanwhile" if query else page.title, url)


def _before(incident: Incident, reader: Any) -> Iterator[tuple[str, str]]:
    """Yield time and text of each change shortly before an incident: starts of workers, and what staff did.

    Only a reader of the log sees the latter.
    """
    span = (incident.began_at - BEFORE, incident.began_at)
    starts = list(ServerStart.objects.filter(started_at__lte=incident.began_at).order_by("-started_at")[:MAX_CHANGES])
    for start, earlier in zip_longest(starts, starts[1:]):
        if start.started_at >= span[0]:
            changed = ", ".join(start.changed_since(earlier))
            others = f", with other settings: {changed}" if changed else ""
            yield exact(start.started_at), f"A worker of version {start.version} started{others}."
    if reader:
        entries = LogEntry.objects.filter(readable_by(reader), action_time__range=span).select_related("user")
        for entry in entries.order_by("-action_time")[:MAX_CHANGES]:
            yield exact(entry.action_time), f"{entry.user}: {entry.object_repr}: {entry.get_change_message()}"
