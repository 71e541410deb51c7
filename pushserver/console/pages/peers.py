"""Pages about the servers behind gateways and bridges: their indicators, and the findings of the config checks.

The state of a peer is that of its indicator, as on the dashboard, so that the two never contradict each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from django.contrib import admin
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.views.decorators.http import require_safe

from kit.display import host_of
from pushserver.console.checks.engine import complaints
from pushserver.console.checks.peers import UNREACHABLE, Complaint
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.pages.overview import Shown, shown_to
from pushserver.console.part import PeerPage
from pushserver.console.parts import parts


@dataclass(frozen=True, slots=True)
class Row:
    """One peer with its indicators, which are those of the dashboard.

    ``looked_at`` is None if no config check reached it recently. ``facts`` are what the peer reports about itself.
    """

    host: str
    indicators: Sequence[Shown]
    looked_at: datetime | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    complaints: Sequence[tuple[Complaint, datetime | None]] = ()


def show_peers(request: HttpRequest, page: PeerPage) -> TemplateResponse:
    """Show the indicators, complaints and facts of each server of this page.

    Everybody in the console may open it, because it has hosts and settings, and no data of users.
    """
    seen = {"title": page.title, "rows": list(_rows(request, page)), "nothing": page.nothing}
    return TemplateResponse(request, "admin/peer_configuration.html", admin.site.each_context(request) | seen)


def peer_urls() -> list[URLPattern]:
    """Return the URL of the page of each gateway and bridge that has one."""
    pages = [part.peer_page for part in parts() if part.peer_page]
    return [path(f"admin/{page.path}/", _view(page), name=page.url_name) for page in pages]


def _view(page: PeerPage) -> Callable[..., HttpResponseBase]:
    view = require_safe(partial(show_peers, page=page))
    return admin.site.admin_view(view)


def _rows(request: HttpRequest, page: PeerPage) -> Iterator[Row]:
    """Yield a row for each peer, with its indicator of each kind that it has."""
    seen = take_snapshot(now=timezone.now())
    shown, urls = shown_to(request.user, seen), page.urls()
    notices = page.notices.read(urls)
    for url in urls:
        host, notice = host_of(url), notices.get(url)
        ids = {f"{kind}-{host}" for kind in page.kinds}
        indicators = [one for one in shown if one.indicator.id in ids]
        if notice:
            is_well = indicators and not any(found.indicator.is_bad for found in indicators)
            found = [one for one in complaints([notice]) if not (is_well and one[0].id == UNREACHABLE)]
            yield Row(host, indicators, notice.looked_at, notice.facts, found)
        else:
            yield Row(host, indicators)
