"""Logins: locks against guessing, the queue of password checks, and their log entries.

Locks count the wrong logins of `FailedLogin.COUNTED`:

    a name from one network ─────── 5 ──▶ locked
    a network, whatever the names ─ 20 ─┬▶ locked, but not for a name in a browser in which it has logged in
    a name, whatever the networks ─ 50 ─┘

So nobody keeps staff out by guessing. One network adds at most five to the count of a name, because a client that is
locked out is not counted. A browser is known by a cookie that only this server can make.

Each web process checks one password at a time, because a check needs a core for half a second:

    network with a recent login ──▶ the reserved slot ────────────────────────┐
    any other network: one form each, two in all ──▶ a slot ──▶ form is read ─┴▶ waits ──▶ password is checked
    no free slot ──▶ refused

An attacker with many networks, or with forms that never end, holds at most three threads of each web process. Networks
with a recent login in the same process still get in; a login from another network may have to be sent again.
"""

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth import signals
from django.core.exceptions import ValidationError
from django.db.models import F, Q, Sum
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.crypto import salted_hmac

from pushserver.console.models import FailedLogin
from pushserver.console.pages.labels import PASSWORD_RULE
from pushserver.console.parts import parts
from pushserver.console.toolkit.throttling import client_address, client_network

log = structlog.get_logger(__name__)

# Locks against guessing -----------------------------------------------------------------------------------------------
OF_BOTH = 5
OF_NETWORK = 20
OF_NAME = 50
KNOWN_SECONDS = 365 * 24 * 3600


class LockedOutError(Exception):
    """There were too many wrong logins as this name, from this network, or both."""


def refuse_guesses(request: HttpRequest, name: str) -> None:
    """Raise LockedOutError if no login as this name from this network is allowed at the moment."""
    of_name, of_network = Q(username=name), Q(network=client_network(request))
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
        network=client_network(request),
        defaults={"count": F("count") + 1, "last_at": timezone.now()},
        create_defaults={"count": 1, "last_at": timezone.now()},
    )
    refuse_guesses(request, name)


def forget_failures(request: HttpRequest, name: str) -> None:
    """Forget the wrong logins as a name from a network from which it has logged in."""
    FailedLogin.objects.filter(username=name, network=client_network(request)).delete()


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


def _counted_from() -> datetime:
    return timezone.now() - FailedLogin.COUNTED


def _is_known(request: HttpRequest, name: str) -> bool:
    shown = request.COOKIES.get(settings.KNOWN_BROWSER_COOKIE_NAME, "")
    return hmac.compare_digest(shown.encode(), _proof(name).encode())


def _proof(name: str) -> str:
    return salted_hmac("known browser", name, algorithm="sha256").hexdigest()


# The queue of password checks -----------------------------------------------------------------------------------------
MAX_ANONYMOUS = 2
MAX_REMEMBERED = 100
TIMEOUT_SECONDS = 5.0


class LoginQueue:
    """Slots for the logins that this process reads and checks, by network."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._known: dict[str, None] = {}
        self._lock = Lock()
        self._checking = Lock()

    def remember(self, network: str) -> None:
        """Note a successful login from a network."""
        with self._lock:
            self._known.pop(network, None)
            self._known[network] = None
            if len(self._known) > MAX_REMEMBERED:
                self._known.pop(next(iter(self._known)))

    @contextmanager
    def slot(self, network: str) -> Iterator[bool]:
        """Hold a slot for a form from this network. Yield whether one was free."""
        with self._lock:
            slots = {KNOWN: network in self._known, network: len(self._here - {KNOWN}) < MAX_ANONYMOUS}
            free = {slot for slot, is_free in slots.items() if is_free} - self._here
            own = {KNOWN} & free or free
            self._here |= own
        try:
            yield bool(own)
        finally:
            with self._lock:
                self._here -= own

    @contextmanager
    def wait(self) -> Iterator[bool]:
        """Wait until no other login is checked. Yield whether that happened within TIMEOUT_SECONDS."""
        is_ours = self._checking.acquire(timeout=TIMEOUT_SECONDS)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._checking.release()


KNOWN = "known"  # slot of all remembered networks; no network has this name
LOGINS = LoginQueue()


# What follows a login -------------------------------------------------------------------------------------------------


@receiver(signals.user_logged_in, dispatch_uid="log_login")
def log_login(request: HttpRequest, user: Any, **_rest: object) -> None:
    """Log a login, remember its network, and forget the failed logins before it."""
    LOGINS.remember(client_network(request))
    forget_failures(request, user.get_username())
    log.info("login", user_id=user.pk, address=client_address(request))


@receiver(signals.user_logged_out, dispatch_uid="log_logout")
def log_logout(request: HttpRequest, user: Any, **_rest: object) -> None:
    """Log a logout, also one by `StaffMiddleware`."""
    log.info("logout", user_id=user and user.pk, address=client_address(request))


@receiver(signals.user_login_failed, dispatch_uid="log_failed_login")
def log_failed_login(credentials: dict[str, Any], request: HttpRequest | None = None, **_rest: object) -> None:
    """Log and count a failed login. Raise LockedOutError if it was one too many."""
    log.warning("login_failed", address=request and client_address(request))
    if request:
        count_failure(request, credentials["username"])


# New passwords --------------------------------------------------------------------------------------------------------
# The words that OWASP ASVS 6.1.2 asks for, beside the names of gateways and bridges.
WORDS = ("status", "push", "notification", "server", "console", "admin", "password", "operator")
# Characters of a password that are no part of these words, at least.
REST_CHARACTERS = 8


class NoWordOfOurs:
    """Validator that refuses passwords that are little more than words of this server, in any case."""

    def validate(self, password: str, user: Any = None) -> None:  # noqa: ARG002 - the signature of a validator
        """Raise ValidationError when fewer than REST_CHARACTERS are left without the words."""
        rest = password.casefold()
        for word in (*WORDS, *(part.name for part in parts())):
            rest = rest.replace(word, "")
        if len(rest) < min(REST_CHARACTERS, len(password)) and len(rest) < len(password):
            raise ValidationError(self.get_help_text(), code="word_of_ours")

    def get_help_text(self) -> str:
        return PASSWORD_RULE.format(count=REST_CHARACTERS)
