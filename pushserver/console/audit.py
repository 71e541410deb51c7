"""Who looked at whom: every page of a row that somebody of the staff opened is noted before it is shown."""

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from pushserver.models import OpenedRecord

PAGE_OF_A_ROW = "_change"
MAX_ID_LENGTH = 200


class AuditMiddleware(MiddlewareMixin):
    """Sees the pages of all apps. When nothing can be noted, nothing is shown."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        match = request.resolver_match
        if match is None or match.namespace != "admin" or response.status_code != HttpResponse.status_code:
            return response
        name, object_id = match.url_name or "", match.kwargs.get("object_id")
        if object_id and name.endswith(PAGE_OF_A_ROW) and isinstance(request.user, User):
            OpenedRecord.objects.create(
                user=request.user,
                username=request.user.get_username(),
                page=".".join(name.removesuffix(PAGE_OF_A_ROW).rsplit("_", 1)),
                object_id=str(object_id)[:MAX_ID_LENGTH],
                at=timezone.now(),
            )
        return response
