"""Tests of the config check against the development gorush and against servers that answer anything else."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import httpx
import pytest
from django.conf import LazySettings
from django.core.cache import cache
from structlog.testing import capture_logs

from embedded.servers.ports import free_port
from notifications.gateways.gorush.config_check.checking import check_all
from notifications.gateways.gorush.config_check.saved import NOTICES
from notifications.messages import Outcome
from registrations.messages import TokenType
from tests import factories

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = b"""core: {sync: true, worker_num: 256}
queue: {engine: local}
ios: {enabled: true, max_retry: 0}
android: {enabled: true, max_retry: 0}
"""
NO_ERRORS = b'{"ios": {"push_error": 0}, "android": {"push_error": 0}}'


@pytest.fixture(autouse=True)
def empty_cache(settings: LazySettings) -> Iterator[None]:
    settings.GORUSH_HOOK_SECRET = ""
    settings.GORUSH_SHIELDED = False
    cache.clear()
    yield
    cache.clear()


class Gorush(BaseHTTPRequestHandler):
    """A server that answers ``answers[path]``: status and body."""

    answers: dict[str, tuple[int, bytes]]
    headers_also: dict[str, str]

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, b"404 page not found"))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **self.headers_also}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        pass


Serve = Callable[..., tuple[str, dict[str, tuple[int, bytes]]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[tuple[ThreadingHTTPServer, Thread]] = []

    def start(config: bytes = GOOD, status: int = 200, counters: bytes = NO_ERRORS, **headers: str):
        answers = {"/api/config": (status, config), "/api/stat/app": (200, counters)}
        handler = type("Handler", (Gorush,), {"answers": answers, "headers_also": headers})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}", answers

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def found(url: str, now: datetime = NOW) -> list[str]:
    check_all([url], now=now)
    return [complaint.id for complaint in NOTICES.read([url])[url].complaints]


def test_the_development_gorush_runs_as_we_need_it() -> None:
    port = free_port()
    command = [sys.executable, "-m", "embedded.gorush", "--port", str(port), "--hide-token"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ) as gorush:
        try:
            wait_for(url)
            assert found(url) == []
        finally:
            gorush.terminate()


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/healthz", trust_env=False)
        except httpx.HTTPError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the development gorush does not start")


@pytest.mark.parametrize("status", [200, 201])
def test_versions_that_answer_200_or_201_are_read(serve: Serve, status: int) -> None:
    assert found(serve(status=status)[0]) == []


@pytest.mark.parametrize(
    ("config", "status"),
    [
        (b"<html><body>It works!</body></html>", 200),
        (b"", 200),
        (GOOD, 500),
        (GOOD, 302),
        (GOOD + b"#" * 1024 * 1024, 200),
        (b"#" * 20 * 1024 * 1024, 200),
        (b"[" * 1024 * 512, 200),
    ],
    ids=["html", "empty", "error", "redirect", "over 1 MiB", "20 MB", "deep"],
)
def test_an_answer_that_is_no_configuration_is_named(serve: Serve, config: bytes, status: int) -> None:
    assert found(serve(config, status, Location="http://127.0.0.1:1/")[0]) == ["unreadable"]


def test_an_answer_that_lies_about_its_encoding_is_no_configuration(serve: Serve) -> None:
    assert found(serve(**{"Content-Encoding": "gzip"})[0]) == ["unreadable"]


def test_a_gorush_that_does_not_listen_is_unreachable() -> None:
    assert found(f"http://127.0.0.1:{free_port()}") == ["unreachable"]


def test_a_gorush_that_hangs_is_unreachable_and_delays_no_check(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    release = Event()
    monkeypatch.setattr("notifications.gateways.gorush.config_check.checking.TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(Gorush, "do_GET", lambda _: release.wait(10))
    url, started = serve()[0], time.monotonic()
    try:
        assert found(url) == ["unreachable"]
    finally:
        release.set()
    assert time.monotonic() - started < 5


def test_each_gorush_has_its_own_notice(serve: Serve) -> None:
    urls = [serve()[0], serve(GOOD.replace(b"sync: true", b"sync: false"))[0]]
    check_all(urls, now=NOW)
    notices = NOTICES.read(urls)
    assert [[complaint.id for complaint in notices[url].complaints] for url in urls] == [[], ["not_sync"]]


def test_only_platforms_with_active_routes_are_needed(serve: Serve) -> None:
    url = serve(GOOD.replace(b"ios: {enabled: true", b"ios: {enabled: false"))[0]
    assert found(url) == []
    factories.make_route(token_type=TokenType.APN)
    assert found(url) == ["platform_off_ios"]


def test_a_complaint_keeps_the_time_it_was_first_seen(serve: Serve) -> None:
    url = serve(GOOD.replace(b"local", b"redis"))[0]
    later = NOW + timedelta(minutes=5)
    found(url)
    found(url, later)
    notice = NOTICES.read([url])[url]
    assert (notice.looked_at, notice.since) == (later, {"queue_engine": NOW})


def test_each_new_and_each_ended_complaint_is_logged_once(serve: Serve) -> None:
    url, answers = serve(GOOD.replace(b"sync: true", b"sync: false"))
    with capture_logs() as logs:
        found(url)
        found(url)
        answers["/api/config"] = (200, GOOD)
        found(url)
        found(url)
    events = [(entry["log_level"], entry["event"], entry["complaint"]) for entry in logs]
    assert events == [("warning", "gorush_deviates", "not_sync"), ("info", "gorush_deviates_no_more", "not_sync")]


def test_failures_that_gorush_does_not_report_are_noticed(serve: Serve) -> None:
    url, answers = serve()
    assert found(url) == []
    answers["/api/stat/app"] = (200, b'{"ios": {"push_error": 2}, "android": {"push_error": 1}}')
    attempt = {"token_type": TokenType.APN, "started_at": NOW + timedelta(minutes=1)}
    factories.make_attempt(outcome=Outcome.DELIVERED, **attempt)
    factories.make_attempt(outcome=Outcome.DEAD, **attempt)
    factories.make_attempt(outcome=None, **attempt)

    assert found(url, NOW + timedelta(minutes=5)) == ["hidden_failures_android"]


def test_no_secret_of_a_configuration_is_kept_or_logged(serve: Serve) -> None:
    secretive = (
        b"core: {sync: secret-a, address: secret-b, feedback_hook_url: 'http://secret-c/'}\nqueue: {engine: secret-d}"
    )
    url = serve(secretive)[0]
    with capture_logs() as logs:
        assert "queue_engine" in found(url)
    assert "secret" not in repr(logs)
    assert "secret" not in repr(cache.get(NOTICES.cache.key(url)))
