"""The pages "gorush configuration" and "Waku nodes": whether each answers, what the config checks found, why it matters
and what to do.

Whether a peer answers is told by its indicator, as on the dashboard, so that the two never contradict each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from kit.http.complaints import Complaint
from kit.http.notices import NoticeCache
from kit.http.urls import host_of
from notifications.gateways.gorush.config_check.saved import NOTICES as GORUSH_NOTICES
from pushserver.console.dashboard.showing import Shown, shown_to
from pushserver.indicators.asking import complaints
from pushserver.indicators.snapshot import take_snapshot
from waku_bridge.node.config_check.saved import NOTICES as NODE_NOTICES


@dataclass(frozen=True, slots=True)
class Row:
    """One peer with its indicators, which are those of the dashboard.

    ``looked_at`` is None when no check of its configuration reached it lately; ``facts`` are what it said of itself.
    """

    host: str
    indicators: Sequence[Shown]
    looked_at: datetime | None = None
    facts: Sequence[tuple[str, str]] = ()
    complaints: Sequence[tuple[Complaint, datetime | None]] = ()


Describe = Callable[[Mapping[str, Any]], Sequence[tuple[str, str]]]


@require_safe
def gorush_configuration(request: HttpRequest) -> TemplateResponse:
    """Show the indicators and the complaints of each gorush."""
    rows = _rows(request, settings.GORUSH_URLS, GORUSH_NOTICES, ("gorush",), lambda _memory: ())
    return _page(request, rows, title="gorush configuration", nothing="No gorush is configured: set GORUSH_URL.")


@require_safe
def waku_nodes(request: HttpRequest) -> TemplateResponse:
    """Show the indicators and the complaints of each Waku node, and what it says of itself."""
    urls = list(dict.fromkeys([*settings.WAKU_NODES, *settings.WAKU_STORE_NODES]))
    rows = _rows(request, urls, NODE_NOTICES, ("node", "store"), _facts_of_node)
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


def _rows(
    request: HttpRequest, urls: Sequence[str], watch: NoticeCache, kinds: Sequence[str], describe: Describe
) -> Iterator[Row]:
    """Yield a row for each peer, with its indicator of each kind that it has."""
    seen = take_snapshot(now=timezone.now())
    notices = watch.read(urls)
    for url in urls:
        host, notice = host_of(url), notices.get(url)
        indicators = shown_to(request.user, seen.of(*(f"{kind}-{host}" for kind in kinds)))
        if notice:
            facts = list(describe(notice.memory)) if notice.memory else []
            yield Row(host, indicators, notice.looked_at, facts, complaints([notice]))
        else:
            yield Row(host, indicators)
