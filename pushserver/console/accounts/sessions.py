"""End sessions in which nobody works, and those that have lasted for long enough; leave nothing of them in a browser.

Pages that refresh themselves do not count as work, and say so when their session is over.
"""

import time

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

REFRESH_HEADER = "HX-Request"  # sent by what a page loads on its own
BEGAN_AT = "began_at"  # in the session: Unix time of its login
LOGOUT = "admin:logout"


class WorkingSessionMiddleware(MiddlewareMixin):
    """Starts the time of a session anew with each request that a person makes, and ends it when it is too old."""

    def process_request(self, request: HttpRequest) -> None:
        """End a session that is too old. Its request is then one without a login."""
        if request.user.is_authenticated:
            began_at = request.session.setdefault(BEGAN_AT, time.time())
            if time.time() - began_at > settings.SESSION_MAX_SECONDS:
                logout(request)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER not in request.headers and request.user.is_authenticated:
            request.session.modified = True  # starts its time anew
        return response


class NothingKeptMiddleware(MiddlewareMixin):
    """Has browsers and proxies keep no answer, unless a page says otherwise, and clear what they have at the logout."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if not response.has_header("Cache-Control"):
            response["Cache-Control"] = "no-store"
        if request.resolver_match and request.resolver_match.view_name == LOGOUT:
            response["Clear-Site-Data"] = '"cache", "storage"'
        return response


class WholePageMiddleware(MiddlewareMixin):
    """Redirects the whole page where a part of it was asked for and the answer is a redirect, for instance to the
    login.

    Otherwise a browser would follow on its own, and show the login within the page.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER in request.headers and response.has_header("Location"):
            response.status_code = 204
            response["HX-Redirect"] = response["Location"]
            del response["Location"]
        return response
