"""Ends of sessions: idle and old sessions end, and nothing of them stays in a browser.

A page that refreshes itself does not keep a session alive, and leads to the login when its session has ended.
"""

import time

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

REFRESH_HEADER = "HX-Request"  # sent by requests that a page makes on its own
BEGAN_AT = "began_at"  # key of the session: Unix time of its login
LOGOUT = "admin:logout"


class WorkingSessionMiddleware(MiddlewareMixin):
    """Extends a session with each request of a person, and ends it after SESSION_MAX_SECONDS."""

    def process_request(self, request: HttpRequest) -> None:
        """End a session that is too old. The request continues without a login."""
        if request.user.is_authenticated:
            began_at = request.session.setdefault(BEGAN_AT, time.time())
            if time.time() - began_at > settings.SESSION_MAX_SECONDS:
                logout(request)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER not in request.headers and request.user.is_authenticated:
            request.session.modified = True  # extends it
        return response


class NothingKeptMiddleware(MiddlewareMixin):
    """Forbids browsers and proxies to store answers, unless a page allows it, and clears their storage at logout."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if not response.has_header("Cache-Control"):
            response["Cache-Control"] = "no-store"
        if request.resolver_match and request.resolver_match.view_name == LOGOUT:
            response["Clear-Site-Data"] = '"cache", "storage"'
        return response


class WholePageMiddleware(MiddlewareMixin):
    """Redirects the whole page if the answer for a part of it is a redirect, for instance to the login.

    Otherwise the browser would follow the redirect, and show the login inside of the page.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if REFRESH_HEADER in request.headers and response.has_header("Location"):
            response.status_code = 204
            response["HX-Redirect"] = response["Location"]
            del response["Location"]
        return response
