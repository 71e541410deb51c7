"""Who looked at whom: every page of a row that somebody of the staff opened is noted before it is shown."""

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from pushserver.models import OpenedRecord

PAGE_OF_A_ROW = "_change"
# Pages about one user or one notification that are no page of a row.
OTHER_PAGES = ("user", "timeline")
MAX_ID_LENGTH = 200


class AuditMiddleware(MiddlewareMixin):
    """Sees the pages of all apps. When nothing can be noted, nothing is shown."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        match = request.resolver_match
        page = _page_of(match) if match and response.status_code == HttpResponse.status_code else ""
        if match and page and isinstance(request.user, User):
            OpenedRecord.objects.create(
                user=request.user,
                username=request.user.get_username(),
                page=page,
                object_id=str(match.kwargs["object_id"])[:MAX_ID_LENGTH],
                at=timezone.now(),
            )
        return response


def _page_of(match: ResolverMatch) -> str:
    """What is shown there, if it is somebody's row."""
    name = match.url_name or ""
    if not match.kwargs.get("object_id"):
        return ""
    if match.namespace == "admin" and name.endswith(PAGE_OF_A_ROW):
        return ".".join(name.removesuffix(PAGE_OF_A_ROW).rsplit("_", 1))
    return name if not match.namespace and name in OTHER_PAGES else ""
