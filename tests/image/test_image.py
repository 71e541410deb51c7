"""Each process of compose.yaml, run from the image that Buildah made of the Dockerfile: as its own user, with the
environment, secrets and folders of compose.yaml, beside a real PostgreSQL, Valkey, Prosody, go-waku and gorush.

`make image-test` builds the images first. All processes share one loopback, where containers would have addresses of
their own. Host names lead to it, and only the ports of metrics differ from compose.yaml.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
import pytest
from coincurve import PrivateKey

from embedded.servers import prosody
from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.prosody import EmbeddedProsody
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from tests.image.composed import Composed, read_compose
from tests.interop.nodes import Nodes, RelayReader
from tests.rig.network import Network, android, iphone, new_sender
from tests.rig.peers import Servers, ask
from tests.rig.server import Fleet, wait_for_http, wait_until
from waku_bridge.client import Address
from waku_bridge.codec.keys import Identity

pytestmark = pytest.mark.image
SERVER_KEY = "03" * 32
COMPONENT, COMPONENT_SECRET = "push.example.org", "0123456789abcdef"
SECRETS = {
    "database_url": "postgresql://pushserver:of-this-test@postgres:5432/pushserver",
    "secret_key": "only-for-this-test-and-long-enough-for-the-checks-of-django-1234",
    "field_encryption_keys": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "server_private_key": SERVER_KEY,
    "metrics_token": "0123456789abcdef0123456789abcdef",
    "redis_url": "redis://:of-this-test@valkey:6379/0",
    "valkey.conf": "requirepass of-this-test",
    "xmpp_component_secret": COMPONENT_SECRET,
    **dict.fromkeys(("other_server_private_keys", "alerts_to", "email_password", "aws_shared_credentials"), ""),
}
OWNER = 10001  # the account that compose.yaml names to operators
PEERS = Path(os.environ.get("PEERS", "")).resolve()
PROCESSES = ("web", "bridge", "xmpp", "batches", "tasks", "reports")
# Each process has a port of its own, as all share one loopback.
METRICS_PORTS = {name: str(9100 + number) for number, name in enumerate(PROCESSES)}
INDICATORS = {"database", "broker", "batches", "workers", "node", "xmpp", "gorush"}
FORBIDDEN = ("gcc", "cc", "g++", "make", "uv", "git")
MIB = 2**20


@pytest.fixture(scope="module")
def fleet(
    require_or_skip: Callable[[bool, str], None], guard: Guard, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    require_or_skip(os.geteuid() == 0, "only root can enter an image")
    require_or_skip(bool(shutil.which("buildah")), "there is no Buildah: `make image-test` as root installs it")
    require_or_skip((PROJECT / ".tools" / "compose").exists(), "nothing reads compose.yaml: `make image-test`")
    require_or_skip(all((PEERS / peer).exists() for peer in ("gorush", "waku")), "there are no peers: `make peers`")
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make image-test` as root installs it")
    fleet = Fleet(tmp_path_factory.mktemp("image"), {}, guard)
    yield fleet
    fleet.kill(*reversed(fleet.running))


@pytest.fixture(scope="module")
def database(fleet: Fleet) -> Iterator[str]:
    """Start PostgreSQL on the port of compose.yaml, and yield its URL for this test.

    It runs under an account of its own, which may not enter pytest's folders.
    """
    folder = Path(mkdtemp(prefix="pushserver-image-"))
    server = EmbeddedPostgres(folder / "postgres", {"listen_addresses": "127.0.0.1", "port": "5432"})
    spec = server.spec()
    spec.prepare()
    fleet.start(spec)
    wait_until(server.is_ready, what="PostgreSQL")
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE pushserver LOGIN")
        connection.execute("ALTER DATABASE pushserver OWNER TO pushserver")
    yield "postgresql://pushserver@127.0.0.1:5432/pushserver"
    fleet.stop(spec.name)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def broker(fleet: Fleet, valkey: EmbeddedValkey) -> None:
    """Start Valkey from the wheel, with the command of compose.yaml."""
    write_folders(fleet.folder)
    shell, option, command = read_compose()["valkey"]["command"]
    started = command.replace("docker-entrypoint.sh valkey-server -", f"{valkey.spec().command[0]} - --bind 127.0.0.1")
    script = started.replace("/run/secrets", str(fleet.folder / "secrets"))
    fleet.start(ProcessSpec(name="broker", command=[shell, option, script], stop_order=StopOrder.BROKER))


@pytest.fixture(scope="module")
def servers(fleet: Fleet) -> Servers:
    return Servers(fleet, gorush=PEERS / "gorush", fakes_port=free_port())


@pytest.fixture(scope="module")
def composed(fleet: Fleet, database: str, broker: None, servers: Servers) -> Iterator[tuple[Composed, str, str]]:
    """Start everything in compose.yaml. Yield it with the URL of the phones' node, and of the record of
    Apple's fake.
    """
    gorush, pair = servers.real("gorush"), Nodes(fleet, waku=PEERS / "waku").real_pair()
    xmpp = EmbeddedProsody(fleet.folder / "prosody", free_port(), 5347, {COMPONENT: COMPONENT_SECRET})
    xmpp.prepare()
    fleet.start(xmpp.spec())
    variables = {
        "WAKU_NODES": pair.here.replace("127.0.0.1", "nwaku"),
        "GORUSH_URL": gorush.url.replace("127.0.0.1", "gorush"),
        "XMPP_COMPONENT_JID": COMPONENT,
        "XMPP_COMPONENT_TUNNELLED": "1",
    }
    host = Composed(read_compose(**variables), fleet.folder)
    fleet.run(host.spec("migrate"))
    for name in PROCESSES:
        fleet.start(host.spec(name, METRICS_PORT=METRICS_PORTS[name]))
    wait_for_http("http://localhost:8000/healthz")
    yield host, pair.there, gorush.record_url
    fleet.stop(*PROCESSES)
    for image in host.images.values():
        image.close()


def write_folders(folder: Path) -> None:
    """Write the files that compose.yaml requires of the operator, and the host names that Docker gives to
    containers.
    """
    (folder / "secrets").mkdir()
    for name, value in SECRETS.items():
        file = folder / "secrets" / name
        file.write_text(value + "\n", encoding="ascii")
        file.chmod(0o600)
        os.chown(file, OWNER, OWNER)
    names = "localhost postgres valkey gorush nwaku prosody " + " ".join(PROCESSES)
    (folder / "hosts").write_text(f"127.0.0.1 {names}\n", encoding="ascii")


def readiness() -> dict[str, Any]:
    return dict(ask("http://127.0.0.1:8000", "GET", "/readyz").body)


def executed(fleet: Fleet, host: Composed, service: str, command: str) -> str:
    """Return the output of `docker compose exec SERVICE COMMAND`, and check that it succeeded."""
    spec = host.spec(service, command, METRICS_PORT="0")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(spec.command, env=environment, cwd=fleet.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_everything_is_ready(composed: tuple[Composed, str, str]) -> None:
    with suppress(AssertionError):
        wait_until(lambda: readiness()["status"] == "ready", what="ready")
    states = {found["id"].partition("-")[0]: found["state"] for found in readiness()["indicators"]}
    assert states.keys() == INDICATORS
    assert "act now" not in states.values()


def test_each_process_serves_its_metrics(composed: tuple[Composed, str, str]) -> None:
    for name in set(PROCESSES) - {"web"}:
        answer = ask(f"http://127.0.0.1:{METRICS_PORTS[name]}", "GET", "/metrics")
        assert answer.status == 200, name
    token = {"Authorization": f"Bearer {SECRETS['metrics_token']}", "Host": "web:8000"}
    assert b"pushserver_inbox_oldest_age_seconds" in ask("http://127.0.0.1:8000", "GET", "/metrics", headers=token).body


def test_each_process_is_its_own_user_without_rights(fleet: Fleet, composed: tuple[Composed, str, str]) -> None:
    for name in PROCESSES:
        status = Path(f"/proc/{fleet.running[name].pid}/status").read_text(encoding="ascii")
        facts = dict(line.split(":\t", 1) for line in status.splitlines())
        assert set(facts["Uid"].split()) == {str(OWNER)}, name
        assert {facts[capabilities] for capabilities in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}, name
        assert facts["NoNewPrivs"] == "1", name


def test_the_files_of_an_image_are_read_only(fleet: Fleet, composed: tuple[Composed, str, str]) -> None:
    script = (
        "import os; print([p for p in ('/srv/pushserver', '/etc', '/run/secrets', '/data') if os.access(p, os.W_OK)])"
    )
    assert executed(fleet, composed[0], "web", f'python -c "{script}"').strip() == "['/data']"


@pytest.mark.parametrize("platform", [iphone, android], ids=["iOS", "Android"])
def test_a_registration_and_a_request_wake_the_phone_once(
    composed: tuple[Composed, str, str], database: str, platform: Callable[[], Address]
) -> None:
    _, node_url, record_url = composed
    server = Identity(PrivateKey(bytes.fromhex(SERVER_KEY))).pub33
    network = Network(node_url, record_url, database, server, node_type=RelayReader)
    address = platform()
    sender, phone = new_sender(), network.phone(address)
    (report,) = network.notify(sender, network.query(sender, phone))
    assert report.success
    assert [push["error"] for push in network.pushes_to(address)] == [""]
    network.close()


def test_a_nightly_report_is_made(fleet: Fleet, composed: tuple[Composed, str, str], database: str) -> None:
    """The report is about the messages of the test before, moved to yesterday."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE notifications_attempt SET started_at = started_at - interval '1 day'")
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
        executed(fleet, composed[0], "reports", f"python manage.py run_reports --day {yesterday} --replace")
        states = connection.execute("SELECT state, event_count > 0 FROM spark_reports_reportrun").fetchall()
        assert states
        assert set(states) == {("succeeded", True)}
    assert list((fleet.folder / "lake").glob("lake/reports/**/*.parquet"))
    assert not list((fleet.folder / "scratch").iterdir())


def test_images_hold_only_what_they_need(
    composed: tuple[Composed, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for image in composed[0].images.values():
        programs = {
            file.name
            for folder in ("bin", "usr/bin", "usr/local/bin", "opt/pushserver/bin")
            for file in (image.root / folder).iterdir()
        }
        assert not programs & set(FORBIDDEN)
        assert ("java" in programs) == image.name.endswith("reports")
        assert not list((image.root / "srv/pushserver").rglob("tests"))
        assert not list((image.root / "opt/pushserver/lib/python3.11/site-packages").glob("p*gserver"))
        size = sum(file.lstat().st_size for file in image.root.rglob("*"))
        with capsys.disabled():
            print(f"\n{image.name}: {size / MIB:.0f} MiB")
