"""Locks against guessing. Each counts the wrong logins of `FailedLogin.COUNTED`.

    a name from one network ─────── 5 ──▶ locked
    a network, whatever the names ─ 20 ─┬▶ locked, but not for a name in a browser in which it has logged in
    a name, whatever the networks ─ 50 ─┘

So nobody keeps staff out by guessing. One network adds at most five to the count of a name, because a client that is
locked out is not counted. A browser is known by a cookie that only this server can make.
"""

import hmac
from datetime import datetime

from django.conf import settings
from django.db.models import F, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.crypto import salted_hmac

from pushserver.console.pages.accounts.addresses import client_network
from pushserver.models import FailedLogin

OF_BOTH = 5
OF_NETWORK = 20
OF_NAME = 50
KNOWN_SECONDS = 365 * 24 * 3600


class LockedOutError(Exception):
    """There were too many wrong logins as this name, from this network, or both."""


def refuse_guesses(request: HttpRequest, name: str) -> None:
    """Raise LockedOutError if no login as this name from this network is allowed at the moment."""
    of_name, of_network = Q(username=name), Q(network=_network(request))
    counts = FailedLogin.objects.filter(last_at__gte=_counted_from()).aggregate(
        of_both=Sum("count", filter=of_name & of_network, default=0),
        of_network=Sum("count", filter=of_network, default=0),
        of_name=Sum("count", filter=of_name, default=0),
    )
    is_beyond = counts["of_network"] >= OF_NETWORK or counts["of_name"] >= OF_NAME
    if counts["of_both"] >= OF_BOTH or (is_beyond and not _is_known(request, name)):
        raise LockedOutError


def count_failure(request: HttpRequest, name: str) -> None:
    """Count a wrong login. Raise LockedOutError if no further one is allowed."""
    FailedLogin.objects.filter(last_at__lt=_counted_from()).delete()
    FailedLogin.objects.update_or_create(
        username=name,
        network=_network(request),
        defaults={"count": F("count") + 1, "last_at": timezone.now()},
        create_defaults={"count": 1, "last_at": timezone.now()},
    )
    refuse_guesses(request, name)


def forget_failures(request: HttpRequest, name: str) -> None:
    """Forget the wrong logins as a name from a network from which it has logged in."""
    FailedLogin.objects.filter(username=name, network=_network(request)).delete()


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


def _network(request: HttpRequest) -> str:
    return client_network(request) or ""


def _counted_from() -> datetime:
    return timezone.now() - FailedLogin.COUNTED


def _is_known(request: HttpRequest, name: str) -> bool:
    shown = request.COOKIES.get(settings.KNOWN_BROWSER_COOKIE_NAME, "")
    return hmac.compare_digest(shown.encode(), _proof(name).encode())


def _proof(name: str) -> str:
    return salted_hmac("known browser", name, algorithm="sha256").hexdigest()
