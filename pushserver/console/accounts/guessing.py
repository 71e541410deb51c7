"""Locks against guessing. Each counts the wrong logins of the last `AXES_COOLOFF_TIME`.

    a name from one network ─────── 5 ──▶ locked
    a network, whatever the names ─ 20 ─┬▶ locked, but not for a name in a browser in which it has logged in
    a name, whatever the networks ─ 50 ─┘

So nobody keeps staff out by guessing. One network adds at most five to the count of a name, because a client that is
locked out is not counted. A browser is known by a cookie that only this server can make.
"""

import hmac
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_client_username
from axes.models import AccessAttempt
from django.conf import settings
from django.db.models import Q, Sum
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import salted_hmac

OF_NETWORK = 20
OF_NAME = 50
KNOWN_SECONDS = 365 * 24 * 3600


class Guesses(AxesDatabaseHandler):  # type: ignore[misc]  # axes has no types
    """The counts of django-axes, and the two wider ones."""

    def get_failures(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        """Return the wrong logins of this name from this network, or the limit if a wider count is beyond its own."""
        failures, name = int(super().get_failures(request, credentials)), get_client_username(request, credentials)
        if failures >= settings.AXES_FAILURE_LIMIT or _is_known(request, name):
            return failures
        network = Q(ip_address=request.axes_ip_address)  # type: ignore[attr-defined]
        counts = AccessAttempt.objects.filter(attempt_time__gte=get_cool_off_threshold(request)).aggregate(
            of_network=Sum("failures_since_start", filter=network, default=0),
            of_name=Sum("failures_since_start", filter=Q(username=name), default=0),
        )
        is_beyond = counts["of_network"] >= OF_NETWORK or counts["of_name"] >= OF_NAME
        return settings.AXES_FAILURE_LIMIT if is_beyond else failures


def remember_browser(request: HttpRequest, response: HttpResponse) -> None:
    """Let the browser show later that this person has logged in with it."""
    response.set_cookie(
        settings.KNOWN_BROWSER_COOKIE_NAME,
        _proof(request.user.get_username()),
        max_age=KNOWN_SECONDS,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )


def _is_known(request: HttpRequest, name: str | None) -> bool:
    shown = request.COOKIES.get(settings.KNOWN_BROWSER_COOKIE_NAME, "")
    return bool(name) and hmac.compare_digest(shown.encode(), _proof(name or "").encode())


def _proof(name: str) -> str:
    return salted_hmac("known browser", name, algorithm="sha256").hexdigest()
