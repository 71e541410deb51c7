"""The parts that ``bench.request.xmpp`` measures: the component's handler and the batches of a worker.

The module is imported once Django is set up.
"""

import os
import threading
import time
import uuid
from base64 import b64encode
from datetime import datetime
from time import process_time, thread_time

import psutil
from django.conf import settings
from django.db import connection
from django.utils import timezone

from bench.running.servers import cpu_seconds
from bench.running.waiting import is_delivery_over
from kit.batches.batch import Wakeup, Worker
from kit.buckets.bucket import Limit
from notifications.tasks import new_steps
from registrations.messages import TokenType
from registrations.models import Route
from registrations.routes.routes import point
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.codec.stream import Opened, Received, Stream
from xmpp_bridge.component.handler import Arrived, StanzaHandler
from xmpp_bridge.identity import client_keys
from xmpp_bridge.messages import BRIDGE
from xmpp_bridge.models import App, Device
from xmpp_bridge.rules.decisions import Domains
from xmpp_bridge.rules.limits import Limits, Rates

DOMAIN, SERVER = "push.bench.test", "bench.test"
HEADER = (
    b"<?xml version='1.0'?><stream:stream xmlns='jabber:component:accept' id='1' "
    b"xmlns:stream='http://etherx.jabber.org/streams'>"
)
STANZA = (
    "<message id='{id}' from='{server}' to='{domain}'><notification xmlns='urn:xmpp:push2:0'><client>{client}</client>"
    "<encrypted iv='{iv}'>{text}</encrypted></notification></message>"
)
CIPHERTEXT_BYTES = 150
CHUNK = 5000
# High enough for any benchmark.
RATES = Rates(
    pushes_of_domain=(Limit(10**9, 1000.0),),
    payloads_per_minute=10**4,
    payloads_per_day=10**6,
    in_all=(Limit(10**9, 1.0),),
)


class Parts:
    """A service with registered devices, and pushes on their way to them."""

    def __init__(self, postgres: psutil.Process, *, devices: int, pushes: int, batch: int) -> None:
        self._postgres = postgres
        self._pushes, self._batch = pushes, batch
        self._clients = _register(devices)
        self._handler = StanzaHandler(DOMAIN, Limits(RATES), Domains())

    def run(self) -> dict[str, float]:
        """Process all pushes. Return the CPU seconds of this process and of PostgreSQL, by part."""
        data = [self._stanza(number) for number in range(self._pushes)]
        stream = Stream()
        assert [type(event) for event in stream.feed(HEADER)] == [Opened]
        started = thread_time()
        arrived = [
            Arrived(event, time.monotonic(), event.size)
            for stanza in data
            for event in stream.feed(stanza)
            if isinstance(event, Received)
        ]
        parsed, before = thread_time(), self._postgres_seconds()
        for start in range(0, len(arrived), self._batch):
            answers = self._handler.answer(arrived[start : start + self._batch])
            assert not answers, "a push was refused"
        accepted, between = thread_time(), self._postgres_seconds()
        batches, after = self._process_until_done()
        return {
            "parse": parsed - started,
            "stanza_handler": accepted - parsed,
            "stanza_handler: postgres": between - before,
            "batches and their POSTs": batches,
            "batches: postgres": after - between,
        }

    def _postgres_seconds(self) -> float:
        return cpu_seconds(self._postgres)

    def _stanza(self, number: int) -> bytes:
        client = self._clients[number * 7919 % len(self._clients)]  # spread over all
        text, iv = b64encode(os.urandom(CIPHERTEXT_BYTES)).decode(), b64encode(os.urandom(12)).decode()
        names = {"id": uuid.uuid4().hex, "server": SERVER, "domain": DOMAIN}
        return STANZA.format(**names, client=client, iv=iv, text=text).encode()

    def _process_until_done(self) -> tuple[float, float]:
        """Process batches until every push has ended.

        Return the CPU seconds of the threads that did it, and those of PostgreSQL while it still had the worker's
        session.
        """
        process_started, started = process_time(), thread_time()
        wakeup = Wakeup()
        worker = Worker(new_steps(wakeup), wakeup)
        thread = threading.Thread(target=worker.run)
        thread.start()
        while not is_delivery_over():
            time.sleep(0.05)
        postgres = self._postgres_seconds()
        worker.stop(timeout_seconds=30)
        thread.join()
        return process_time() - process_started - (thread_time() - started), postgres


def _register(count: int) -> list[str]:
    """Store ``count`` devices, and return their client strings."""
    now = timezone.now()
    app, _ = App.objects.get_or_create(slug="bench", defaults={"app_topic": "", "created_at": now})
    ids = [uuid.uuid4() for _ in range(count)]
    for start in range(0, count, CHUNK):
        chunk = ids[start : start + CHUNK]
        routes = Route.objects.bulk_create([_route(device_id, now) for device_id in chunk])
        Device.objects.bulk_create(
            Device(
                id=device_id,
                app=app,
                domain=SERVER,
                device_key=os.urandom(32),
                owner_key=os.urandom(32),
                route=route,
                registered_at=now,
            )
            for device_id, route in zip(chunk, routes, strict=True)
        )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # or PostgreSQL would do it during the measurement
    return [issue(device_id, client_keys()[0]).client for device_id in ids]


def _route(device_id: uuid.UUID, now: datetime) -> Route:
    route = Route(generation=0, created_at=now, bridge=BRIDGE)
    token = f"bench{device_id.hex}{'t' * 120}"
    point(
        route,
        gateway=settings.XMPP_GATEWAY,
        token_type=TokenType.FIREBASE,
        app_topic="",
        address=token.encode(),
    )
    return route
