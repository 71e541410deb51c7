"""The list of incidents: when each health indicator was not green, for how long, and what happened."""

from typing import Any, ClassVar

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from kit.admin.facts import FactAdmin
from kit.admin.lists.columns import NOTHING, moment, word
from kit.admin.lists.filters import RecentValuesFilter
from kit.admin.times import exact
from kit.health.indicators import State, duration
from pushserver.console.dashboard.showing import LOOKS
from pushserver.models import Incident


@admin.register(Incident)
class IncidentAdmin(FactAdmin):
    list_display = ("name", "colour", "began", "ended", "lasted", word("sentence", "what happened"))
    list_filter = (("indicator", RecentValuesFilter),)
    shown: ClassVar[Any] = {
        "Incident": ("name", "colour", word("sentence", "what happened"), "lasted"),
        "Times": (
            moment("incident_at", "green until"),
            moment("began_at", "began"),
            moment("ended_at", "ended"),
        ),
    }

    @admin.display(description="indicator was")
    def colour(self, incident: Incident) -> SafeString:
        family = LOOKS[State(incident.state)][0]
        return format_html('<span class="state-word {}">{}</span>', family, incident.state)

    @admin.display(description="from")
    def began(self, incident: Incident) -> str:
        return exact(incident.began_at)

    @admin.display(description="until")
    def ended(self, incident: Incident) -> str:
        return exact(incident.ended_at) if incident.ended_at else "it goes on"

    @admin.display(description="for")
    def lasted(self, incident: Incident) -> str:
        if incident.ended_at is None:
            return NOTHING
        return duration((incident.ended_at - incident.began_at).total_seconds())
