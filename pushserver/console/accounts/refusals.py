"""The pages for requests that the console refuses. They say why in words and do not repeat what was asked for."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

import structlog
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from pushserver.console.accounts.addresses import client_address

log = structlog.get_logger(__name__)
WORDS = {
    HTTPStatus.BAD_REQUEST: "The address of this page says something that it cannot say. Start again from the menu.",
    HTTPStatus.FORBIDDEN: "Your role does not allow this. An admin of this console can give you one that does.",
    HTTPStatus.NOT_FOUND: "There is no such page, or what it showed is gone.",
}
OTHER_HOST = "This server does not go by the name in this address. An operator adds names to ALLOWED_HOSTS."
LOGGED = {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
STALE_FORM = "Nothing was done: this form is older than your session. Go back, load the page again, and send it again."
LOCKED_OUT = "Too many wrong logins. Wait {minutes} minutes, or ask an admin to remove the failed logins."
TOO_MANY_LOGINS = "Somebody else is logging in at this moment. Go back and send the form again."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer without the text of the exception, which may repeat what was asked for."""
    return _refuse(request, HTTPStatus.BAD_REQUEST, OTHER_HOST if isinstance(exception, DisallowedHost) else "")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - may repeat what was asked
    return _refuse(request, HTTPStatus.FORBIDDEN)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - as above
    return _refuse(request, HTTPStatus.NOT_FOUND)


def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001 - Django's words for programmers
    """Answer for Django's check against forged requests. People see this page after they logged in elsewhere."""
    return _refuse(request, HTTPStatus.FORBIDDEN, STALE_FORM)


def locked_out(request: HttpRequest, response: HttpResponse, credentials: Any) -> HttpResponse:  # noqa: ARG001
    """Answer for django-axes. The page is the same for accounts that exist and for those that do not."""
    minutes = settings.AXES_COOLOFF_TIME // timedelta(minutes=1)
    return _refuse(request, HTTPStatus.TOO_MANY_REQUESTS, LOCKED_OUT.format(minutes=minutes))


def too_many_logins(request: HttpRequest) -> HttpResponse:
    return _refuse(request, HTTPStatus.TOO_MANY_REQUESTS, TOO_MANY_LOGINS)


def _refuse(request: HttpRequest, status: HTTPStatus, words: str = "") -> HttpResponse:
    words = words or WORDS[status]
    is_known = hasattr(request, "user")  # false where the request was refused before its user was known
    if status in LOGGED:
        # By the name of the page: its path may name somebody.
        page = request.resolver_match.view_name if request.resolver_match else ""
        user_id = request.user.pk if is_known else None
        log.warning("page_refused", status=int(status), page=page, user_id=user_id, address=client_address(request))
    if not is_known or not request.path.startswith(reverse("admin:index")):
        return HttpResponse(words, status=status)
    layout = "admin/base_site.html" if admin.site.has_permission(request) else "unfold/layouts/unauthenticated.html"
    context = admin.site.each_context(request) | {"title": status.phrase, "words": words, "layout": layout}
    return render(request, "console/refused.html", context, status=status)
