"""Pages for refused requests: each states the reason, and repeats nothing of the request."""

from datetime import timedelta
from http import HTTPStatus

import structlog
from django.contrib import admin
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from pushserver.console.pages import labels
from pushserver.console.pages.accounts.addresses import client_address
from pushserver.models import FailedLogin

log = structlog.get_logger(__name__)
LOGGED = {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}


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
