"""The page "Alerts": the targets with the result of their last alert, the indicators that alert, and a test."""

from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe
from unfold.widgets import UnfoldAdminRadioSelectWidget

from pushserver.console.health import alerts
from pushserver.console.health.alerts import targets
from pushserver.console.health.indicators import kinds_of
from pushserver.console.models import Alert, AlertLevel
from pushserver.console.pages import labels
from pushserver.console.pages.menu import INCIDENTS
from pushserver.console.parts import parts
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm

PERMISSION = "pushserver.operate_incident"


class ChooseLevel(Operation):
    """Choose the state from which one kind of indicator alerts."""

    label = "Change"
    permission = PERMISSION

    level = forms.ChoiceField(label="Alerts", choices=AlertLevel.Level.choices, widget=UnfoldAdminRadioSelectWidget)

    def touched(self, rows: Sequence[AlertLevel]) -> Iterable[str]:
        yield labels.LEVEL_UNTIL_NOW.format(level=AlertLevel.Level(rows[0].level).label)

    def run(self, rows: Sequence[AlertLevel], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        level = AlertLevel.Level(self.cleaned_data["level"])
        AlertLevel.objects.update_or_create(kind=rows[0].kind, defaults={"level": level})
        return Done(labels.LEVEL_CHOSEN.format(level=level.label))


class SendTest(Operation):
    """Send a test to every target."""

    label = "Send a test"
    permission = PERMISSION

    def touched(self, rows: Sequence[AlertLevel]) -> Iterable[str]:  # noqa: ARG002 - it is about no row
        yield labels.TEST_EFFECT.format(targets=", ".join(targets()) or "nobody: ALERTS_TO is empty")

    def run(self, rows: Sequence[AlertLevel], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        message = alerts.message(f"test-{timezone.now():%Y%m%dT%H%M%S}", "test", "Push server: test", alerts.TEST)
        answers = {name: alerts.send(target, message) for name, target in targets().items()}
        results = [f"{name}: {error or 'accepted'}" for name, error in answers.items()]
        return Done(f"{'; '.join(results) or labels.NO_TARGETS}.", is_change=bool(results))


@require_safe
@permission_required(INCIDENTS, raise_exception=True)
def show_alerts(request: HttpRequest) -> HttpResponse:
    """Show the targets, and which kinds of indicators alert from which state."""
    chosen, kinds = alerts.levels(), kinds_of(parts())
    shown: dict[str, Any] = {
        "title": "Alerts",
        "levels": [(level, [kind for kind in kinds if chosen[kind.id] == level]) for level in AlertLevel.Level],
        "newest": {label: Alert.objects.filter(target=label).order_by("-pk").first() for label in targets()},
        "may_change": request.user.has_perm(PERMISSION),
    }
    return TemplateResponse(request, "console/alerts.html", admin.site.each_context(request) | shown)


def choose_level(request: HttpRequest, kind: str) -> HttpResponse:
    """Confirm and store when a kind of indicator alerts."""
    known = {each.id: each for each in kinds_of(parts())}
    if kind not in known:
        raise Http404
    level = alerts.levels()[kind]
    page = OperationPage(f"Alerts of {known[kind].name}", request.path, reverse("alerts"))
    return confirm(request, ChooseLevel, [AlertLevel(kind=kind, level=level)], page, level=level)


def send_test(request: HttpRequest) -> HttpResponse:
    """Confirm and send a test."""
    page = OperationPage("Test of alerts", request.path, reverse("alerts"))
    return confirm(request, SendTest, [AlertLevel(kind="test")], page)
