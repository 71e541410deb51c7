"""Queue of logins: each web process checks one password at a time, because a check needs a core for half a second.

    network with a recent login ──▶ the reserved slot ────────────────────────┐
    any other network: one form each, two in all ──▶ a slot ──▶ form is read ─┴▶ waits ──▶ password is checked
    no free slot ──▶ refused

An attacker with many networks, or with forms that never end, holds at most three threads of each web process. Networks
with a recent login in the same process still get in; a login from another network may have to be sent again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve

from pushserver.console.pages.accounts.addresses import client_network
from pushserver.console.pages.accounts.refusals import too_many_logins

MAX_ANONYMOUS = 2
MAX_REMEMBERED = 100
TIMEOUT_SECONDS = 5.0
SAFE = {"GET", "HEAD", "OPTIONS"}  # requests without a form


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
        slot = self._enter(network)
        try:
            yield slot is not None
        finally:
            if slot is not None:
                with self._lock:
                    self._here.discard(slot)

    @contextmanager
    def wait(self) -> Iterator[bool]:
        """Wait until no other login is checked. Yield whether that happened within TIMEOUT_SECONDS."""
        is_ours = self._checking.acquire(timeout=TIMEOUT_SECONDS)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._checking.release()

    def _enter(self, network: str) -> str | None:
        """Take a slot and return its name, or None if no slot is free."""
        with self._lock:
            slots = {KNOWN: network in self._known, network: len(self._here - {KNOWN}) < MAX_ANONYMOUS}
            slot = next((slot for slot, is_free in slots.items() if is_free and slot not in self._here), None)
            if slot is not None:
                self._here.add(slot)
            return slot


KNOWN = "known"  # slot of all remembered networks; no network has this name
LOGINS = LoginQueue()


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
        with LOGINS.slot(client_network(request) or "") as has_slot:
            return self._get_response(request) if has_slot else too_many_logins(request)


def _is_for_programs(request: HttpRequest) -> bool:
    try:
        return getattr(resolve(request.path_info).func, "csrf_exempt", False)
    except Resolver404:
        return False
