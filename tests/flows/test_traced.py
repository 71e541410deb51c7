"""One trace from the page of a node to gorush's answer and the confirmed reply, across the processes of a server.

The server is the tests' own. It traces every message to a collector in this process.
"""

import secrets
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from embedded.servers.ports import free_port
from embedded.stack import plan
from tests.collector import Collector, attributes, collector
from tests.flows.test_privacy_of_answers import digests, kept
from tests.flows.traces import Traces, found
from tests.rig.network import Network, iphone, network_of, new_sender
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, served, wait_for_http, wait_until

METRICS_TOKEN = secrets.token_urlsafe(20)
# Spans of a request, in order, from the bridge, the worker's batches and its event loop.
WAY = ["read", "Inbox", "send", "Results", "Settling", "Recording", "publish", "Noting", "confirm", "Confirming"]
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


@pytest.fixture(scope="module")
def collecting() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def own_fleet(new_fleet: NewFleet, collecting: Collector) -> Iterator[Fleet]:
    own = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url,
        "OTEL_TRACES_SAMPLER_ARG": "1",
        "METRICS_TOKEN": METRICS_TOKEN,
    }
    with served(new_fleet("traced", **OF_FLOWS, **own)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def own_network(own_fleet: Fleet) -> Iterator[Network]:
    with closing(network_of(own_fleet)) as network:
        yield network


def requests_of(collecting: Collector) -> list[list[Span]]:
    """Return the traces of requests that have arrived so far."""
    return [spans for spans in collecting.traces().values() if "send" in [span.name for span in spans]]


def test_one_trace_leads_from_the_page_of_a_node_to_the_confirmed_reply(
    own_network: Network, collecting: Collector
) -> None:
    sender = new_sender()
    phone = own_network.phone(iphone())
    own_network.notify(sender, own_network.query(sender, phone))
    wait_until(
        lambda: "Confirming" in [s.name for spans in requests_of(collecting) for s in spans], what="the last span"
    )
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


def test_nothing_of_anybody_leaves_for_the_collector(
    own_fleet: Fleet, own_network: Network, collecting: Collector
) -> None:
    traces = Traces(own_network)
    wait_until(lambda: len(requests_of(collecting)) >= len(traces.phones), what="a trace of each")
    names = {f"name {number}": bytes(name) for number, (name,) in enumerate(own_fleet.rows(NAMES)) if name}
    sent = b"".join(collecting.bodies).decode("latin-1")
    hidden = {**traces.secrets(), **kept(own_fleet), **digests(traces), **names}
    assert len(names) > 30
    assert found(hidden, {"what was sent": sent}) == []


def test_metrics_show_traces_as_examples(own_fleet: Fleet, own_network: Network, collecting: Collector) -> None:
    port = free_port()
    own_fleet.start(plan.web("127.0.0.1", port))
    url = f"http://127.0.0.1:{port}"
    wait_for_http(f"{url}/healthz")
    headers = {"Authorization": f"Bearer {METRICS_TOKEN}", "Accept": "application/openmetrics-text; version=1.0.0"}
    text = httpx.get(f"{url}/metrics", headers=headers, trust_env=False).text
    own_fleet.stop("web")
    shown = [line for line in text.splitlines() if "# {trace_id=" in line]
    assert {line.split("_bucket{")[0] for line in shown} >= {
        "pushserver_inbox_wait_seconds",
        "pushserver_gateway_seconds",
        "pushserver_request_answer_seconds",
    }
    known = {trace_id.hex() for trace_id in collecting.traces()}
    assert {line.split('# {trace_id="')[1][:32] for line in shown} <= known
