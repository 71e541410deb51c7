"""Sessions end when nobody works with them any more: pages that refresh themselves do not count as work, and when their
session is over they say so.
"""

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

REFRESH_HEADER = "HX-Request"  # sent by what a page loads on its own


class WorkingSessionMiddleware(MiddlewareMixin):
    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER not in request.headers and request.user.is_authenticated:
            request.session.modified = True  # starts its time anew
        return response


class WholePageMiddleware(MiddlewareMixin):
    """Where a part of a page is asked for and the answer is to go elsewhere, to the login for instance, the page goes
    there. Otherwise a browser would follow on its own, and show the login within the page.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER in request.headers and response.has_header("Location"):
            response.status_code = 204
            response["HX-Redirect"] = response["Location"]
            del response["Location"]
        return response
