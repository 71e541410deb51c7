"""Sessions end when nobody works with them any more: pages that refresh themselves do not count as work."""

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

REFRESH_HEADER = "HX-Request"  # sent by what a page loads on its own


class WorkingSessionMiddleware(MiddlewareMixin):
    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER not in request.headers and request.user.is_authenticated:
            request.session.modified = True  # starts its time anew
        return response
