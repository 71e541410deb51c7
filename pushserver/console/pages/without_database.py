"""The console without its database: it answers every request within two seconds, from memory.

Sessions are in the database, so meanwhile no user is known. Everybody who reaches the console sees the page. It shows
what is down, since when, and what to do, and nothing else.
"""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from http import HTTPStatus
from threading import Lock
from time import monotonic

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from django.views import defaults

from kit.db.reasons import UNAVAILABLE, is_closed, reason
from kit.processes import once
from pushserver.console.health import asking, incidents
from pushserver.console.health.indicators import DATABASE
from pushserver.console.health.verdicts import Facts, Verdict
from pushserver.console.pages.middleware import REFRESH_HEADER

# A page opens without a check of PostgreSQL for this time after the last good answer.
FRESH_SECONDS = 0.5
ANSWER_SECONDS = 1.5
AGAIN_SECONDS = 2
PREFIX = "/admin/"


class DatabaseWatch:
    """State of the database as this process last saw it. Concurrent threads share one check."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="database-watch")
        self._lock = Lock()
        self._asked: Future[str] | None = None
        self._answered_at = float("-inf")
        self.since: datetime | None = None  # beginning of the absence, by the clock of this machine
        self._found = ""  # reason of the absence

    def check(self) -> str:
        """Return the reason why the database cannot be used, or an empty text."""
        if monotonic() - self._answered_at < FRESH_SECONDS:
            return ""
        try:
            found = self._question().result(ANSWER_SECONDS)
        except TimeoutError:
            found = UNAVAILABLE
        self.note(found)
        return found

    def note(self, found: str) -> None:
        """Note the reason why the database cannot be used, or with an empty text that it answered.

        The end of an absence is noted as an incident.
        """
        with self._lock:
            since, known = self.since, self._found
            self.since, self._found = (since or timezone.now(), found) if found else (None, "")
            self._answered_at = float("-inf") if found else monotonic()
        if since and not found:
            now = timezone.now()
            incidents.note_past(incidents.incident_of(_verdict(known), since, now), now=now)

    def _question(self) -> Future[str]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = self._pool.submit(_ask)
            return self._asked


def _ask() -> str:
    found: str = asking.ask_database()["database"]
    return found


def _verdict(found: str) -> Verdict:
    [verdict] = DATABASE.verdicts(Facts(database=found))
    return verdict


@once
def database_watch() -> DatabaseWatch:
    """Return the watch of this process."""
    return DatabaseWatch()


class WithoutDatabaseMiddleware(MiddlewareMixin):
    """Answers in place of the console while the database is away. It stands before the middleware of sessions."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        found = database_watch().check() if request.path.startswith(PREFIX) else ""
        return _page(request, found) if found else None


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer for an unhandled exception; Django calls this. A failure of the database gets the page above."""
    error = sys.exc_info()[1]
    if not request.path.startswith(PREFIX) or error is None or not is_closed(error):
        return defaults.server_error(request)
    database_watch().note(found := reason(error))
    return _page(request, found)


def _page(request: HttpRequest, found: str) -> HttpResponse:
    indicator = _verdict(found)
    known = {
        "headline": indicator.headline,
        "since": database_watch().since,
        "first_step": indicator.first_step,
        "again_seconds": AGAIN_SECONDS,
    }
    html = render_to_string("console/without_database.html", known)
    headers = {"Retry-After": str(AGAIN_SECONDS), "Cache-Control": "no-store"}
    response = HttpResponse(html, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)
    if REFRESH_HEADER in request.headers:
        response.headers["HX-Refresh"] = "true"  # htmx then reloads the whole page
    return response
