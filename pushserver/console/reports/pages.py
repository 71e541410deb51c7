"""Views of the reports: the page of a night, a page and a CSV file for each report, and the request for reports.

A wrong day or filter in a URL is no error: the form reports it, and the page shows a default.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_http_methods, require_safe
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from kit.db.clock import database_now
from pushserver.console.reports.choice import Choice, choose, newest_day
from pushserver.console.reports.operations import RequestRun
from pushserver.console.reports.panels import PAGES, ReportPage, night_chart, night_of
from pushserver.console.reports.tables import csv_file
from pushserver.console.toolkit.operations import OperationPage, confirm
from pushserver.console.toolkit.related import Link
from spark_reports.models import PublishedDay, Report, ReportRun, RequestedRun
from spark_reports.nights.nights import last_closed_day
from spark_reports.nights.status import status
from spark_reports.nights.summary import findings_of
from spark_reports.running.parts import missing

# The maximum of days in one request. Each day has an entry in the log of changes.
MAX_REQUESTED_DAYS = 31
DEFAULT_DAYS = 14
MAX_DAYS = 92
MAX_TEXT = 200


# What is asked for ----------------------------------------------------------------------------------------------------
class DaysForm(forms.Form):
    """A range of days. ``from`` and ``to`` are included in it, and either may be left out."""

    # `from` is a keyword of Python, so these fields cannot be attributes of the class.
    days: ClassVar[Sequence[str]] = ("from", "to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.days:
            day_picker = UnfoldAdminTextInputWidget(attrs={"type": "date"})  # the browser's own, without a script
            self.fields[name] = forms.DateField(required=False, widget=day_picker)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        first, last = cleaned.get("from"), cleaned.get("to")
        if first and last and first > last:
            raise ValidationError("The first day is after the last.")
        if first and last and (last - first).days >= MAX_DAYS:
            raise ValidationError(f"A page shows {MAX_DAYS} days at most.")
        return cleaned


class ChoiceForm(DaysForm):
    """A range of days, and one of the values that a report has for each of its filters."""

    def __init__(self, data: QueryDict, filters: dict[str, list[str]]) -> None:
        sent_by_name = {name: data.get(name, "")[:MAX_TEXT].replace("\x00", "") for name in filters}
        super().__init__({**data.dict(), **sent_by_name})
        for name, values in filters.items():
            sent = sent_by_name[name]
            known = sorted({*values, *([sent] if sent else [])} - {""})
            choices = [("", "all"), *[(value, value) for value in known]]
            self.fields[name] = forms.ChoiceField(choices=choices, required=False, widget=UnfoldAdminSelectWidget())


def read_choice(
    request: HttpRequest, model: type[Report], names: Sequence[str], *, today: date
) -> tuple[ChoiceForm, Choice]:
    """Read the days and filters of a request, with the values that ``model`` has in these days."""
    first, last = _days(request, today)
    in_range = model._default_manager.filter(day__range=(first, last))  # noqa: SLF001
    values = {name: list(in_range.order_by().values_list(name, flat=True).distinct()) for name in names}
    form = ChoiceForm(request.GET, values)
    form.is_valid()
    for name, day in (("from", first), ("to", last)):
        form.fields[name].widget.attrs["value"] = day.isoformat()
    filters = {name: form.cleaned_data[name] for name in names if form.cleaned_data.get(name)}
    return form, choose(first, last, filters)


def _days(request: HttpRequest, today: date) -> tuple[date, date]:
    """Return the requested range, or the default range for a wrong one, which the form reports."""
    form = DaysForm(request.GET)
    form.is_valid()
    asked = {} if form.non_field_errors() else form.cleaned_data
    last = asked.get("to") or (asked.get("from") and _capped(asked["from"], today)) or newest_day(today)
    first = asked.get("from") or date.fromordinal(max(1, last.toordinal() - DEFAULT_DAYS + 1))
    return first, last


def _capped(first: date, today: date) -> date:
    longest = date.fromordinal(min(first.toordinal() + MAX_DAYS - 1, date.max.toordinal()))
    return max(first, min(newest_day(today), longest))


# Pages ----------------------------------------------------------------------------------------------------------------
def shown(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Let a view only be read, and only by those who may see reports."""
    may_view = permission_required("spark_reports.view_publishedday", raise_exception=True)
    return admin.site.admin_view(may_view(require_safe(view)))


@shown
def overview(request: HttpRequest) -> HttpResponse:
    """Show one night on one page, which a browser can print as a PDF."""
    form = DaysForm({"to": request.GET.get("day", "")})
    asked = form.cleaned_data.get("to") if form.is_valid() else None
    day = asked or newest_day(_today())
    context = {
        **night_of(day),
        "chart": night_chart(day),
        "earlier": day - timedelta(days=1) if day > date.min else None,
        "later": day + timedelta(days=1) if day < _today() else None,
        "query": f"from={day}&to={day}",
        "run_link": _run_link(request, day, day),
    }
    return _render(request, "console/reports/overview.html", f"Last night: {day}", context)


@shown
def report(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one report."""
    page = _page_or_404(slug)
    _check_may_view(request, page.model)
    form, choice = read_choice(request, page.model, page.filters, today=_today())
    context = {
        "page": page,
        "form": form,
        "choice": choice,
        "sentence": page.sentence(choice),
        "parts": list(filter(None, page.build(choice))) if choice.published else [],
        "findings": findings_of(choice.first, choice.last),
        "query": choice.query,
        "run_link": _run_link(request, *_first_absent(choice)) if choice.absent else None,
    }
    return _render(request, "console/reports/report.html", page.title, context)


@shown
def report_csv(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Send all columns and rows of the chosen days as a CSV file.

    The parameter ``table`` chooses another table that the page shows.
    """
    page = _page_or_404(slug)
    table = request.GET.get("table", "")
    if table and table not in page.beside:
        raise Http404
    _, choice = read_choice(request, page.model, page.filters, today=_today())
    found = page.beside[table](choice) if table else choice.rows(page.model)
    _check_may_view(request, found.model)
    names = ["day", *found.model.table.column_names]
    rows: Iterable[Sequence[object]] = found.order_by("day", "pk").values_list(*names).iterator()
    made_up = "made-up" if any(night.is_made_up for night in choice.nights) else ""
    parts = (made_up, slug, table, str(choice.first), str(choice.last))
    return csv_file("-".join(filter(None, parts)), names, rows)


@admin.site.admin_view
@permission_required("spark_reports.request_reportrun", raise_exception=True)
@require_http_methods(["GET", "POST"])
def request_run(request: HttpRequest) -> HttpResponse:
    """Confirm a request for the reports of a range of days, and store it."""
    days = _requested_days(request)
    if not days:
        raise Http404
    rows = [PublishedDay(day=day) for day in days]
    title = f"Make the reports of {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")
    back = reverse("admin:spark_reports_reportrun_changelist")
    return confirm(request, RequestRun, rows, OperationPage(title, request.get_full_path(), back))


def _requested_days(request: HttpRequest) -> list[date]:
    """Return the requested days, oldest first, or none if the URL names no range of closed days."""
    form = DaysForm(request.GET)
    if not form.is_valid() or not form.cleaned_data["from"]:
        return []
    first, last = form.cleaned_data["from"], form.cleaned_data["to"] or form.cleaned_data["from"]
    is_possible = last <= last_closed_day(database_now()) and (last - first).days < MAX_REQUESTED_DAYS
    return [first + timedelta(days=n) for n in range((last - first).days + 1)] if is_possible else []


def _first_absent(choice: Choice) -> tuple[date, date]:
    """Return the first gap of the range, or its first MAX_REQUESTED_DAYS."""
    reachable = choice.absent[:MAX_REQUESTED_DAYS]
    gap = [day for number, day in enumerate(reachable) if (day - reachable[0]).days == number]
    return gap[0], gap[-1]


def _run_link(request: HttpRequest, first: date, last: date) -> Link | None:
    last = min(last, last_closed_day(database_now()))
    if first > last or not request.user.has_perm("spark_reports.request_reportrun"):
        return None
    text = f"Make the reports of {first}" + (f" to {last}" if last > first else "")
    return Link(text, f"{reverse('reports:run')}?from={first}&to={last}")


def _page_or_404(slug: str) -> ReportPage:
    if slug not in PAGES:
        raise Http404
    return PAGES[slug]


def _check_may_view(request: HttpRequest, model: type[Model]) -> None:
    if not request.user.has_perm(f"spark_reports.view_{model._meta.model_name}"):  # noqa: SLF001
        raise PermissionDenied


def _today() -> date:
    return database_now().date()


def _render(request: HttpRequest, template: str, title: str, context: dict[str, Any]) -> HttpResponse:
    now = database_now()
    shared = {
        **admin.site.each_context(request),
        "title": title,
        "pages": PAGES.values(),
        "status": status(now),
        "lacking": missing(),
        "is_made_up": PublishedDay.objects.filter(is_made_up=True).exists(),
        "is_running": ReportRun.objects.filter(state=ReportRun.State.RUNNING).exists(),
        "waiting": list(RequestedRun.objects.order_by("asked_at")),
    }
    return TemplateResponse(request, template, shared | context)


app_name = "reports"
urlpatterns = [
    path("", overview, name="overview"),
    path("run/", request_run, name="run"),
    path("<slug:slug>/", report, name="report"),
    path("<slug:slug>.csv", report_csv, name="csv"),
]
