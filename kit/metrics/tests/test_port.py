"""Tests of the metrics port, with real sockets."""

import socket
import time

import httpx
import pytest
from structlog.testing import capture_logs

from kit.metrics import port


@pytest.fixture
def taken(settings, tmp_path, monkeypatch):
    """Set METRICS_PORT to a port that another socket uses. Servers of the test are closed afterwards."""
    opened = []
    start = port.start_http_server
    monkeypatch.setattr(port, "start_http_server", lambda *arguments: opened.append(start(*arguments)))
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings.METRICS_HOST, settings.METRICS_PORT = other.getsockname()
        settings.METRICS_DIR = tmp_path
        yield other
    for server, thread in opened:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_taken_port_is_opened_when_the_process_that_uses_it_ends_and_one_that_stays_taken_is_logged_once(
    taken, settings, monkeypatch, is_reported
):
    if is_reported:
        monkeypatch.setattr(port, "LOG_AFTER_SECONDS", 0.0)
    with capture_logs() as logs:
        port.serve()
        time.sleep(3 * port.RETRY_SECONDS)
        taken.close()
        assert _answers_within(60, f"http://127.0.0.1:{settings.METRICS_PORT}/metrics")
    reported = {"event": "metrics_port_not_opened", "log_level": "error", "port": settings.METRICS_PORT}
    assert logs == [{**reported, "error": "Address already in use"}] * is_reported


def test_an_address_of_another_machine_is_logged_at_once(taken, settings):
    settings.METRICS_HOST = "192.0.2.1"
    with capture_logs() as logs:
        port.serve()
    assert [entry["error"] for entry in logs] == ["Cannot assign requested address"]


def _answers_within(seconds: float, url: str) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.TransportError:
            time.sleep(0.1)
    return False
