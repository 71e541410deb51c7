"""The page of a canary's round trips: what was broken, and how long each link took, in milliseconds."""

from typing import Any, ClassVar

from django.contrib.admin import AdminSite

from kit.admin.facts import FactAdmin
from kit.admin.lists.columns import age, moment, number, state, word, yes_no
from kit.admin.lists.filters import WordFilter
from kit.canary.runs import BaseRun


class CanaryRunAdmin(FactAdmin):
    list_filter = (("state", WordFilter), ("cause", WordFilter))
    ordering: ClassVar[Any] = ("-started_at",)

    def __init__(self, model: type[BaseRun], site: AdminSite) -> None:
        links = [number(f"{link.value}_ms", link.value.replace("_", " ")) for link in model.Link]
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
            "Milliseconds of each link": (*links, number("work_ms", "CPU time of its own")),
        }
        super().__init__(model, site)
