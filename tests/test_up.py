"""Command `manage.py up` from an operator's view: one command starts every real part, and nothing is left at
its end.
"""

import json
import re
import stat
import time
from contextlib import suppress
from signal import SIGKILL, SIGTERM, SIGUSR1

import httpx
import psycopg
import pytest

from embedded.servers.ports import free_port
from tests.rig.server import Up, log_in, wait_for_http, wait_until

# The guard is a child process, too.
PARTS_THAT_STAY = ("guard", "postgres", "valkey", "node", "gorush")


@pytest.fixture
def start(tmp_path):
    """Start in a folder that only its owner may enter, like root's home, with an awkward name."""
    home = tmp_path / "Träger & 'Söhne' 100 %"
    home.mkdir(mode=0o700)
    lives = []
    port, own = free_port(), {"METRICS_PORT": str(free_port())}

    def start_up():
        lives.append(Up(home / "data", port, home / f"log{len(lives)}", environment=own))
        return lives[-1]

    yield start_up
    for life in lives:
        if life.process.poll() is None:
            life.ends(SIGKILL)


def test_up_starts_survives_and_stops(start):
    first = start()
    assert probed_until_ready(first) == {"not ready"}
    embedded = settings_of(first)
    for url in (f"{first.url}/readyz", f"{embedded['WAKU_NODES']}/health", f"{embedded['GORUSH_URL']}/healthz"):
        assert httpx.get(url).status_code == 200
    assert re.search(r"Server public key: 0[23][0-9a-f]{64}\n", first.output())
    assert re.search(r"Server chat key: 0x04[0-9a-f]{128}\n", first.output())
    assert_no_part_logs_an_error(first)
    password = first.shows(r"Console user: admin, password: (\S+) \(shown only now").group(1)
    assert_a_second_one_is_refused(first)
    shown = first.manage("shell", "-v0", "-c", "from django.contrib.auth.models import User; print(User.objects.get())")
    assert shown.stdout.strip() == "admin"
    assert first.ends(SIGKILL) == -SIGKILL

    second = start()
    second.shows("Ready. Console: ")
    assert "password" not in second.output()
    files = [file for file in data_of(first).rglob("*") if file.is_file()]
    assert [file for file in files if password.encode() in file.read_bytes()] == []
    with httpx.Client(base_url=second.url) as browser:
        log_in(browser, "admin", password)
    assert "Traceback" not in first.output() + second.output()
    assert_no_part_logs_an_error(second)
    assert_a_killed_database_comes_back(second)
    assert_all_processes_are_replaced(second)
    assert second.ends(SIGTERM) == 0
    assert not (data_of(second) / "embedded.json").exists()


def probed_until_ready(up):
    """Poll /readyz, as a container runtime does, and return the answers before the server was ready."""
    answers = set()
    with httpx.Client(base_url=up.url, timeout=30) as prober:
        while "Ready. Console: " not in up.output():
            assert up.process.poll() is None, up.output()
            with suppress(httpx.TransportError):
                answers.add(prober.get("/readyz").json()["status"])
            time.sleep(0.25)
    return answers - {"ready"}  # the last answer may be "ready"


def assert_no_part_logs_an_error(up):
    """PostgreSQL's own log counts, too: no process may query before the first start has made the tables."""
    assert "LOG:  database system is ready" in up.output()
    is_error = re.compile(r"ERROR|FATAL|PANIC|\[(error|critical) ").search
    assert [line for line in up.output().splitlines() if is_error(line)] == []


def data_of(up):
    return up.log.parent / "data"


def settings_of(up):
    file = data_of(up) / "embedded.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return json.loads(file.read_text())


def assert_a_second_one_is_refused(up):
    refused = up.manage("up")
    assert (refused.returncode, refused.stderr.strip()) == (
        1,
        f"manage.py up: already running on {data_of(up)} (process {up.process.pid}).",
    )
    up.environment["DATA_DIR"] += "-2"
    refused = up.manage("up")
    up.environment["DATA_DIR"] = str(data_of(up))
    assert refused.returncode == 1
    assert re.search(f"port {up.environment['PORT']} .* is in use: set PORT to another one.$", refused.stderr.strip())


def assert_a_killed_database_comes_back(up):
    url = settings_of(up)["DATABASE_URL"]
    [postgres] = [process for process in up.process.children() if process.name() == "postgres"]
    postgres.kill()
    up.shows("(?s)postgres was ended by SIGKILL, starting it again.*database system is ready to accept")
    psycopg.connect(url).close()
    wait_until(lambda: httpx.get(f"{up.url}/readyz", timeout=30).status_code == 200, what="ready again")
    assert settings_of(up)["DATABASE_URL"] == url


def assert_all_processes_are_replaced(up):
    """All processes of the server are replaced, while the embedded servers stay."""
    before = {process.pid: process.name() for process in up.process.children()}
    up.process.send_signal(SIGUSR1)
    up.shows("Replaced.")
    after = {process.pid: process.name() for process in up.process.children()}
    assert {"postgres", "valkey-server"} <= {before[pid] for pid in before.keys() & after.keys()}
    assert sorted(before.values()).count("postgres") == 1
    assert len(after.keys() - before.keys()) == len(before) - len(PARTS_THAT_STAY)
    assert "Not replaced" not in up.output()
    assert httpx.get(f"{up.url}/readyz", timeout=30).status_code == 200
    # The old bridge holds the port until it ends, after the new one has started its work.
    metrics = f"http://127.0.0.1:{up.environment['METRICS_PORT']}/metrics"
    wait_for_http(metrics)
    assert "pushserver_" in httpx.get(metrics).text
    assert "metrics_port_not_opened" not in up.output()
