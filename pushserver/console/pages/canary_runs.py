"""The admin page of the canaries' round trips: the broken link, its cause, and the time of each link."""

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest

from pushserver.console.models import CanaryRun
from pushserver.console.toolkit.columns import NOTHING, Column, age, milliseconds, moment, state, word, yes_no
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.lists import WordFilter


def _time(link: str) -> Column:
    @admin.display(description=link.replace("_", " "))
    def column(run: CanaryRun) -> str:
        return NOTHING if (ms := run.times.get(link)) is None else f"{ms:,} ms"

    return column


@admin.register(CanaryRun)
class CanaryRunAdmin(FactAdmin):
    list_display = (
        *(age("started_at", "started"), word("get_network_display", "network"), state("state"), word("cause")),
        word("detail"),
    )
    list_filter = (("network", WordFilter), ("state", WordFilter), ("cause", WordFilter))
    ordering: ClassVar[Any] = ("-started_at",)  # some ten thousand rows, so no index is needed
    shown: ClassVar[Any] = {
        "Round trip": (
            *(word("get_network_display", "network"), state("state"), word("broken_link")),
            *(word("cause_in_words", "cause"), word("detail")),
            *(moment("started_at", "started"), moment("finished_at", "finished"), yes_no("is_dry_run", "dry run")),
        ),
    }

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return also the time of each link, where the list is of one network."""
        network = request.GET.get("network__exact", "")
        if network not in CanaryRun.LINKS:
            return (*self.list_display, milliseconds("total_ms", "in all"))
        return (*self.list_display, *map(_time, CanaryRun.LINKS[network].values))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the fields of a run, with the links of its network."""
        links = [*map(_time, obj.timings()), milliseconds("work_ms", "CPU time of its own")] if obj else []
        return [*super().get_fieldsets(request, obj), ("Time of each link", {"fields": links})]
