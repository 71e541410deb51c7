"""Traces and errors in a real OpenTelemetry Collector, which writes everything that it received to a file."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.flows.test_privacy import WAY
from tests.rig.network import iphone, network_of, new_sender
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, served, wait_until

pytestmark = pytest.mark.peers
PROGRAM = Path(os.environ.get("PEERS") or ".").resolve() / "collector"
CONFIGURATION = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [debug]}}
    logs: {{receivers: [otlp], exporters: [debug]}}
"""
SPAN = re.compile(r"Trace ID +: (\w{32})\n +Parent ID +: (\w*)\n +ID +: \w{16}\n +Name +: (\S+)")


@pytest.fixture
def fleet(require_or_skip: Callable[[bool, str], None], new_fleet: NewFleet) -> Iterator[Fleet]:
    """A server that traces every message, and halts a channel after five refusals."""
    require_or_skip(PROGRAM.exists(), "there is no real collector: `make peers` builds it")
    port = free_port()
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_TRACES_SAMPLER_ARG": "1"}
    fleet = new_fleet("collected", **OF_FLOWS, **traced)
    (fleet.folder / "collector.yaml").write_text(CONFIGURATION.format(port=port))
    command = [str(PROGRAM), "--config", str(fleet.folder / "collector.yaml")]
    fleet.start(ProcessSpec(name="collector", command=command, stop_order=StopOrder.PEER))
    wait_until(lambda: "Everything is ready" in fleet.log("collector"), what="the collector")
    with served(fleet) as running:
        yield running


def test_a_real_collector_reads_the_trace_of_a_request_and_an_error(fleet: Fleet) -> None:
    with closing(network_of(fleet)) as network:
        phones = [network.phone(iphone()) for _ in range(5)]
        for phone in phones:
            network.notify(sender := new_sender(), network.query(sender, phone))
        wait_until(lambda: set(WAY) in _traces(fleet), what="the whole way of the request")
        network.break_gorush(refuses_keys=True)
        for phone in phones:  # a breaker counts each sender and each address once
            network.notify(sender := new_sender(), network.query(sender, phone))
        wait_until(lambda: "Body: Str(channel_tripped)" in fleet.log("collector"), what="the error")
    written = fleet.log("collector")
    assert "SeverityText: ERROR" in written
    assert "service.name: Str(" in written


def _traces(fleet: Fleet) -> list[set[str]]:
    """Return the names of the spans of each trace."""
    traces = defaultdict(set)
    for trace_id, _, name in SPAN.findall(fleet.log("collector")):
        traces[trace_id].add(name)
    return list(traces.values())
