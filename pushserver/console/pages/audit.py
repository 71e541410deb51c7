"""Access log: it records which staff member opened the page of which user or row, before the page is shown."""

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from pushserver.models import AccessRecord

PAGE_OF_A_ROW = "_change"
# Pages about one user, notification or request that are not pages of a row.
OTHER_PAGES = ("user", "timeline", "request_timeline")
MAX_ID_LENGTH = 200


class AuditMiddleware(MiddlewareMixin):
    """Records opened pages of all apps. When a record cannot be written, the page is not shown."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Record the page if it shows a row and has status 200."""
        match = request.resolver_match
        page = _page_of(match) if match and response.status_code == HttpResponse.status_code else ""
        if match and page and isinstance(request.user, User):
            AccessRecord.objects.create(
                user=request.user,
                username=request.user.get_username(),
                page=page,
                object_id=str(match.kwargs["object_id"])[:MAX_ID_LENGTH],
                at=timezone.now(),
            )
        return response


def _page_of(match: ResolverMatch) -> str:
    """Return the name of a page that shows a row, or an empty text for any other page."""
    name = match.url_name or ""
    if not match.kwargs.get("object_id"):
        return ""
    if match.namespace == "admin" and name.endswith(PAGE_OF_A_ROW):
        return ".".join(name.removesuffix(PAGE_OF_A_ROW).rsplit("_", 1))
    return name if not match.namespace and name in OTHER_PAGES else ""
