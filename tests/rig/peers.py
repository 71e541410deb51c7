"""Peers of the server under test: gorush with the record of the pushes that reached Apple and Google through it, and
HTTP servers of single tests.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
from aiohttp import web
from aiohttp.typedefs import Handler

from embedded.node.node import Settings
from embedded.node.server import create_app
from embedded.servers.ports import free_port
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from kit.http import Connections, submit
from notifications.gateways.gorush.client import GorushGateway
from notifications.messages import NotificationType, Push, Result, app_key
from registrations.messages import TokenType
from tests.rig import server as processes
from tests.rig.server import Fleet
from waku_bridge.node import WakuNode

APP_TOPIC = "im.status.ethereum"
KEY_ID, TEAM_ID = "KEY1234567", "TEAM123456"
# Longer than the seven seconds in which the Firebase SDK repeats a push.
TIMEOUT_SECONDS = 20.0
SETTLING_SECONDS = 20.0
GORUSH = Path(os.environ.get("PEERS", ".peers")).resolve() / "gorush"
# The settings of a gorush that docs/gorush.md recommends.
RECOMMENDED = {
    "CORE_WORKER_NUM": "256",
    "CORE_QUEUE_NUM": "8192",
    "IOS_MAX_CONCURRENT_PUSHES": "256",
    "LOG_HIDE_TOKEN": "true",
    "LOG_HIDE_MESSAGES": "true",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. ``body`` is parsed JSON, or bytes if it is no JSON."""

    status: int
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """A gorush. ``record_url`` answers `/dev/pushes`: the development gorush itself, or the fakes behind a real one."""

    url: str
    record_url: str

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        return ask(self.url, method, path, body)

    def last_push(self) -> int:
        return int(ask(self.record_url, "GET", "/dev/pushes").body["last_id"])

    def pushes(self, *, since: int = 0) -> list[dict[str, Any]]:
        """Return the pushes that Apple and Google received, oldest first."""
        return list(ask(self.record_url, "GET", f"/dev/pushes?since={since}").body["pushes"])

    def pushes_to(self, token: str, *, at_least: int = 1) -> list[dict[str, Any]]:
        """Return the pushes to one device once there are enough. The gateway may time out before Apple and Google have
        them.
        """
        deadline = time.monotonic() + SETTLING_SECONDS
        while True:
            found = [push for push in self.pushes() if push["token"] == token]
            if len(found) >= at_least or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def counters(self) -> dict[str, Any]:
        """Return the counters once nothing is under way, as gorush answers a moment before it counts."""
        deadline = time.monotonic() + SETTLING_SECONDS
        while True:
            counters = dict(self.ask("GET", "/api/stat/app").body)
            ended = counters["success_tasks"] + counters["failure_tasks"]
            if ended == counters["submitted_tasks"] or time.monotonic() > deadline:
                return counters
            time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Servers:
    """Starter of gorushes on loopback. ``gorush`` is the real binary; all real ones share the fakes of Apple and
    Google.
    """

    fleet: Fleet
    gorush: Path
    fakes_port: int

    @property
    def fakes_url(self) -> str:
        return f"http://127.0.0.1:{self.fakes_port}"

    def development(self, name: str, *arguments: str) -> Server:
        port = free_port()
        options = ["--port", str(port), *arguments]
        self._start(python(name, "-m", "embedded.gorush", *options, stop_order=StopOrder.PEER), port)
        return Server(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}")

    def real(self, name: str, *, port: int | None = None, authority: str = "", **settings: str) -> Server:
        """Start a real gorush. ``settings`` are gorush's environment variables without the prefix. ``authority`` is a
        file of certificates to trust instead of the fakes'.
        """
        self.fakes()
        port = port or free_port()
        environment = self._environment(port) | {f"GORUSH_{key}": value for key, value in settings.items()}
        if authority:
            environment["SSL_CERT_FILE"] = authority
        spec = ProcessSpec(name=name, command=[str(self.gorush)], stop_order=StopOrder.PEER, environment=environment)
        self._start(spec, port)
        return Server(f"http://127.0.0.1:{port}", self.fakes_url)

    def fakes(self, port: int | None = None, folder: Path | None = None) -> str:
        """Start the shared fakes, or others on a port of their own. Return the name of the process."""
        port, folder = port or self.fakes_port, folder or self.fleet.folder
        name = f"fakes-{port}"
        if name not in self.fleet.running:
            arguments = ["tests.rig.providers", "--port", str(port), "--folder", str(folder)]
            self._start(python(name, "-m", *arguments, stop_order=StopOrder.PEER), port)
        return name

    def _start(self, spec: ProcessSpec, port: int) -> None:
        self.fleet.start(spec)
        processes.wait_for_http(f"http://127.0.0.1:{port}/healthz")

    def _environment(self, port: int) -> dict[str, str]:
        """Return the settings that docs/gorush.md recommends, with the proxy and the authority of the fakes."""
        folder = self.fleet.folder
        return {
            "GORUSH_CORE_ADDRESS": "127.0.0.1",
            "GORUSH_CORE_PORT": str(port),
            "GORUSH_CORE_SYNC": "true",
            "GORUSH_CORE_WORKER_NUM": "256",
            "GORUSH_IOS_MAX_CONCURRENT_PUSHES": "256",
            "GORUSH_CORE_HTTP_PROXY": self.fakes_url,
            "GORUSH_IOS_ENABLED": "true",
            "GORUSH_IOS_KEY_PATH": str(folder / "apple.p8"),
            "GORUSH_IOS_KEY_ID": KEY_ID,
            "GORUSH_IOS_TEAM_ID": TEAM_ID,
            "GORUSH_ANDROID_ENABLED": "true",
            "GORUSH_ANDROID_KEY_PATH": str(folder / "google.json"),
            "GORUSH_LOG_HIDE_TOKEN": "false",
            "SSL_CERT_FILE": str(folder / "ca.pem"),
        }


def ask(
    url: str, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a request without a client that normalizes paths, follows redirects or reads proxies from the
    environment.
    """
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()
    is_json = headers.get("content-type", "").startswith("application/json") and content
    return Answer(response.status, json.loads(content) if is_json else content, headers)


def break_peer(url: str, **faults: object) -> None:
    """Set faults of a peer, and fail if it did not accept them, as the test would otherwise prove nothing."""
    answer = ask(url, "POST", "/dev/faults", json.dumps(faults).encode())
    assert answer.status == HTTPStatus.OK, answer.body


def mend_peer(url: str) -> None:
    ask(url, "DELETE", "/dev/faults")


def send(urls: Sequence[str], push: Push, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Result:
    """Send a push with the gateway and the HTTP client of production."""

    async def main() -> Result:
        async with Connections(silent_seconds=timeout_seconds) as client:
            return await GorushGateway(urls, client).send(push)

    return replace(asyncio.run(main()), latency_ms=0)


def new_push(token_type: TokenType, fate: str = "", message: bytes = b"ciphertext") -> Push:
    """Return a push to a new device."""
    unique = uuid.uuid4().hex
    return Push(
        notification_id=7,
        attempt_number=1,
        app=app_key(token_type, APP_TOPIC),
        address=(fate + unique).encode(),
        type=NotificationType.MESSAGE,
        public_key_hash=b"\x0a" * 64,
        chat_id=b"\x0b" * 64,
        message=message,
        collapse_id=unique,
    )


class QuickServer(ThreadingHTTPServer):
    """A server to which a worker may open all its connections at once.

    Beyond the queue of five, which is Python's default, Linux lets connections wait for seconds.
    """

    request_queue_size = 128


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    """Run a server during the block. A new subclass of ``handler`` answers the requests."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    with QuickServer(("127.0.0.1", 0), quiet) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Gorush(BaseHTTPRequestHandler):
    status = 200
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def serve_gorush() -> AbstractContextManager[ThreadingHTTPServer]:
    """Serve on a free port. A test sets ``status`` of the handler class to break it. ``asked`` counts the requests."""
    return serve(Gorush)


@contextmanager
def served(make: Callable[[], web.Application], port: int = 0) -> Iterator[tuple[str, web.Application]]:
    """Serve an application in this process, on the loop of its HTTP clients, and yield its URL and the application."""

    async def run() -> web.AppRunner:
        runner = web.AppRunner(make(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    port = port or free_port()
    runner = submit(run()).result()
    try:
        yield f"http://127.0.0.1:{port}", runner.app
    finally:
        submit(runner.cleanup()).result()


def app_of(respond: Callable[[httpx.Request], httpx.Response]) -> web.Application:
    """Return a server that answers over real sockets what `httpx.MockTransport` would answer.

    It cuts the connection where ``respond`` raises httpx.ReadError, and a second later where it raises
    httpx.ReadTimeout.
    """

    async def handle(request: web.Request) -> web.Response:
        url, body = f"http://{request.host}{request.raw_path}", await request.read()
        try:
            answer = respond(httpx.Request(request.method, url, content=body, headers=request.headers))
        except (httpx.ReadError, httpx.ReadTimeout) as error:
            await asyncio.sleep(isinstance(error, httpx.ReadTimeout))
            assert request.transport
            request.transport.close()
            return web.Response()
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return web.Response(status=answer.status_code, body=answer.content, headers=headers)

    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


@contextmanager
def development_node(before: Callable[[bytes], web.Response | None]) -> Iterator[WakuNode]:
    """Serve a development node in this process. ``before`` sees the body of each publication, and may answer it."""

    @web.middleware
    async def look(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_publication = request.method == "POST" and "/messages/" in request.path
        answer = before(await request.read()) if is_publication else None
        return await handler(request) if answer is None else answer

    def make() -> web.Application:
        app = create_app(Settings(shards=(processes.PUBSUB_TOPIC,)))
        app.middlewares.append(look)
        return app

    client = Connections(silent_seconds=5)
    try:
        with served(make) as (url, _):
            yield WakuNode(url, client)
    finally:
        submit(client.close()).result()
