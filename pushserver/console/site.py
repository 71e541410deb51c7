"""The admin site itself: who is let in."""

from django.http import HttpRequest
from unfold.sites import UnfoldAdminSite

from pushserver.console.second_factor import is_missing


class ConsoleSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold has no types
    def has_permission(self, request: HttpRequest) -> bool:
        """A password alone opens nothing for those who have set up a second factor."""
        return super().has_permission(request) and not is_missing(request)
