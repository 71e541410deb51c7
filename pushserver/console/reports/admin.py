"""Admin pages of runs: the counts, the duration, the error and the log of each."""

from collections.abc import Iterable
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin

from pushserver.console.reports import formats
from pushserver.console.reports.operations import RequestRun
from pushserver.console.toolkit.columns import age, moment, number, state, word
from pushserver.console.toolkit.facts import FactPage
from pushserver.console.toolkit.related import Link, links_from
from spark_reports.models import ReportRun


@links_from.register(ReportRun)
def from_run(run: ReportRun) -> Iterable[Link]:
    yield Link("Reports", f"{reverse('reports:overview')}?day={run.to_day}")


@admin.register(ReportRun)
class ReportRunAdmin(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Read-only pages of the runs."""

    class Media:
        css: ClassVar[Any] = {"all": ("spark_reports/runs.css",)}

    list_display = (
        "days",
        state("state"),
        word("step"),
        age("started_at", "started"),
        "duration",
        number("event_count", "events read"),
        number("result_count", "rows of reports"),
        number("finding_count", "findings"),
        "error",
    )
    list_filter = ("state",)
    list_per_page = 50
    ordering: ClassVar[Any] = ("-started_at",)
    sortable_by: ClassVar[Any] = ()
    actions = None
    shown: ClassVar[Any] = {
        "Run": ("days", state("state"), word("step"), word("error")),
        "Times": (
            moment("started_at", "started"),
            moment("finished_at", "finished"),
            moment("seen_at", "last seen"),
            "duration",
            "parts",
        ),
        "Input and output": (
            number("event_count", "events read"),
            number("result_count", "rows of reports"),
            number("finding_count", "findings about data quality"),
            "log",
        ),
    }

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        run: ReportRun = context["original"]
        query = urlencode({"from": run.from_day, "to": run.to_day})
        may_run = request.user.has_perm(RequestRun.permission)
        context["operations"] = [Link("Run again", f"{reverse('reports:run')}?{query}")] if may_run else []
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="days")
    def days(self, run: ReportRun) -> str:
        days = " to ".join(dict.fromkeys((str(run.from_day), str(run.to_day))))
        made_up = " (made up)" if run.is_made_up else ""
        return format_html('<span class="run-days">{}{}</span>', days, made_up)

    @admin.display(description="took")
    def duration(self, run: ReportRun) -> str:
        end = run.finished_at or run.seen_at
        return formats.seconds((end - run.started_at).total_seconds())

    @admin.display(description="of that")
    def parts(self, run: ReportRun) -> str:
        steps = {"export": run.export_seconds, "compute": run.compute_seconds, "publish": run.publish_seconds}
        return ", ".join(f"{name} {formats.seconds(value)}" for name, value in steps.items())

    @admin.display(description="end of Spark's log")
    def log(self, run: ReportRun) -> str:
        return format_html('<pre class="spark-log">{}</pre>', run.log_excerpt or formats.NOTHING)
