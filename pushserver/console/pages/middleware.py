"""Middleware of the console, in the order of the settings, and the pages of refused requests.

Idle and old sessions end, and nothing of them stays in a browser. A page that refreshes itself does not keep a session
alive, and leads to the login when its session has ended. The access log records which staff member opened the page of
which user or row, before the page is shown.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus

import structlog
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, ResolverMatch, resolve, reverse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from pushserver.console.models import AccessRecord, FailedLogin
from pushserver.console.pages import labels, logins
from pushserver.console.toolkit.throttling import client_address, client_network

log = structlog.get_logger(__name__)

# What only machines call accepts any name of a host, and all other pages those of ALLOWED_HOSTS.
ANY_HOST = {"/healthz", "/readyz", "/metrics"}
HOOKS = "/hooks/"
REFRESH_HEADER = "HX-Request"  # sent by requests that a page makes on its own
BEGAN_AT = "began_at"  # key of the session: Unix time of its login
LOGOUT = "admin:logout"
SAFE = {"GET", "HEAD", "OPTIONS"}  # requests without a form
PAGE_OF_A_ROW = "_change"
# Pages about one user, notification or request that are not pages of a row.
OTHER_PAGES = ("user", "timeline", "request_timeline")
MAX_ID_LENGTH = 200
LOGGED = {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}


class AnyHostMiddleware(MiddlewareMixin):
    """Accepts every Host from probes, Prometheus and hooks of gateways, such as the address of a pod, or the name of a
    service within a cluster. Hooks have secrets of their own.

    Their answers have no links, so a forged Host misleads nobody. It stands before the middleware that reads the Host.
    """

    def process_request(self, request: HttpRequest) -> None:
        if request.path in ANY_HOST or request.path.startswith(HOOKS):
            request.META["HTTP_HOST"] = "localhost"


class BrowserMiddleware(MiddlewareMixin):
    """Tells browsers what to do with an answer: they store none, unless a page allows it, and nothing after a logout.

    If the answer for a part of a page is a redirect, for instance to the login, it redirects the whole page. Otherwise
    the browser would follow the redirect, and show the login inside of the page.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if not response.has_header("Cache-Control"):
            response["Cache-Control"] = "no-store"
        if request.resolver_match and request.resolver_match.view_name == LOGOUT:
            response["Clear-Site-Data"] = '"cache", "storage"'
        if REFRESH_HEADER in request.headers and response.has_header("Location"):
            response.status_code = 204
            response["HX-Redirect"] = response["Location"]
            del response["Location"]
        return response


class AnonymousFormsMiddleware:
    """Middleware that reads a form without a login only in a free slot, whichever page it is for.

    Django reads each form to check it against forgeries, before the page can refuse it. Pages for programs are exempt
    from that check, and refuse a request without a secret before they read its body.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method in SAFE or _is_for_programs(request) or request.user.is_authenticated:
            return self._get_response(request)
        with logins.LOGINS.slot(client_network(request)) as has_slot:
            return self._get_response(request) if has_slot else too_many_logins(request)


def _is_for_programs(request: HttpRequest) -> bool:
    try:
        return getattr(resolve(request.path_info).func, "csrf_exempt", False)
    except Resolver404:
        return False


class StaffMiddleware(MiddlewareMixin):
    """Extends a session with each request of a person, and ends it after SESSION_MAX_SECONDS. It records opened pages
    of all apps. When a record cannot be written, the page is not shown.
    """

    def process_request(self, request: HttpRequest) -> None:
        """End a session that is too old. The request continues without a login."""
        if request.user.is_authenticated:
            began_at = request.session.setdefault(BEGAN_AT, time.time())
            if time.time() - began_at > settings.SESSION_MAX_SECONDS:
                logout(request)

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
        if REFRESH_HEADER not in request.headers and request.user.is_authenticated:
            request.session.modified = True  # extends it
        return response


def _page_of(match: ResolverMatch) -> str:
    """Return the name of a page that shows a row, or an empty text for any other page."""
    name = match.url_name or ""
    if not match.kwargs.get("object_id"):
        return ""
    if match.namespace == "admin" and name.endswith(PAGE_OF_A_ROW):
        return ".".join(name.removesuffix(PAGE_OF_A_ROW).rsplit("_", 1))
    return name if not match.namespace and name in OTHER_PAGES else ""


# Refusals: each states the reason, and repeats nothing of the request -------------------------------------------------


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer without the text of the exception, which may repeat parts of the request."""
    return _refuse(request, HTTPStatus.BAD_REQUEST, labels.OTHER_HOST if isinstance(exception, DisallowedHost) else "")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - may repeat the request
    return _refuse(request, HTTPStatus.FORBIDDEN)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - as above
    return _refuse(request, HTTPStatus.NOT_FOUND)


def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001 - Django's words for programmers
    """Answer for Django's check against forged requests. People see this page after a login in another tab."""
    return _refuse(request, HTTPStatus.FORBIDDEN, labels.STALE_FORM)


def locked_out(request: HttpRequest) -> HttpResponse:
    """Answer somebody who is locked out. The page is the same whether the account exists or not."""
    minutes = FailedLogin.COUNTED // timedelta(minutes=1)
    return _refuse(request, HTTPStatus.TOO_MANY_REQUESTS, labels.LOCKED_OUT.format(minutes=minutes))


def too_many_logins(request: HttpRequest) -> HttpResponse:
    return _refuse(request, HTTPStatus.TOO_MANY_REQUESTS, labels.TOO_MANY_LOGINS)


def _refuse(request: HttpRequest, status: HTTPStatus, words: str = "") -> HttpResponse:
    words = words or labels.REFUSED[status]
    is_known = hasattr(request, "user")  # false for a request that was refused before its session was read
    if status in LOGGED:
        # The path of a page may have the hash or id of a user, so the log gets the name of the page.
        page = request.resolver_match.view_name if request.resolver_match else ""
        user_id = request.user.pk if is_known else None
        log.warning("page_refused", status=int(status), page=page, user_id=user_id, address=client_address(request))
    if not is_known or not request.path.startswith(reverse("admin:index")):
        return HttpResponse(words, status=status)
    layout = "admin/base_site.html" if admin.site.has_permission(request) else "unfold/layouts/unauthenticated.html"
    context = admin.site.each_context(request) | {"title": status.phrase, "words": words, "layout": layout}
    return render(request, "console/refused.html", context, status=status)
