"""The chart and the systemd units start what compose.yaml starts; `make check-deploy` checks their form."""

import re
import shlex
import subprocess
from pathlib import Path
from signal import SIGTERM

import pytest
import yaml
from django.conf import settings
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as NotConnected
from redis.retry import Retry

from embedded.servers.ports import free_port
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.guard import Guard

PATIENT = Retry(ConstantBackoff(0.05), 200, (NotConnected,))
ROOT = settings.BASE_DIR
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text(encoding="utf-8"))
OURS = ("migrate", "bridge", "xmpp", "batches", "tasks", "reports")
SECRETS = [Path(value).name for name, value in SERVICES["web"]["environment"].items() if name.endswith("_FILE")]


def unit(name: str) -> str:
    return (ROOT / f"deploy/systemd/push-server-{name}.service").read_text(encoding="utf-8")


def started_by_unit(name: str) -> list[str]:
    """The program and its arguments as compose names them. The web server's port is that of the machine."""
    (command,) = re.findall(r"^ExecStart=(.+)$", unit(name), re.MULTILINE)
    inner = re.sub(r"^/bin/sh -c 'until (.+); do sleep 5; done'$", r"\1", command)
    return shlex.split(inner.replace("/opt/push-server/.venv/bin/", "").replace("%%", "%"))


def started_by_chart(name: str) -> list[str]:
    helpers = (ROOT / "deploy/chart/templates/_helpers.tpl").read_text(encoding="utf-8")
    (command,) = re.findall(rf'^  "{name}" "(.*?)"', helpers, re.MULTILINE)
    return shlex.split(command)


def started_by_image() -> list[str]:
    last = (ROOT / "Dockerfile").read_text(encoding="utf-8").rsplit("CMD ", 1)[1]
    return list(yaml.safe_load(last.replace("\\\n", "")))


@pytest.mark.parametrize("name", OURS)
def test_unit_chart_and_compose_start_the_same(name: str) -> None:
    composed = shlex.split(SERVICES[name]["command"])
    assert started_by_unit(name) == started_by_chart(name) == composed


def test_the_web_server_is_that_of_the_image_but_for_its_address() -> None:
    assert "command" not in SERVICES["web"]
    assert not started_by_chart("web")
    assert [word.replace("127.0.0.1", "0.0.0.0") for word in started_by_unit("web")] == started_by_image()  # noqa: S104


def test_every_process_of_compose_is_in_the_chart_and_in_the_target() -> None:
    ours = {name for name, service in SERVICES.items() if service.get("image", "").startswith("status-push-server")}
    assert ours | {"xmpp"} == {*VALUES["processes"], "migrate"}
    target = (ROOT / "deploy/systemd/push-server.target").read_text(encoding="utf-8")
    assert set(re.findall(r"push-server-(\w+)\.service", target)) == ours - {"migrate", "xmpp"}


def test_all_are_given_time_to_stop_as_compose_gives_it() -> None:
    for name in ("bridge", "xmpp", "batches", "tasks", "reports"):
        seconds = SERVICES[name]["stop_grace_period"].removesuffix("s")
        assert f"\nTimeoutStopSec={seconds}\n" in unit(name)
        assert VALUES["processes"][name]["stopSeconds"] == int(seconds)


def test_all_read_the_same_secrets_from_files() -> None:
    common = (ROOT / "deploy/systemd/push-server-.service.d/common.conf").read_text(encoding="utf-8")
    assert sorted(SECRETS) == sorted(VALUES["secret"]["keys"])
    assert sorted(re.findall(r"^LoadCredential=(\w+):", common, re.MULTILINE)) == sorted(SECRETS)
    assert sorted(re.findall(r"_FILE=%d/(\w+)", common)) == sorted(SECRETS)


def test_the_image_holds_every_package_of_ours() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="ascii").splitlines() if line[:1] == "!"}
    packages = {name.split(".")[0] for name in settings.INSTALLED_APPS} | {"kit"}
    ours = {name for name in packages if (ROOT / name).is_dir()}
    assert len(ours) > 5
    assert ours <= kept


# What is kept of logs -------------------------------------------------------------------------------------------------


def test_no_container_fills_the_disk_of_the_database_with_its_log() -> None:
    for name, service in SERVICES.items():
        kept = service["logging"]
        assert (kept["driver"], kept["options"]) == ("local", {"max-size": "50m", "max-file": "5"}), name


# Who reaches what is stored -------------------------------------------------------------------------------------------

COMPOSED = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
STORES = ("postgres", "valkey")


def networks(service: str) -> set[str]:
    return set(SERVICES[service].get("networks", ["default"]))


def test_what_reads_what_strangers_send_shares_no_network_with_what_is_stored() -> None:
    ours = {name for name, service in SERVICES.items() if service.get("image", "").startswith("status-push-server")}
    peers = set(SERVICES) - ours - {*STORES}
    assert {"gorush", "nwaku"} <= peers
    shut = {name for name in set.union(*map(networks, STORES)) if COMPOSED["networks"][name]["internal"]}
    for store in STORES:
        assert networks(store) == shut != set()
        assert "ports" not in SERVICES[store]
    for peer in peers:
        assert not networks(peer) & shut, peer
    for name in ours:
        assert networks(name) == shut | {"default"}, name


def test_valkey_wants_a_password_that_stands_in_a_secret_alone(tmp_path: Path, guard: Guard) -> None:
    """The command of compose.yaml, with the program of the wheel and a folder in place of the container's."""
    (tmp_path / "valkey.conf").write_text("requirepass of-this-test\n", encoding="ascii")
    shell, option, command = SERVICES["valkey"]["command"]
    server = EmbeddedValkey(tmp_path / "data", port := free_port())
    inside = f"{server.spec().command[0]} - --bind 127.0.0.1 --port {port} --dir {tmp_path}"
    script = command.replace("docker-entrypoint.sh valkey-server -", inside).replace("/run/secrets", str(tmp_path))
    with subprocess.Popen([shell, option, script], stdout=subprocess.DEVNULL) as process:
        guard.watch(process.pid, SIGTERM)
        try:
            assert "of-this-test" not in Path(f"/proc/{process.pid}/cmdline").read_text(encoding="ascii")
            with Redis(port=port, password="of-this-test", retry=PATIENT) as insider, Redis(port=port) as outsider:
                assert insider.ping()
                assert insider.config_get("appendonly") == {"appendonly": "yes"}
                with pytest.raises(AuthenticationError):
                    outsider.ping()
        finally:
            process.terminate()


def test_no_set_up_names_a_redis_without_a_password() -> None:
    files = ("compose.yaml", "docs/installation.md", "deploy/chart/values.yaml", "deploy/systemd/environment.example")
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(url.startswith("redis://:") for url in re.findall(r"rediss?://\S+", text)), file
