"""Privacy of every output: table, page, API answer, metric, log line and span; and the one trace of a message.

The tests share a whole server of their own, with its web server. It logs as JSON, and traces every message to a
collector in this process. Clients leave traces of every kind with it, and the outputs are searched for their secrets.
The pages are opened for one row of each table, and nightly for every row.
"""

import json
import os
import re
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from html import escape
from itertools import chain
from urllib.parse import quote

import httpx
import pytest
from django.conf import settings
from django.urls import get_resolver
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pytest_django import DjangoDbBlocker

from embedded.servers.ports import free_port
from embedded.stack import plan
from embedded.supervisor.processes import StopOrder
from pushserver.console.models import ApiToken
from tests.console.routes import Page, console_pages, patterns
from tests.rig.budget import first_everyday
from tests.rig.collector import Collector, attributes, collector
from tests.rig.databases import connected_to
from tests.rig.network import Network, android, iphone, network_of, new_identity, new_sender
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, log_in, served, wait_for_http, wait_until
from waku_bridge.client.events import Destination
from waku_bridge.client.state import Preferences
from waku_bridge.codec.keys import chat_key
from waku_bridge.messages import WakuMessage
from waku_bridge.query_topics import canary_identity, server_identity

PASSWORD, METRICS_TOKEN = secrets.token_urlsafe(20), secrets.token_urlsafe(20)
# Spans of a request, in order, from the bridge, the worker's batches and its event loop.
WAY = ["read", "Inbox", "send", "Results", "Recording", "publish", "confirm", "SentReplies"]
# Columns that identify somebody, though not all of them are secret.
NAMES = """
    SELECT public_key_hash FROM registrations_registration
    UNION ALL SELECT convert_to(installation_id, 'UTF8') FROM registrations_registration
    UNION ALL SELECT hash FROM waku_bridge_inboundenvelope
    UNION ALL SELECT convert_to(content_topic, 'UTF8') FROM waku_bridge_inboundenvelope
    UNION ALL SELECT convert_to(pubsub_topic, 'UTF8') FROM waku_bridge_inboundenvelope
    UNION ALL SELECT message_id FROM notifications_notificationrequest
    UNION ALL SELECT request_key FROM notifications_notificationrequest
    UNION ALL SELECT message_hash FROM waku_bridge_outboundreply
"""
# Values in the database that no output may contain, not even encrypted or as a digest.
KEPT = """
    SELECT address_encrypted FROM registrations_route UNION ALL SELECT address_digest FROM registrations_route
    UNION ALL SELECT delivered_digest FROM registrations_route WHERE delivered_digest IS NOT NULL
    UNION ALL SELECT access_token_encrypted FROM registrations_registration
    UNION ALL SELECT access_token_digest FROM registrations_registration
    UNION ALL SELECT content_digest FROM registrations_registration
    UNION ALL SELECT signature FROM registrations_grant UNION ALL SELECT access_token_digest FROM registrations_grant
    UNION ALL SELECT key_encrypted FROM registrations_topickey
    UNION ALL SELECT dedup_key FROM notifications_notification UNION ALL SELECT message FROM notifications_notification
    UNION ALL SELECT payload FROM waku_bridge_inboundenvelope UNION ALL SELECT payload FROM waku_bridge_outboundreply
    UNION ALL SELECT decode(raw::json->>'payload', 'base64') FROM waku_bridge_deadletter
    UNION ALL SELECT digest FROM pushserver_apitoken
"""
# Prefixes of device tokens by which the development gorush chooses the outcome of pushes. Unknown errors come first, as
# failures of the others may halt the queue.
APPLE = ("naming-", "dead-", "lost-")
GOOGLE = ("naming-", "flaky1-")
BEGINNING = 6  # characters
UNKNOWN_ERRORS = "SELECT count(*) FROM notifications_unknowngatewayerror"
DEAD_LETTERS = "SELECT count(*) FROM waku_bridge_deadletter"


class Traces:
    """Clients that do everything once: register, query, notify, cause every kind of failure, and send an unreadable
    message.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.contact, self.message = new_identity(), os.urandom(48)
        self.sender = new_sender(self.contact)
        self.addresses = [*map(iphone, APPLE), *map(android, GOOGLE)]
        only_contacts = Preferences(contacts_only=True, contacts=(self.contact.pub33,))
        self.phones = [
            network.phone(address, only_contacts if "flaky" in address.device_token else None)
            for address in self.addresses
        ]
        for phone in self.phones:
            destinations = network.query(self.sender, phone)
            network.notify(self.sender, destinations, self.sender.one_to_one(self.message))
        network.publish(self._from_the_future(destinations))
        network.wait_until_answered()
        wait_until(lambda: network.rows(UNKNOWN_ERRORS) >= [(2,)], what="both unknown errors are counted")
        wait_until(lambda: network.rows(DEAD_LETTERS) >= [(1,)], what="the dead letter is kept")

    def _from_the_future(self, destinations: Sequence[Destination]) -> WakuMessage:
        """Return a request in a version of Waku that does not exist yet, which becomes a dead letter."""
        content = self.sender.one_to_one(self.message)
        request = self.sender.request(destinations, content, os.urandom(32), timestamp_ns=time.time_ns())
        return replace(request.message, version=2)

    def leave(self) -> None:
        """Unregister all phones, so that no notification waits for its next attempt."""
        for phone in self.phones:
            phone.unregister()
            self.network.register(phone)
        self.network.wait_until_delivered()

    def secrets(self) -> dict[str, bytes]:
        """Return the secrets by name, without keys of the server, which its operator has."""
        identities = [self.contact, self.sender.ephemeral, *(phone.identity for phone in self.phones)]
        return {
            "message": self.message,
            **{f"device token {number}": a.device_token.encode() for number, a in enumerate(self.addresses)},
            **{f"access token {number}": phone.access_token.encode() for number, phone in enumerate(self.phones)},
            **{f"private key {number}": identity.private_key.secret for number, identity in enumerate(identities)},
            **{f"public key {number}": identity.pub33[1:] for number, identity in enumerate(identities)},
            **{f"chat key {number}": chat_key(i.pub33).encode() for number, i in enumerate(identities)},
        }


@pytest.fixture(scope="module")
def collecting() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def own_fleet(new_fleet: NewFleet, collecting: Collector) -> Iterator[Fleet]:
    own = {"LOG_FORMAT": "json", "METRICS_TOKEN": METRICS_TOKEN, "API_CALLS_PER_MINUTE": "100000"}
    tracing = {"OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url, "OTEL_TRACES_SAMPLER_ARG": "1"}
    with served(new_fleet("privacy", **OF_FLOWS, **own, **tracing)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def own_network(own_fleet: Fleet) -> Iterator[Network]:
    with closing(network_of(own_fleet)) as network:
        yield network


@pytest.fixture(scope="module")
def web(own_fleet: Fleet) -> str:
    """Start the web server, and return its URL."""
    port = free_port()
    own_fleet.start(plan.web("127.0.0.1", port))
    wait_for_http(f"http://127.0.0.1:{port}/healthz")
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def traces(own_network: Network) -> Traces:
    return Traces(own_network)


def requests_of(collecting: Collector) -> list[list[Span]]:
    """Return the traces of requests that have arrived so far."""
    return [spans for spans in collecting.traces().values() if "send" in [span.name for span in spans]]


def is_whole(collecting: Collector) -> bool:
    """Return whether a request's spans and the steps that they link to have arrived. Each process sends its own."""
    spans = [span for spans in requests_of(collecting) for span in spans]
    arrived = {span.span_id for span in collecting.spans}
    return len(spans) >= len(WAY) and {link.span_id for span in spans for link in span.links} <= arrived


def test_one_trace_leads_from_the_page_of_a_node_to_the_confirmed_reply(
    own_network: Network, collecting: Collector
) -> None:
    sender = new_sender()
    phone = own_network.phone(iphone())
    own_network.notify(sender, own_network.query(sender, phone))
    wait_until(lambda: is_whole(collecting), what="all spans")
    (trace,) = requests_of(collecting)
    first, *others = trace
    assert [span.name for span in trace] == WAY
    assert {span.parent_span_id for span in others} == {first.span_id}
    assert first.parent_span_id == b""
    message = {span.name: attributes(span.attributes) for span in trace}
    assert message["read"]["pushserver.path"] in {"live", "store"}
    assert message["Inbox"]["pushserver.message_type"] == "request"
    assert message["send"] == {
        "pushserver.gateway": "gorush",
        "pushserver.attempt": 1,
        "pushserver.outcome": "delivered",
        "pushserver.code": "",
    }
    assert message["publish"]["pushserver.outcome"] == "taken"
    assert message["confirm"] == {"pushserver.outcome": "confirmed"}
    assert_linked(trace, collecting)


def assert_linked(trace: list[Span], collecting: Collector) -> None:
    """Check that the span of a message links to its step of a batch, and that step to the message."""
    steps = {(span.trace_id, span.span_id): span for span in collecting.spans if span.trace_id != trace[0].trace_id}
    for span in trace:
        if span.name[0].isupper():
            (link,) = span.links
            step = steps[link.trace_id, link.span_id]
            assert step.name == span.name
            assert (trace[0].trace_id, trace[0].span_id) in [(each.trace_id, each.span_id) for each in step.links]


def test_the_contents_of_a_push_are_forgotten_once_it_is_delivered(own_network: Network) -> None:
    network, address, sender = own_network, android(), new_sender()
    network.notify(sender, network.query(sender, network.phone(address)), sender.one_to_one(b"for the phone"))
    assert len(network.pushes_to(address)) == 1
    network.wait_until_answered()
    kept = """
        SELECT count(*) FROM notifications_notification WHERE finished_at IS NOT NULL
           AND (chat_id IS NOT NULL OR message IS NOT NULL)
        UNION ALL SELECT count(*) FROM notifications_notificationrequest
           WHERE state = 'answered' AND reply_address IS NOT NULL
        UNION ALL SELECT count(*) FROM waku_bridge_inboundenvelope
           WHERE state NOT IN ('received', 'postponed') AND payload IS NOT NULL
        UNION ALL SELECT count(*) FROM waku_bridge_outboundreply
           WHERE state NOT IN ('pending', 'published') AND payload IS NOT NULL  -- published: until a store has it
    """
    assert network.rows(kept) == [(0,)] * 4


def test_nothing_of_anybody_leaves_for_the_collector(own_fleet: Fleet, traces: Traces, collecting: Collector) -> None:
    wait_until(lambda: len(requests_of(collecting)) >= len(traces.phones), what="a trace of each")
    names = {f"name {number}": bytes(name) for number, (name,) in enumerate(own_fleet.rows(NAMES)) if name}
    sent = b"".join(collecting.bodies).decode("latin-1")
    hidden = {**traces.secrets(), **kept(own_fleet), **digests(traces), **names}
    assert len(names) > 30
    assert found(hidden, {"what was sent": sent}) == []


def manage(fleet: Fleet, command: str, *arguments: str, **environment: str) -> str:
    """Run a command, check that it succeeded, and return its output."""
    spec = plan.manage(command, command, *arguments, stop_order=StopOrder.FRONT)
    fleet.run(replace(spec, environment={**spec.environment, **environment}))
    return fleet.log(command)


@pytest.mark.parametrize(("every_row", "pages"), first_everyday((False, 15), (True, 60)))
def test_no_page_answer_metric_or_log_shows_a_token_key_or_message(
    own_fleet: Fleet, traces: Traces, web: str, django_db_blocker: DjangoDbBlocker, every_row: bool, pages: int
) -> None:
    manage(own_fleet, "canary")
    manage(own_fleet, "createsuperuser", "--noinput", *NAME, DJANGO_SUPERUSER_PASSWORD=PASSWORD)
    (api_token,) = re.findall("psk_[^ ]{43}", manage(own_fleet, "api_token", "create", "test", *SCOPES).strip())

    def pages_now() -> list[Page]:
        with django_db_blocker.unblock(), connected_to(own_fleet.environment["DATABASE_URL"]):
            return console_pages(every_row=every_row)

    pages_read = read_pages(web, pages_now, traces)
    read = {**pages_read, **read_api(web, api_token, traces), **read_metrics(web)}
    read |= {f"log of {name}": log for name, log in own_fleet.logs().items() if name != "api_token"}

    hidden = traces.secrets() | kept(own_fleet) | digests(traces) | own_secrets() | {"API token": api_token.encode()}
    assert len([place for place in read if "/change/" in place]) > pages
    assert found({"installation": traces.phones[0].state.installation_id.encode()}, pages_read)
    assert found(hidden, read) == []


NAME = ("--username", "ann", "--email", "ann@example.org")
SCOPES = tuple(chain.from_iterable(("--scope", scope) for scope in ApiToken.Scope.values))


def read_pages(web: str, pages_now: Callable[[], list[Page]], traces: Traces) -> dict[str, str]:
    """Load every page, and search for each person by the chat key and by one with a slip in it.

    The server goes on meanwhile, so a finished row, such as a window of a store, may have no page any more.
    """
    pages = pages_now()
    with httpx.Client(base_url=web, trust_env=False, timeout=60) as browser:
        sent = log_in(browser, "ann", PASSWORD)
        for key in [chat_key(phone.identity.pub33) for phone in traces.phones]:
            searches = [browser.post("/admin/find/", data=sent | {"q": text}) for text in (key, key[:-1])]
            assert [answer.status_code for answer in searches] == [302, 302]
            pages = [*pages, *(Page("search", answer.headers["Location"]) for answer in searches)]
        answers = {page.url: browser.get(page.url) for page in pages if page.name != "admin:logout"}
    assert [url for url, answer in answers.items() if answer.is_server_error] == []
    rows = [page.url for page in pages_now() if "/change/" in page.url and page.url in answers]
    assert [url for url in rows if answers[url].status_code != 200] == []
    return {url: f"{url} {answer.headers} {answer.text}" for url, answer in answers.items()}


def read_api(web: str, token: str, traces: Traces) -> dict[str, str]:
    """Load every list of the API for each person who left traces, as no list covers everybody, and every notification
    in them.
    """
    hashes = [phone.identity.key_hash.hex() for phone in traces.phones]
    routes = {name: route for name, route in patterns(get_resolver()) if route.startswith("api/v1/")}
    lists = ["/" + re.sub(r"[\^$]", "", route) for name, route in routes.items() if "(" not in route]
    with httpx.Client(base_url=web, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as program:
        urls = [*lists, *(f"{url}?key_hash={key_hash}" for url in lists for key_hash in hashes), "/api/schema"]
        answers = {url: program.get(url) for url in urls}
        assert [url for url, answer in answers.items() if answer.status_code in {401, 403}] == []
        found_ones = chain.from_iterable(answer.json().get("results", []) for url, answer in list(answers.items())[:-1])
        ids = {row["id"] for row in found_ones if "message_id" in row}
        stories = {f"/api/v1/notifications/{id_}/": program.get(f"/api/v1/notifications/{id_}/") for id_ in ids}
    assert len(stories) >= len(traces.phones)
    assert {answer.status_code for answer in stories.values()} == {200}
    return {url: answer.text for url, answer in (answers | stories).items()}


def read_metrics(web: str) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {METRICS_TOKEN}", "Accept": "application/openmetrics-text; version=1.0.0"}
    answers = {page: httpx.get(f"{web}/{page}", headers=headers, trust_env=False) for page in ("metrics", "readyz")}
    assert answers["metrics"].status_code == 200
    return {page: answer.text for page, answer in answers.items()}


def own_secrets() -> dict[str, bytes]:
    """Return secrets of the server and its canary."""
    return {
        "password": PASSWORD.encode(),
        "metrics": METRICS_TOKEN.encode(),
        "SECRET_KEY": settings.SECRET_KEY.encode(),
        "private key of the server": server_identity().private_key.secret,
        "private key of the canary": canary_identity().private_key.secret,
        "device token of the canary": settings.CANARY_DRY_RUN_TOKENS[0].encode(),
        **{f"field key {number}": key for number, key in enumerate(settings.FIELD_ENCRYPTION_KEYS)},
    }


def kept(fleet: Fleet) -> dict[str, bytes]:
    values = [bytes(value) for (value,) in fleet.rows(KEPT) if value and len(value) >= 16]
    return {f"kept value {number}": value for number, value in enumerate(dict.fromkeys(values))}


def digests(traces: Traces) -> dict[str, bytes]:
    """Return plain digests of the traces, which a list of tokens would reveal."""
    return {f"digest of {name}": sha256(secret).digest() for name, secret in traces.secrets().items()}


def test_no_token_key_or_message_is_in_a_log_or_in_plain_in_the_database(own_fleet: Fleet, traces: Traces) -> None:
    """It is the last test, as the clients leave."""
    meanwhile = _tables(traces.network)
    traces.leave()
    afterwards = {**_tables(traces.network), **{f"log of {name}": text for name, text in own_fleet.logs().items()}}
    in_registrations = meanwhile["table registrations_registration"]
    assert found({"key hash": traces.phones[0].identity.key_hash}, {"stored on purpose": in_registrations})
    hidden = traces.secrets()
    assert found(hidden, afterwards) == []
    del hidden["message"]  # the message is kept as long as a push may be repeated
    assert found(hidden, meanwhile) == []


def _tables(network: Network) -> dict[str, str]:
    """Return every table as text, with bytes in hex."""
    names = network.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {
        f"table {name}": "\n".join(text for (text,) in network.rows(f'SELECT row::text FROM "{name}" AS row'))
        for (name,) in names
    }


def found(secrets: Mapping[str, bytes], texts: Mapping[str, str]) -> list[str]:
    """Return the secrets in the texts, each with its spelling and its text. Only spellings whose beginning occurs in a
    text are searched for.
    """
    by_beginning: dict[str, list[tuple[str, str]]] = {}
    for name, secret in secrets.items():
        for form, spelling in spellings(secret):
            by_beginning.setdefault(spelling[:BEGINNING], []).append((f"{name} as {form}", spelling))
    return [
        f"{name} in {place}"
        for place, text in texts.items()
        for beginning in by_beginning.keys() & pieces(text)
        for name, spelling in by_beginning[beginning]
        if spelling in text
    ]


def pieces(text: str) -> set[str]:
    return {text[start : start + BEGINNING] for start in range(len(text) - BEGINNING + 1)}


def spellings(secret: bytes) -> Iterator[tuple[str, str]]:
    text = secret.decode("latin-1")
    yield "text", text
    yield "markup", escape(text)
    yield "JSON", json.dumps(text)[1:-1]
    yield "Python", repr(secret)[2:-1]
    yield "part of a URL", quote(secret)
    yield "hex", secret.hex()
    yield "hex", secret.hex().upper()
    # Base64 of a longer text depends on the offset of the secret in it. The characters at both ends are left out.
    for offset in range(3):
        whole = b64encode(bytes(offset) + secret).decode()
        inner = whole[4 if offset else 0 : -4]
        yield "base64", inner
        yield "base64", inner.replace("+", "-").replace("/", "_")
