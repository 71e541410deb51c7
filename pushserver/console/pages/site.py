"""The admin site: access to the console, and the context of every page."""

from typing import Any, cast

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.sites import UnfoldAdminSite

from notifications.queues import halts
from pushserver.console.pages import logins
from pushserver.console.pages.menu import may_find
from pushserver.console.pages.middleware import REFRESH_HEADER, locked_out, too_many_logins
from pushserver.console.pages.overview import status_page
from pushserver.console.pages.second_factor import is_missing


class ConsoleSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold has no types
    """Django's admin with the dashboard as its first page, and with second factors."""

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Add to every page whether delivery is stopped, and the search box for people who may see its hits."""
        may_know = self.has_permission(request)
        own = {"drain": halts.drain() if may_know else None, "may_find": may_know and may_find(request.user)}
        return {**super().each_context(request), **own, "is_demonstration": may_know and settings.DEMONSTRATION}

    def search(self, *_arguments: Any, **_named: Any) -> HttpResponse:
        """Refuse the theme's search, which puts the typed text into the URL, where a chat key must not stand."""
        raise Http404

    def index(self, request: HttpRequest) -> TemplateResponse:
        """Show the dashboard, or only its changing part for a page that refreshes itself."""
        page = status_page(request.user, request.GET.get("last", ""))
        if REFRESH_HEADER in request.headers:
            return TemplateResponse(request, "console/dashboard/board.html", page)
        request.current_app = self.name
        context = {**self.each_context(request), "title": "Overview", **page}
        return TemplateResponse(request, "admin/index.html", context)

    def login(self, request: HttpRequest) -> HttpResponse:
        """Check a password when no other one is checked."""
        if request.method != "POST":
            return cast(HttpResponse, super().login(request))
        with logins.LOGINS.wait() as is_ours:
            if not is_ours:
                return too_many_logins(request)
            try:
                response = cast(HttpResponse, super().login(request))
            except logins.LockedOutError:
                return locked_out(request)
        if request.user.is_authenticated:
            logins.remember_browser(request, response)
        return response

    def has_permission(self, request: HttpRequest) -> bool:
        """Let in people with the permission. A person with a second factor also needs its code."""
        return super().has_permission(request) and not is_missing(request)
