"""The page "gorush configuration": what the watch found wrong with each gorush, why it matters and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from notifications.gateways.gorush.watch import board
from notifications.gateways.gorush.watch.rules import Deviation
from registrations.console.columns import exact, host_of


@dataclass(frozen=True, slots=True)
class Row:
    """One gorush. ``looked_at`` is empty when nobody looked at it lately."""

    host: str
    looked_at: str
    deviations: list[tuple[Deviation, str]]


@require_safe
def gorush_configuration(request: HttpRequest) -> TemplateResponse:
    """For everybody in the console: it names hosts and settings, and nobody's data."""
    context = admin.site.each_context(request) | {"title": "gorush configuration", "rows": list(_rows())}
    return TemplateResponse(request, "admin/gorush_configuration.html", context)


def _rows() -> Iterator[Row]:
    notices = board.read(settings.GORUSH_URLS)
    for url in settings.GORUSH_URLS:
        notice = notices.get(url)
        looked_at = notice.looked_at if notice else None
        yield Row(host_of(url), _moment(looked_at), _with_age(notice) if notice else [])


def _with_age(notice: board.Notice) -> list[tuple[Deviation, str]]:
    return [(deviation, _moment(notice.since.get(deviation.id))) for deviation in notice.deviations]


def _moment(at: datetime | None) -> str:
    return exact(at) if at else ""
