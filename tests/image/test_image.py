"""Each process of compose.yaml, run from the image that Buildah made of the Dockerfile: as its own user, with the
environment, secrets and folders of compose.yaml, beside PostgreSQL, Valkey, Prosody, a node and gorush.

`make image-test` builds the images first; with IMAGES=server (CI) without that of the reports. All processes share one
loopback, where containers would have addresses of their own: host names lead to it.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
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
from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.image.composed import Composed, read_compose
from tests.rig import server as processes
from tests.rig.network import Network, android, iphone, new_sender
from tests.rig.peers import ask
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
HAS_REPORTS = "reports" in os.environ.get("IMAGES", "server reports").split()
PROCESSES = ("web", "bridge", "xmpp", "batches", "tasks", *(["reports"] if HAS_REPORTS else []))
# Each process has a port of its own, as all share one loopback.
METRICS_PORTS = {name: str(9100 + number) for number, name in enumerate(PROCESSES)}
INDICATORS = {"database", "broker", "bridge", "batches", "workers", "node", "xmpp", "gorush"}
FORBIDDEN = {"gcc", "cc", "g++", "make", "uv", "git"}
DATABASE = "postgresql://pushserver@127.0.0.1:5432/pushserver"
WEB = "http://127.0.0.1:8000"
MIB = 2**20


@pytest.fixture(scope="module")
def fleet(
    require_or_skip: Callable[[bool, str], None],
    guard: Guard,
    valkey: EmbeddedValkey,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """Start the peers: PostgreSQL, Valkey with the command of compose.yaml, Prosody, a node and gorush."""
    require_or_skip(os.geteuid() == 0, "only root can enter an image")
    require_or_skip(bool(shutil.which("buildah")), "there is no Buildah: `make image-test` as root installs it")
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make image-test` as root installs it")
    node, gorush = free_port(), free_port()
    peers = {"WAKU_NODES": f"http://nwaku:{node}", "GORUSH_URL": f"http://gorush:{gorush}"}
    fleet = Fleet(tmp_path_factory.mktemp("image"), peers, guard)
    _write_files(fleet.folder)
    store = Path(mkdtemp(prefix="pushserver-image-"))  # its account may not enter pytest's folders
    database = EmbeddedPostgres(store / "postgres", {"listen_addresses": "127.0.0.1", "port": "5432"})
    shell, option, command = read_compose()["valkey"]["command"]
    started = command.replace("docker-entrypoint.sh valkey-server -", f"{valkey.spec().command[0]} - --bind 127.0.0.1")
    script = started.replace("/run/secrets", str(fleet.folder / "secrets"))
    xmpp = EmbeddedProsody(fleet.folder / "prosody", free_port(), 5347, {COMPONENT: COMPONENT_SECRET})
    (spec := database.spec()).prepare()
    xmpp.prepare()
    broker = ProcessSpec(name="broker", command=[shell, option, script], stop_order=StopOrder.BROKER)
    fleet.start(spec, broker, xmpp.spec(), processes.node(node), processes.gorush(gorush))
    wait_until(database.is_ready, what="PostgreSQL")
    with psycopg.connect(database.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE pushserver LOGIN")
        connection.execute("ALTER DATABASE pushserver OWNER TO pushserver")
    yield fleet
    fleet.kill(*reversed(fleet.running))
    shutil.rmtree(store)


@pytest.fixture(scope="module")
def host(fleet: Fleet) -> Iterator[Composed]:
    """Start every service of ours in compose.yaml."""
    xmpp = {"XMPP_COMPONENT_JID": COMPONENT, "XMPP_COMPONENT_TUNNELLED": "1"}
    host = Composed(read_compose(**fleet.environment, **xmpp), fleet.folder)
    fleet.run(host.spec("migrate"))
    for name in PROCESSES:
        fleet.start(host.spec(name, METRICS_PORT=METRICS_PORTS[name]))
    wait_for_http(f"{WEB}/healthz")
    yield host
    fleet.stop(*PROCESSES)
    for image in host.images.values():
        image.close()


def _write_files(folder: Path) -> None:
    """Write the secrets that compose.yaml requires of the operator, and the host names that Docker gives."""
    (folder / "secrets").mkdir()
    for name, value in SECRETS.items():
        file = folder / "secrets" / name
        file.write_text(value + "\n", encoding="ascii")
        file.chmod(0o600)
        os.chown(file, OWNER, OWNER)
    names = "localhost postgres valkey gorush nwaku prosody " + " ".join(PROCESSES)
    (folder / "hosts").write_text(f"127.0.0.1 {names}\n", encoding="ascii")


def readiness() -> dict[str, Any]:
    return dict(ask(WEB, "GET", "/readyz").body)


def executed(fleet: Fleet, host: Composed, service: str, command: str) -> str:
    """Return the output of `docker compose exec SERVICE COMMAND`, and check that it succeeded."""
    spec = host.spec(service, command, METRICS_PORT="0")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(spec.command, env=environment, cwd=fleet.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("host")
def test_everything_is_ready_and_each_process_serves_its_metrics() -> None:
    wait_until(lambda: readiness()["status"] == "ready", what="ready")
    assert {found["id"].partition("-")[0] for found in readiness()["indicators"]} == INDICATORS
    for name in set(PROCESSES) - {"web"}:
        assert ask(f"http://127.0.0.1:{METRICS_PORTS[name]}", "GET", "/metrics").status == 200, name
    token = {"Authorization": f"Bearer {SECRETS['metrics_token']}", "Host": "web:8000"}
    assert b"pushserver_inbox_oldest_age_seconds" in ask(WEB, "GET", "/metrics", headers=token).body


def test_each_process_is_its_own_user_without_rights_and_its_files_are_read_only(fleet: Fleet, host: Composed) -> None:
    for name in PROCESSES:
        status = Path(f"/proc/{fleet.running[name].pid}/status").read_text(encoding="ascii")
        facts = dict(line.split(":\t", 1) for line in status.splitlines())
        assert set(facts["Uid"].split()) == {str(OWNER)}, name
        assert {facts[capabilities] for capabilities in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}, name
        assert facts["NoNewPrivs"] == "1", name
    folders = ("/srv/pushserver", "/etc", "/run/secrets", "/data")
    script = f"import os; print([p for p in {folders} if os.access(p, os.W_OK)])"
    assert executed(fleet, host, "web", f'python -c "{script}"').strip() == "['/data']"


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("platform", [iphone, android], ids=["iOS", "Android"])
def test_a_registration_and_a_request_wake_the_phone_once(fleet: Fleet, platform: Callable[[], Address]) -> None:
    node, gorush = (
        f"http://127.0.0.1:{processes.port_of(fleet.environment[name])}" for name in ("WAKU_NODES", "GORUSH_URL")
    )
    network = Network(node, gorush, DATABASE, Identity(PrivateKey(bytes.fromhex(SERVER_KEY))).pub33)
    address = platform()
    sender, phone = new_sender(), network.phone(address)
    (report,) = network.notify(sender, network.query(sender, phone))
    assert report.success
    assert [push["error"] for push in network.pushes_to(address)] == [""]
    network.close()


@pytest.mark.skipif(not HAS_REPORTS, reason="IMAGES has no reports")
def test_a_nightly_report_is_made(fleet: Fleet, host: Composed) -> None:
    """The report is about the messages of the test before, moved to yesterday."""
    with psycopg.connect(DATABASE, autocommit=True) as connection:
        connection.execute("UPDATE notifications_attempt SET started_at = started_at - interval '1 day'")
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
        executed(fleet, host, "reports", f"python manage.py run_reports --day {yesterday} --replace")
        states = connection.execute("SELECT state, event_count > 0 FROM spark_reports_reportrun").fetchall()
    assert set(states) == {("succeeded", True)}
    assert list((fleet.folder / "lake").glob("lake/reports/**/*.parquet"))
    assert not list((fleet.folder / "scratch").iterdir())


def test_images_hold_only_what_they_need(host: Composed, capsys: pytest.CaptureFixture[str]) -> None:
    for image in host.images.values():
        folders = ("bin", "usr/bin", "usr/local/bin", "opt/pushserver/bin")
        programs = {file.name for folder in folders for file in (image.root / folder).iterdir()}
        assert not programs & FORBIDDEN
        assert ("java" in programs) == image.name.endswith("reports")
        assert not list((image.root / "srv/pushserver").rglob("tests"))
        assert not list((image.root / "opt/pushserver/lib/python3.11/site-packages").glob("p*gserver"))
        with capsys.disabled():
            print(f"\n{image.name}: {sum(file.lstat().st_size for file in image.root.rglob('*')) / MIB:.0f} MiB")
