"""Collector of traces and errors for tests: a real server of OTLP over HTTP that keeps what it receives."""

import gzip
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kit import otlp, telemetry
from tests.rig.peers import serve


class Collector:
    """The requests that the collector received, as bytes and decoded. ``status`` is the HTTP status of its answers."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.status = 200
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[Span] = []
        self.errors: list[LogRecord] = []
        self.resources: list[dict[str, object]] = []
        self.finish: Callable[[], object] = lambda: None

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.bodies.append(body)
        self.headers.append(headers)
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes(group.resource.attributes))
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.resources.append(attributes(logs.resource.attributes))
                self.errors += [record for scope in logs.scope_logs for record in scope.log_records]

    def traces(self) -> dict[bytes, list[Span]]:
        """Return the spans by trace, in the order in which they began."""
        by_trace = defaultdict(list)
        for span in sorted(self.spans.copy(), key=lambda span: span.start_time_unix_nano):
            by_trace[span.trace_id].append(span)
        return by_trace


def attributes(pairs: "list[KeyValue]") -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if running.status == 200:
                running.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(running.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serve(Handler) as server:
        running = Collector(server)
        yield running


@contextmanager
def collected(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector for all traces and errors of this process, without sampling. ``finish`` flushes the exporter."""
    with collector() as running:
        settings.TRACES, settings.TRACES_SHARE, settings.OTLP_URL = True, 1.0, running.url
        exporter = otlp.Exporter()
        monkeypatch.setattr(telemetry, "exporter", lambda: exporter)
        running.finish = exporter.flush
        yield running
        running.finish()
