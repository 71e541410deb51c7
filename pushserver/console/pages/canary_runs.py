"""The admin page of a canary's round trips: the broken link, its cause, and the time of each link."""

from typing import Any, ClassVar

from django.contrib.admin import AdminSite

from pushserver.console.canary.runs import BaseRun
from pushserver.console.toolkit.columns import age, milliseconds, moment, state, word, yes_no
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.lists import WordFilter


class CanaryRunAdmin(FactAdmin):
    list_filter = (("state", WordFilter), ("cause", WordFilter))
    ordering: ClassVar[Any] = ("-pk",)

    def __init__(self, model: type[BaseRun], site: AdminSite) -> None:
        links = [milliseconds(f"{link.value}_ms", link.value.replace("_", " ")) for link in model.Link]
        self.list_display = (age("started_at", "started"), state("state"), word("cause"), word("detail"), *links)
        self.shown = {  # type: ignore[misc]  # of this canary
            "Round trip": (
                state("state"),
                word("broken_link"),
                word("get_cause_display", "cause"),
                word("detail"),
                moment("started_at", "started"),
                moment("finished_at", "finished"),
                yes_no("is_dry_run", "dry run"),
            ),
            "Time of each link": (*links, milliseconds("work_ms", "CPU time of its own")),
        }
        super().__init__(model, site)
