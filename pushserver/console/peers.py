"""The pages "gorush configuration" and "Waku nodes": what the config checks found, why it matters and what to do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from kit.http.complaints import Complaint
from kit.http.notices import Notice
from kit.http.urls import host_of
from notifications.gateways.gorush.config_check.board import BOARD as GORUSH_BOARD
from waku_bridge.node.config_check.board import BOARD as NODE_BOARD


@dataclass(frozen=True, slots=True)
class Row:
    """One peer. ``looked_at`` is None when no check reached it lately; ``facts`` are what it said of itself."""

    host: str
    looked_at: datetime | None = None
    facts: Sequence[tuple[str, str]] = ()
    complaints: Sequence[tuple[Complaint, datetime | None]] = ()

    @property
    def state(self) -> str:
        if self.looked_at is None:
            return "unknown"
        return "deviates" if self.complaints else "fine"


Describe = Callable[[Mapping[str, Any]], Sequence[tuple[str, str]]]


@require_safe
def gorush_configuration(request: HttpRequest) -> TemplateResponse:
    """Show the complaints of each gorush."""
    rows = _rows(settings.GORUSH_URLS, GORUSH_BOARD.read(settings.GORUSH_URLS), lambda _memory: ())
    return _page(request, rows, title="gorush configuration", nothing="No gorush is configured: set GORUSH_URL.")


@require_safe
def waku_nodes(request: HttpRequest) -> TemplateResponse:
    """Show the complaints of each Waku node, and what it says of itself."""
    urls = list(dict.fromkeys([*settings.WAKU_NODES, *settings.WAKU_STORE_NODES]))
    rows = _rows(urls, NODE_BOARD.read(urls), _facts_of_node)
    return _page(request, rows, title="Waku nodes", nothing="No Waku node is configured: set WAKU_NODES.")


def _facts_of_node(memory: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    return [
        ("version", memory["version"] or "not known"),
        ("health", memory["health"] or "not said"),
        ("cluster and shards", memory["shards"] or "not said"),
        (
            "longest page",
            f"{memory['longest_page']} messages" if memory["longest_page"] else "shorter than 30 messages",
        ),
    ]


def _page(request: HttpRequest, rows: Iterator[Row], *, title: str, nothing: str) -> TemplateResponse:
    """Render the page. Everybody in the console may open it, as it names hosts and settings and no user's data."""
    context = admin.site.each_context(request) | {"title": title, "rows": list(rows), "nothing": nothing}
    return TemplateResponse(request, "admin/peer_configuration.html", context)


def _rows(urls: Sequence[str], notices: Mapping[str, Notice], describe: Describe) -> Iterator[Row]:
    for url in urls:
        notice = notices.get(url)
        if notice:
            facts = list(describe(notice.memory)) if notice.memory else []
            yield Row(host_of(url), notice.looked_at, facts, _with_age(notice))
        else:
            yield Row(host_of(url))


def _with_age(notice: Notice) -> list[tuple[Complaint, datetime | None]]:
    return [(complaint, notice.since.get(complaint.id)) for complaint in notice.complaints]
