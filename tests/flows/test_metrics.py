"""Page `/metrics` of a whole server: it sums the counts of web, bridge, workers and their children, also of children
that were killed.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from signal import SIGKILL

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedded.servers.ports import free_port
from embedded.stack.plan import web
from pushserver.metrics import entries, sources
from tests.rig.network import Network, iphone, new_sender
from tests.rig.server import Fleet, wait_for_http, wait_until

TOKEN = "a-token-of-the-flow-tests-0123456789"
Output = dict[tuple[str, ...], float]
# Counters that grow by one when a phone registers, is found and is notified.
COUNTED_ONCE = (
    ("pushserver_registrations_total", "register"),
    ("pushserver_registration_events_total", "registered"),
    ("pushserver_queried_keys_total", "found"),
    ("pushserver_requests_total", "new"),
    ("pushserver_notifications_total", "deliver"),
    ("pushserver_inbox_processed_total", "accepted", "registration"),
    ("pushserver_inbox_processed_total", "accepted", "query"),
    ("pushserver_inbox_processed_total", "accepted", "request"),
    ("pushserver_notifications_finished_total", "delivered"),
    ("pushserver_dispatch_seconds_count",),
    ("pushserver_request_answer_seconds_count",),
    ("pushserver_gateway_seconds_count", "ios"),
)


@pytest.fixture(scope="module")
def page(fleet: Fleet) -> Iterator[Callable[[], str]]:
    port = free_port()
    spec = web("127.0.0.1", port)
    fleet.start(replace(spec, environment={**spec.environment, "METRICS_TOKEN": TOKEN}))
    wait_for_http(f"http://127.0.0.1:{port}/healthz")
    with httpx.Client(trust_env=False) as client:
        yield lambda: _read(client, f"http://127.0.0.1:{port}/metrics")
    fleet.stop("web")


def _read(client: httpx.Client, url: str) -> str:
    answer = client.get(url, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == httpx.codes.OK
    return answer.text


def _reported(page: str) -> Output:
    """Return the samples by name and label values, in the order of the label names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def _grown(before: Output, after: Output) -> Output:
    """Return the growth of the counters."""
    growing = ("_total", "_count", "_bucket")
    return {name: value - before.get(name, 0) for name, value in after.items() if name[0].endswith(growing)}


def _grown_once_counted(before: Output, page: Callable[[], str]) -> Output:
    """Return the growth of the counters. What was committed is counted a moment later."""

    def grown() -> Output:
        return _grown(before, _reported(page()))

    wait_until(lambda: all(grown().get(name) for name in COUNTED_ONCE), what="everything is counted")
    return grown()


def _whole_way(network: Network) -> None:
    """Register, query and notify."""
    sender = new_sender()
    network.notify(sender, network.query(sender, network.phone(iphone())), sender.one_to_one(b"a message"))
    network.wait_until_answered()
    network.wait_until_delivered()


def test_metrics_have_known_names_and_sum_the_counts_of_all_processes_also_after_a_child_was_killed(
    fleet: Fleet, network: Network, page: Callable[[], str]
) -> None:
    for _ in range(2):
        before = _reported(page())
        _whole_way(network)
        grown = _grown_once_counted(before, page)
        assert {name: grown.get(name) for name in COUNTED_ONCE} == dict.fromkeys(COUNTED_ONCE, 1)
        assert grown["pushserver_inbox_envelopes_total", "new"] >= 3
        (killed,) = _children(fleet, "batches")
        os.kill(killed, SIGKILL)
        wait_until(lambda pid=killed: _children(fleet, "batches") not in ([], [pid]), what="a new child")
    text = page()
    assert min(_grown(before, _reported(text)).values()) >= 0
    _assert_known(text)


def _assert_known(page: str) -> None:
    """Check that the catalogue has each name and label of a page."""
    labels = {entry.name: set(entry.labels) for source in sources().values() for entry in entries(source)}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        assert found <= labels[name]


def _children(fleet: Fleet, worker: str) -> list[int]:
    return [child.pid for child in psutil.Process(fleet.running[worker].pid).children()]
