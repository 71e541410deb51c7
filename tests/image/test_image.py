"""Each process of compose.yaml, run from the image that Buildah made of the Dockerfile: as its own user, with the
environment, secrets and folders of compose.yaml, beside PostgreSQL, Valkey, Prosody, a node and gorush.

`make image-test` builds the images first; with IMAGES=server (CI) without that of the reports. All processes share one
loopback, where containers would have addresses of their own: host names lead to it. `make check-deploy` reads
compose.yaml by the specification of Compose; this module knows the forms that it uses.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
import pytest
import yaml
from coincurve import PrivateKey
from redis import AuthenticationError, Redis

from embedded.servers import prosody
from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.prosody import EmbeddedProsody
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from tests.rig import server as processes
from tests.rig.network import Network, android, iphone, new_sender
from tests.rig.peers import ask
from tests.rig.server import Fleet, wait_for_http, wait_until
from waku_bridge.client.state import Address
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
    **dict.fromkeys(("canary_device_token", "gorush_hook_secret", "otel_exporter_otlp_headers"), ""),
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
ENTER = Path(__file__).with_name("enter.sh")
VARIABLE = re.compile(r"\$\{(\w+):-([^{}]*)\}")
# Docker's default options for a tmpfs.
TMPFS = "noexec,nosuid,nodev,mode=1777"


def output_of(*command: str, cwd: Path = PROJECT, env: Mapping[str, str] = os.environ) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_compose(**dot_env: str) -> dict[str, Any]:
    """Return the services, as with a .env of these variables."""
    text = (PROJECT / "compose.yaml").read_text(encoding="utf-8")
    services = dict(yaml.safe_load(VARIABLE.sub(lambda found: dot_env.get(found[1]) or found[2], text))["services"])
    for service in services.values():
        if "env_file" in service:
            service["environment"] = dot_env | service["environment"]
    return services


@dataclass(frozen=True)
class Image:
    """An image that Buildah has built, with its files in ``root``."""

    name: str

    @cached_property
    def container(self) -> str:
        return output_of("buildah", "from", "--pull-never", f"localhost/{self.name}").strip()

    @cached_property
    def root(self) -> Path:
        return Path(output_of("buildah", "mount", self.container).strip())

    @cached_property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(output_of("buildah", "inspect", self.container))["OCIv1"]["config"])

    def close(self) -> None:
        output_of("buildah", "rm", self.container)


@dataclass(frozen=True, slots=True)
class Composed:
    """A host with the services. ``folder`` holds the files of the operator and of Docker: secrets, hosts, volumes."""

    services: Mapping[str, Any]
    folder: Path
    images: dict[str, Image] = field(default_factory=dict)

    def image(self, service: str) -> Image:
        name = self.services[service]["image"]
        return self.images.setdefault(name, Image(name))

    def spec(self, service: str, command: str = "", **environment: str) -> ProcessSpec:
        """Return the process of a service, or of another command in its container, as `docker compose exec` runs it."""
        image, settings = self.image(service), self.services[service]
        words = shlex.split(command or settings.get("command") or "") or image.config["Cmd"]
        variables = [*image.config["Env"], "HOME=/home/pushserver", f"HOSTNAME={service}"]
        variables += [f"{name}={value}" for name, value in {**settings["environment"], **environment}.items()]
        [mounted] = settings["tmpfs"]
        tmpfs = f"{TMPFS},{mounted.partition(':')[2]}".rstrip(",")
        paths = [str(image.root), str(self._secrets(service)), str(self.folder / "hosts"), tmpfs]
        inside = [image.config["User"], image.config["WorkingDir"], " ".join(self._volumes(service))]
        enter = ["unshare", "--mount", str(ENTER), *paths, *inside]
        return ProcessSpec(
            name=service, command=[*enter, "--ignore-environment", *variables, *words], stop_order=StopOrder.WORKER
        )

    def _secrets(self, service: str) -> Path:
        """Return a folder with the secrets of a service, and no other."""
        (own := self.folder / f"secrets-{service}").mkdir(exist_ok=True)
        for name in self.services[service]["secrets"]:
            file = own / name
            file.write_text(SECRETS[name] + "\n", encoding="ascii")
            file.chmod(0o600)
            os.chown(file, OWNER, OWNER)
        return own

    def _volumes(self, service: str) -> list[str]:
        """Make a folder for each volume of the image, with the name from compose.yaml and the owner from the image."""
        image = self.image(service)
        named = {path: name for name, _, path in (v.partition(":") for v in self.services[service].get("volumes", []))}
        made = {}
        for path in image.config["Volumes"]:
            owner = (image.root / path.lstrip("/")).stat()
            made[path] = self.folder / named.get(path, f"{service}-{Path(path).name}")
            made[path].mkdir(mode=0o700, exist_ok=True)
            os.chown(made[path], owner.st_uid, owner.st_gid)
        return [f"{folder}:{path}" for path, folder in made.items()]


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


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
    (fleet.folder / "secrets").mkdir()
    (fleet.folder / "secrets/valkey.conf").write_text(SECRETS["valkey.conf"] + "\n", encoding="ascii")
    names = "localhost postgres valkey gorush nwaku prosody " + " ".join(PROCESSES)  # as Docker gives them
    (fleet.folder / "hosts").write_text(f"127.0.0.1 {names}\n", encoding="ascii")
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
    wait_until(lambda: is_open(6379), what="Valkey")
    with psycopg.connect(database.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE pushserver LOGIN")
        connection.execute("ALTER DATABASE pushserver OWNER TO pushserver")
    assert "of-this-test" not in Path(f"/proc/{fleet.running['broker'].pid}/cmdline").read_text(encoding="ascii")
    with Redis(password="of-this-test") as insider, Redis() as outsider:
        assert insider.config_get("appendonly") == {"appendonly": "yes"}
        with pytest.raises(AuthenticationError):
            outsider.ping()
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


def executed(fleet: Fleet, host: Composed, service: str, command: str) -> str:
    """Return the output of `docker compose exec SERVICE COMMAND`, and check that it succeeded."""
    command_line = host.spec(service, command, METRICS_PORT="0").command
    return output_of(*command_line, cwd=fleet.folder, env={"PATH": os.environ["PATH"]})


@pytest.mark.usefixtures("host")
def test_everything_is_ready_and_each_process_serves_its_metrics() -> None:
    wait_until(lambda: ask(WEB, "GET", "/readyz").body["status"] == "ready", what="ready")
    found = ask(WEB, "GET", "/readyz").body["indicators"]
    assert {indicator["id"].partition("-")[0] for indicator in found} == INDICATORS
    token = {"Authorization": f"Bearer {SECRETS['metrics_token']}", "Host": "web:8000"}
    for name in set(PROCESSES) - {"web"}:
        url = f"http://127.0.0.1:{METRICS_PORTS[name]}"
        assert [ask(url, "GET", "/metrics", headers=sent).status for sent in ({}, token)] == [401, 200], name
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
        connection.execute("UPDATE notifications_endedattempt SET started_at = started_at - interval '1 day'")
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
