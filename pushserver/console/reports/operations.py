"""The operation that requests reports on demand."""

from collections.abc import Iterable, Sequence

from celery import current_app
from django import forms
from django.db import transaction
from unfold.widgets import UnfoldBooleanSwitchWidget

from kit.db.clock import database_now
from kit.display import counted
from pushserver.console.toolkit.operations import Done, Operation
from spark_reports.models import PublishedDay
from spark_reports.nights import on_demand
from spark_reports.nights.on_demand import MAX_DAYS_PER_RUN
from spark_reports.running.parts import missing

# The task is called by name, so that pages do not import the modules of workers.
MAKE_REPORTS = "spark_reports.tasks.make_reports"


class RequestRun(Operation):
    """Request the reports of a range of days, each of which gets an entry in the log of changes."""

    label = "Make reports"
    permission = "spark_reports.request_reportrun"

    replace = forms.BooleanField(
        label="Export again",
        required=False,
        help_text="Export the facts from the database again, also for days that are in the lake already. "
        "For damaged or incomplete files, while the database still has the facts.",
        widget=UnfoldBooleanSwitchWidget(),
    )

    def touched(self, rows: Sequence[PublishedDay]) -> Iterable[str]:
        present = PublishedDay.objects.filter(day__in=[row.day for row in rows]).count()
        days = counted(len(rows), "day")
        parts = f"in runs of {MAX_DAYS_PER_RUN} days, each" if len(rows) > MAX_DAYS_PER_RUN else "all"
        yield f"The reports of {days} are computed from the facts in the lake, {parts} together or not at all."
        if present:
            yield f"{present} of these days have reports: replaced when the run succeeds, kept when it fails."
        yield (
            "Later days are compared with these days. If facts are exported again, the reports of the thirty days "
            "after them are stale until the nightly runs have made them again."
        )
        if lack := missing():
            yield f"A part is missing on this machine, and may be missing for the worker, too: {lack}"

    def run(self, rows: Sequence[PublishedDay], *, by: str) -> Done:
        first, last = rows[0].day, rows[-1].day
        if not on_demand.ask(first, last, replace=self.cleaned_data["replace"], now=database_now()):
            return Done("Already requested, and not over yet: nothing was changed.", is_change=False)
        # Without this message, the worker would find the request within five minutes.
        transaction.on_commit(lambda: current_app.send_task(MAKE_REPORTS), robust=True)
        return Done(f"Requested the reports of {first} to {last}.")
