"""Probes: `/healthz` says that this process runs, `/readyz` whether a message would make it through, and if not, why.

Both are open to anybody, so their answers name hosts and queues, but no user, password, path or exception text.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from ssl import SSLContext
from threading import Lock
from time import monotonic
from typing import Any, LiteralString

import httpx
import psycopg
import redis
from django.conf import settings
from django.core.cache import cache as shared_cache
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from kit.db.postgresql.versions import TooOldError, refuse_too_old
from kit.http.notices import Board
from kit.http.urls import host_of
from notifications import standstill
from notifications.gateways.gorush.config_check.board import BOARD as GORUSH_BOARD
from pushserver.celery import HEARTBEAT_KEY
from pushserver.release import Migration, known_migrations
from registrations.quotas import STORED_REGISTRATIONS
from spark_reports.status import pinned
from waku_bridge import canary
from waku_bridge.node.config_check.board import BOARD as NODE_BOARD
from waku_bridge.reading.live import LAST_READ_KEY
from xmpp_bridge.canary import board as xmpp_canary
from xmpp_bridge.component.board import read as component_state
from xmpp_bridge.registering import STORED_DEVICES

TIMEOUT_SECONDS = 2
# An answer of that age holds while it is being renewed, so that nobody waits for a server that hangs.
GRACE_SECONDS = 70
READY = "ready"
# Of MAX_REGISTRATIONS and XMPP_MAX_DEVICES.
FILLING_FROM = 0.8
# Without a worker for one of these queues messages or their answers are not processed. Reports can wait.
NEEDED_QUEUES = ("batches", "maintenance", "keys")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    It is good when ``reason`` is empty; ``parts`` tells which of several servers or queues are good.
    """

    reason: str = ""
    parts: dict[str, bool] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the check as `/readyz` shows it."""
        answer: dict[str, Any] = {"ok": not self.reason}
        if self.reason:
            answer["reason"] = self.reason
        if self.parts is not None:
            answer["parts"] = self.parts
        return answer


@never_cache
@require_safe
def healthz(_request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(_request: HttpRequest) -> HttpResponse:
    answer = REMEMBERED.report()
    response = JsonResponse(answer, status=200 if answer["status"] == READY else 503)
    # Django logs a 503 as an error of the server, but this one is a regular answer, repeated every few seconds.
    setattr(response, "_has_been_logged", True)  # noqa: B010 - undeclared, hence unknown to type checkers
    return response


class Remembered:
    """The answer of `/readyz`, kept for a moment: however often and by how many it is asked, the servers behind are
    asked once in a while, by one thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[str, Any] = {}
        self._asked_at = float("-inf")

    def report(self) -> dict[str, Any]:
        """Return what is known, or find out. While another thread does, the last answer still holds."""
        age = monotonic() - self._asked_at
        if age < settings.READYZ_SECONDS or (age < GRACE_SECONDS and self._lock.locked()):
            return self._known
        with self._lock:
            if monotonic() - self._asked_at >= settings.READYZ_SECONDS:
                self._known = report()
                self._asked_at = monotonic()
            return self._known


REMEMBERED = Remembered()


def report() -> dict[str, Any]:
    """Return the answer of `/readyz` as it is written in JSON."""
    checks = run_checks()
    return {
        "status": "not ready" if any(check.reason for check in checks.values()) else READY,
        "checks": {name: check.to_json() for name, check in checks.items()},
        "warnings": list(warnings(is_migrated=not checks["database"].reason)),
    }


def run_checks() -> dict[str, Check]:
    """Run all checks side by side, so that together they take as long as the slowest.

    The cache is read by this thread, because each thread would make a connection of its own to it.
    """
    with ThreadPoolExecutor(len(ASKING)) as pool:
        running = {name: pool.submit(check) for name, check in ASKING.items()}
        beats = _fresh([*_node_keys().values(), *_queue_keys(NEEDED_QUEUES).values()])
        found = {name: future.result() for name, future in running.items()}
    xmpp = {"xmpp": check_xmpp()} if settings.XMPP_COMPONENT_JID else {}
    return found | {"node": check_nodes(beats), "worker": check_workers(beats)} | xmpp


def check_database() -> Check:
    """Check that PostgreSQL answers and that all migrations are applied."""
    try:
        applied = frozenset(_ask("SELECT app, name FROM django_migrations", table="django_migrations"))
    except TooOldError as error:
        return Check(str(error))
    except psycopg.Error:
        return Check("PostgreSQL does not answer")
    missing = len(_known_migrations() - applied)
    return Check(f"migrations not applied: {missing}" if missing else "")


def _ask(query: LiteralString, *, table: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of a query, asked over a new connection, or none while its ``table`` is not there.

    An open connection would hide that no new one can be made, and may hang. A query of a table that is not there yet
    would leave an error in PostgreSQL's log at each first start.
    """
    parameters = connection.get_connection_params() | {"connect_timeout": TIMEOUT_SECONDS}
    with closing(psycopg.connect(**parameters)) as own:
        refuse_too_old(own.info.server_version)
        own.execute(f"SET LOCAL statement_timeout = '{TIMEOUT_SECONDS}s'")
        if table and own.execute("SELECT to_regclass(%s)", [table]).fetchall() == [(None,)]:
            return []
        return own.execute(query).fetchall()


@cache
def _known_migrations() -> frozenset[Migration]:
    """Return the migrations of the code. They are read once, as they change only with a restart.

    Django's loader finds no migrations that depend on those of the console where that is not installed: in workers,
    which ask for the lights.
    """
    return frozenset(known_migrations())


def check_broker() -> Check:
    """Check that Redis answers."""
    client = redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
    )
    try:
        client.ping()
    except redis.RedisError:
        return Check("Redis does not answer")
    finally:
        client.close()
    return Check()


def check_nodes(beats: Collection[str]) -> Check:
    """Check that at least one node is read. One is enough, as all of them carry the same messages."""
    found = [(host_of(url), key in beats) for url, key in _node_keys().items()]
    return _at_least_one(found, "no node was read lately")


def _node_keys() -> dict[str, str]:
    return {url: LAST_READ_KEY.format(url=url) for url in settings.WAKU_NODES}


def check_xmpp() -> Check:
    """Check that we are connected to the XMPP server as its component."""
    return Check(component_state().reason)


def check_gorush() -> Check:
    """Check that at least one gorush answers."""
    urls: Sequence[str] = settings.GORUSH_URLS
    with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS, verify=_certificates()) as client:
        return _at_least_one([(host_of(url), _is_alive(client, url)) for url in urls], "no gorush answers")


@cache
def _certificates() -> SSLContext:
    """Return the TLS context, which is made once because that takes longer than the whole check."""
    return httpx.create_ssl_context(trust_env=False)


def _is_alive(client: httpx.Client, url: str) -> bool:
    try:
        return not client.get(f"{url}/healthz").is_server_error
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def warnings(*, is_migrated: bool = True) -> Iterator[dict[str, str]]:
    """Yield what an operator should know of although messages are taken. A warning never makes a server unready.

    Before the database is migrated, nothing is asked of its tables.
    """
    if is_migrated:
        yield from _standstill()
        yield from _filling()
    yield from _warnings(GORUSH_BOARD, settings.GORUSH_URLS)
    yield from _warnings(NODE_BOARD, list(dict.fromkeys([*settings.WAKU_NODES, *settings.WAKU_STORE_NODES])))
    yield from _canary_warnings()
    yield from _xmpp_canary_warnings()
    if (reports := pinned()) and reports.is_alarm:
        yield {"reports": "", "id": "reports_missing", "what": reports.words}


def _standstill() -> Iterator[dict[str, str]]:
    """Warn while no push is sent.

    The console shows who stopped what and why; `check_database` reports a database that is away.
    """
    with suppress(psycopg.Error):
        if stopped := standstill.stops(standstill.read(_ask(standstill.SWITCHES))):
            kind = "draining" if stopped[0].state == standstill.DRAINED else "channels_halted"
            yield {"server": "delivery", "id": kind, "what": standstill.anonymous(stopped)}


def _filling() -> Iterator[dict[str, str]]:
    """Warn when most of the registrations, or of the devices of XMPP users, that may be stored are."""
    with suppress(psycopg.Error):
        [(registrations, devices)] = _ask(f"SELECT {STORED_REGISTRATIONS}, {STORED_DEVICES}")
        for what, name, stored in (
            ("registrations", "MAX_REGISTRATIONS", registrations),
            ("devices of XMPP users", "XMPP_MAX_DEVICES", devices),
        ):
            most = getattr(settings, name)
            if stored >= FILLING_FROM * most:
                told = f"{stored} of {most} {what} are stored: raise {name}"
                yield {"server": "registrations", "id": "registrations_filling", "what": told}


def _warnings(board: Board, urls: Sequence[str]) -> Iterator[dict[str, str]]:
    notices = board.read(urls)
    for url in urls:
        if url not in notices:
            yield {board.peer: host_of(url), "id": "not_watched", "what": "its configuration was not looked at lately"}
        else:
            for complaint in notices[url].complaints:
                yield {board.peer: host_of(url), "id": complaint.id, "what": complaint.what}


def _canary_warnings() -> Iterator[dict[str, str]]:
    last = canary.last()
    if last and last.cause:
        yield {"canary": last.broken_link, "id": f"canary_{last.cause}", "what": last.words}
    elif not last and canary.is_expected():
        yield {"canary": "", "id": "canary_missing", "what": "the canary made no round trip lately"}


def _xmpp_canary_warnings() -> Iterator[dict[str, str]]:
    last = xmpp_canary.last()
    if last and last.cause:
        yield {"xmpp_canary": last.broken_link, "id": f"xmpp_canary_{last.cause}", "what": last.words}
    elif not last and xmpp_canary.is_expected():
        yield {"xmpp_canary": "", "id": "xmpp_canary_missing", "what": "the canary of XMPP made no round trip lately"}


def check_workers(beats: Collection[str]) -> Check:
    """Check that a worker serves each queue that messages need."""
    parts = {queue: key in beats for queue, key in _queue_keys(NEEDED_QUEUES).items()}
    return Check("" if all(parts.values()) else "queues without a worker", parts)


def have_workers(queues: Iterable[str]) -> dict[str, bool]:
    """Return for each of these queues whether a worker serves it."""
    key_of = _queue_keys(queues)
    beats = _fresh(key_of.values())
    return {queue: key in beats for queue, key in key_of.items()}


def _queue_keys(queues: Iterable[str]) -> dict[str, str]:
    return {queue: HEARTBEAT_KEY.format(queue=queue) for queue in queues}


def _fresh(keys: Collection[str]) -> set[str]:
    """Return those of these keys that were written within their time to live."""
    try:
        return set(shared_cache.get_many(keys))
    except redis.RedisError:
        return set()  # `check_broker` says why


def _at_least_one(found: Sequence[tuple[str, bool]], otherwise: str) -> Check:
    """Combine the results of servers of which one is enough.

    URLs that differ only in their path share a host and are shown as one.
    """
    parts = {host: any(ok for other, ok in found if other == host) for host, _ in found}
    return Check("" if any(parts.values()) else otherwise, parts)


# Each of these asks a server and may take as long as its time-out.
ASKING: dict[str, Callable[[], Check]] = {
    "database": check_database,
    "broker": check_broker,
    "gorush": check_gorush,
}
