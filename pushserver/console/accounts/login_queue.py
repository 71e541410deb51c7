"""One login at a time: checking a password takes a core for a good part of a second, and anybody may send many.

    a network that somebody logged in from lately ──▶ has a place of its own ──┐
    any other: one form of each, two in all ──▶ has a place ──▶ it is read ────┴▶ waits for its turn ──▶ is checked
    no place ──▶ is refused

So somebody who guesses from many networks, or sends forms that never end, holds three threads of each web process at
most, and keeps out no network that its process saw log in; a login from elsewhere may have to be sent again meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve

from pushserver.console.accounts.addresses import client_network
from pushserver.console.accounts.refusals import too_many_logins

MAX_ANONYMOUS = 2
MAX_REMEMBERED = 100
TIMEOUT_SECONDS = 5.0
SAFE = {"GET", "HEAD", "OPTIONS"}  # they have no form


class LoginQueue:
    """The logins that this process checks, by the networks that they come from."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._known: dict[str, None] = {}
        self._lock = Lock()
        self._checking = Lock()

    def remember(self, network: str) -> None:
        """Note that somebody has logged in from a network."""
        with self._lock:
            self._known.pop(network, None)
            self._known[network] = None
            if len(self._known) > MAX_REMEMBERED:
                self._known.pop(next(iter(self._known)))

    @contextmanager
    def slot(self, network: str) -> Iterator[bool]:
        """Take a place for what somebody of this network sends, and tell whether there was one."""
        slot = self._enter(network)
        try:
            yield slot is not None
        finally:
            if slot is not None:
                with self._lock:
                    self._here.discard(slot)

    @contextmanager
    def wait(self) -> Iterator[bool]:
        """Wait for the turn of a login that has a place, and tell whether it came."""
        is_ours = self._checking.acquire(timeout=TIMEOUT_SECONDS)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._checking.release()

    def _enter(self, network: str) -> str | None:
        """Return the place that a login has got, or None."""
        with self._lock:
            slots = {KNOWN: network in self._known, network: len(self._here - {KNOWN}) < MAX_ANONYMOUS}
            slot = next((slot for slot, is_free in slots.items() if is_free and slot not in self._here), None)
            if slot is not None:
                self._here.add(slot)
            return slot


KNOWN = "known"  # the place of those that are remembered: no network is written so
LOGINS = LoginQueue()


class AnonymousFormsMiddleware:
    """Reads what somebody who is not logged in sends only when there is a place for it, to whichever page: Django reads
    a form to check it against forgeries before the page refuses it. Pages of programs are exempt from that check, and
    refuse who shows no secret before they read anything.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method in SAFE or _is_for_programs(request) or request.user.is_authenticated:
            return self._get_response(request)
        with LOGINS.slot(client_network(request) or "") as has_slot:
            return self._get_response(request) if has_slot else too_many_logins(request)


def _is_for_programs(request: HttpRequest) -> bool:
    try:
        return getattr(resolve(request.path_info).func, "csrf_exempt", False)
    except Resolver404:
        return False
