"""The chart and the systemd units start what compose.yaml starts; `make check-deploy` checks their form."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as NotConnected
from redis.retry import Retry

from embedded.servers.ports import free_port
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.guard import Guard
from tests.drills.backups import Backups

PATIENT = Retry(ConstantBackoff(0.05), 200, (NotConnected,))
ROOT = settings.BASE_DIR
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text(encoding="utf-8"))
EVERYTHING = yaml.safe_load((ROOT / "deploy/chart/ci/everything.yaml").read_text(encoding="utf-8"))
COMMON = (ROOT / "deploy/systemd/push-server-.service.d/common.conf").read_text(encoding="utf-8")
OURS = ("migrate", "bridge", "xmpp", "batches", "tasks", "reports")
SECRETS = [Path(value).name for name, value in SERVICES["web"]["environment"].items() if name.endswith("_FILE")]
# Services that are optional.
OPTIONAL = {"xmpp_component_secret", "other_server_private_keys", "alerts_to", "email_password"}
XMPP_JID, MAIL = {"XMPP_COMPONENT_JID": "push.example.org"}, {"EMAIL_HOST": "mail.example.org"}
GIVEN = {
    "database_url": "postgresql://pushserver@127.0.0.1:1/pushserver",
    "redis_url": "redis://:of-this-test@127.0.0.1:1/0",
    "secret_key": "only-for-this-test-and-long-enough-for-the-checks-of-django-1234",
    "field_encryption_keys": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "server_private_key": "04" * 32,
    "metrics_token": "0123456789abcdef",
}
GIVEN_ALL = GIVEN | {
    "xmpp_component_secret": "0123456789abcdef",
    "other_server_private_keys": "05" * 32,
    "alerts_to": "ann@example.org,https://hooks.example.org/5ecret",
    "email_password": "of-this-test",
}


def unit(name: str) -> str:
    return (ROOT / f"deploy/systemd/push-server-{name}.service").read_text(encoding="utf-8")


def started_by_unit(name: str) -> list[str]:
    """Return the program of a unit and its arguments as in compose. The web server has the port of the machine."""
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
    of_all = set(re.findall(r"push-server-(\w+)\.service", target))
    assert of_all == ours - {"migrate", "xmpp", "reports"}
    # `systemctl disable` does not stop units that the target itself wants.
    assert all("\nWantedBy=push-server.target\n" in unit(name) for name in of_all | {"xmpp", "reports"})


def test_all_are_given_time_to_stop_as_compose_gives_it() -> None:
    for name in ("bridge", "xmpp", "batches", "tasks", "reports"):
        seconds = SERVICES[name]["stop_grace_period"].removesuffix("s")
        assert f"\nTimeoutStopSec={seconds}\n" in unit(name)
        assert VALUES["processes"][name]["stopSeconds"] == int(seconds)


def test_all_read_the_same_secrets_from_files() -> None:
    assert set(SECRETS) > OPTIONAL
    assert set(SECRETS) - OPTIONAL == set(VALUES["secret"]["keys"])
    assert sorted(SECRETS) == sorted(EVERYTHING["secret"]["keys"])
    assert sorted(re.findall(r"^LoadCredential=(\w+):", COMMON, re.MULTILINE)) == sorted(SECRETS)
    assert sorted(re.findall(r"_FILE=%d/(\w+)", COMMON)) == sorted(SECRETS)
    manage = (ROOT / "deploy/systemd/push-server-manage").read_text(encoding="utf-8")
    [names] = re.findall(r"for name in ([^;]+);", manage)
    assert sorted(names.replace("\\", "").lower().split()) == sorted(SECRETS)


def test_compose_mounts_every_secret_that_it_names_and_takes_other_settings_from_a_file() -> None:
    for name, service in SERVICES.items():
        values = [str(value) for value in (service.get("environment") or {}).values()]
        named = {Path(value).name for value in values if value.startswith("/run/secrets/")}
        assert named <= set(service.get("secrets", [])) <= set(COMPOSED["secrets"]), name
    assert "aws_shared_credentials" not in SERVICES["web"]["secrets"]
    ours = [service for service in SERVICES.values() if service.get("image", "").startswith("status-push-server")]
    assert {str(service["env_file"]) for service in ours} == {str([{"path": ".env", "required": False}])}


def test_each_command_named_in_deploy_exists() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()] + [ROOT / "compose.yaml"]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"python manage\.py (\w+)", texts))
    assert {"migrate", "first_admin"} <= named <= set(get_commands())
    assert "createsuperuser" not in texts  # Django's own command; ours generates the password, and prints it once


# System checks of the server with the configuration of each deployment -----------------------------------------------


def problems(environment: Mapping[str, str], folder: Path) -> list[str]:
    """Return the ids of the problems that `manage.py check` finds in an environment."""
    ours = {"PATH": os.environ["PATH"], "DATA_DIR": str(folder / "data"), "METRICS_DIR": str(folder / "metrics")}
    command = [sys.executable, str(ROOT / "manage.py"), "check"]
    ended = subprocess.run(
        command, env={**environment, **ours}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert "System check identified" in ended.stdout + ended.stderr, ended.stderr
    return re.findall(r"\((pushserver\.\w+)\)", ended.stderr)


def written(folder: Path, names: Iterable[str], texts: Mapping[str, str]) -> Path:
    """Write secrets into a folder. An empty secret is an error, as it is for systemd and Kubernetes."""
    (secrets := folder / "secrets").mkdir(parents=True)
    for name in names:
        (secrets / name).write_text(texts[name] + "\n", encoding="ascii")
    return secrets


def given_by_systemd(text: str, folder: Path, texts: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return the environment of a unit's process: that of the unit and of its environment files."""
    defaults = {name: "" for name, value in re.findall(r"^SetCredential=(\w+):(.*)$", text, re.MULTILINE)}
    secrets = written(folder, re.findall(r"^LoadCredential=(\w+):", text, re.MULTILINE), defaults | dict(texts))
    words = shlex.split(" ".join(re.findall(r"^Environment=(.+)$", text, re.MULTILINE)).replace("%d", str(secrets)))
    example = (ROOT / "deploy/systemd/environment.example").read_text(encoding="utf-8")
    lines = [line for line in example.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in [*lines, *words]) | settings


@pytest.mark.parametrize("name", ["migrate", "xmpp", "reports"])
def test_units_start_with_few_secrets_and_with_all(name: str, tmp_path: Path) -> None:
    """With XMPP as in docs/xmpp.md: all units read the environment file with the JID, so all need the secret."""
    text = COMMON + unit(name)
    assert problems(given_by_systemd(text, tmp_path / "few", GIVEN), tmp_path) == []
    assert problems(given_by_systemd(text, tmp_path / "all", GIVEN_ALL, **XMPP_JID, **MAIL), tmp_path) == []
    half = given_by_systemd(text, tmp_path / "half", GIVEN, **XMPP_JID)
    assert problems(half, tmp_path) == ["pushserver.half_xmpp_component"]


def given_by_compose(service: str, secrets: Path, **dot_env: str) -> dict[str, str]:
    """Return the environment of a container: the variables of .env, and those that compose.yaml makes from them."""
    named = {name: str(value) for name, value in SERVICES[service]["environment"].items()}
    filled = {
        name: re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: dot_env.get(found[1]) or found[2], value)
        for name, value in named.items()
    }
    return dot_env | {name: value.replace("/run/secrets", str(secrets)) for name, value in filled.items()}


def test_the_chart_with_everything_passes_the_check_of_its_migration(tmp_path: Path) -> None:
    secrets = written(tmp_path, EVERYTHING["secret"]["keys"], GIVEN_ALL)
    files = {f"{name.upper()}_FILE": str(secrets / name) for name in EVERYTHING["secret"]["keys"]}
    assert problems({**VALUES["settings"], **EVERYTHING["settings"], **files}, tmp_path) == []


# Objects of the chart -------------------------------------------------------------------------------------------------
Rendered = Callable[[str], dict[tuple[str, str], Any]]


@pytest.fixture
def rendered(require_or_skip: Callable[[bool, str], None]) -> Rendered:
    """Return the function ``rendered(values)``, which returns the objects of the chart by kind and name."""
    helm = ROOT / ".tools" / "helm"
    require_or_skip(helm.exists(), "there is no Helm: `make check-deploy` builds it")

    def render(values: str) -> dict[tuple[str, str], Any]:
        command = [str(helm), "template", "push", "deploy/chart", "--kube-version", "1.34.1"]
        command += ["--values", f"deploy/chart/{values}.yaml"]
        text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return {(made["kind"], made["metadata"]["name"]): made for made in yaml.safe_load_all(text) if made}

    return render


def goes_out(made: dict[tuple[str, str], Any], process: str) -> set[int]:
    """Return the ports that the pods of a process may connect to, by all policies about them."""
    labels = {
        "app.kubernetes.io/name": "push-server",
        "app.kubernetes.io/instance": "push",
        "app.kubernetes.io/component": process,
    }
    policies = [policy["spec"] for (kind, _), policy in made.items() if kind == "NetworkPolicy"]
    of_it = [spec for spec in policies if is_about(spec["podSelector"], labels)]
    rules = [rule for spec in of_it for rule in spec.get("egress", [])]
    return {port["port"] for rule in rules for port in rule.get("ports", [])}


def is_about(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    among = [(found["key"], found["values"]) for found in selector.get("matchExpressions", [])]
    return selector["matchLabels"].items() <= labels.items() and all(labels[key] in values for key, values in among)


def test_pods_reach_the_xmpp_server_the_mail_server_and_webhooks_where_there_are_any(rendered: Rendered) -> None:
    usual = {53, *VALUES["networkPolicy"]["egressPorts"]}
    few, everything = rendered("values"), rendered("ci/everything")
    assert {process: goes_out(few, process) for process in VALUES["processes"]} == dict.fromkeys(
        VALUES["processes"], usual
    )
    assert goes_out(everything, "xmpp") == usual | {5347}
    assert goes_out(everything, "tasks") == goes_out(everything, "web") == usual | {5347, 587, 443, 8065}


def test_pods_are_asked_by_their_address(rendered: Rendered) -> None:
    [container] = rendered("values")["Deployment", "push-web"]["spec"]["template"]["spec"]["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert probes == [{"path": "/healthz", "port": "http"}] * 3


def test_a_lake_in_an_object_store_needs_no_volume_and_is_reached_by_reports_alone(rendered: Rendered) -> None:
    here, elsewhere = rendered("values"), rendered("ci/object-store")
    assert ("PersistentVolumeClaim", "push-lake") in here
    assert ("PersistentVolumeClaim", "push-lake") not in elsewhere
    pods = {
        process: elsewhere["Deployment", f"push-{process}"]["spec"]["template"]["spec"]
        for process in ("reports", "web")
    }
    [lake] = [volume for volume in pods["reports"]["volumes"] if volume["name"] == "lake"]
    assert lake["emptyDir"]
    assert 443 in goes_out(elsewhere, "reports") - goes_out(here, "reports")
    variables = {process: {one["name"] for one in pod["containers"][0]["env"]} for process, pod in pods.items()}
    assert variables["reports"] - variables["web"] == {
        "AWS_SHARED_CREDENTIALS_FILE",
        "SPARK_LOCAL_DIRS",
        "SPARK_LOCAL_HOSTNAME",
    }
    mounted = {process: {item["key"] for item in pod["volumes"][0]["secret"]["items"]} for process, pod in pods.items()}
    assert mounted["reports"] - mounted["web"] == {"aws_shared_credentials"}
    executors = elsewhere["NetworkPolicy", "push-reports"]["spec"]["ingress"]
    assert executors == [{"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "spark"}}}]}]


# The database of compose.yaml, and its backup -------------------------------------------------------------------------


def test_the_archive_is_kept_as_the_drill_keeps_it() -> None:
    overlay = (ROOT / "deploy/compose/archive.yaml").read_text(encoding="utf-8")
    [database] = yaml.safe_load(overlay)["services"].values()
    usual, kept = shlex.split(SERVICES["postgres"]["command"]), shlex.split(database["command"])
    added = [word for name, value in Backups(Path("/")).settings().items() for word in ("-c", f"{name}={value}")]
    assert kept[: len(usual)] == usual
    assert sorted(kept[len(usual) :]) == sorted(added)
    assert [volume.rsplit(":", 1)[1] for volume in database["volumes"]] == ["/archive", "/backups"]
    assert f"--username {SERVICES['postgres']['environment']['POSTGRES_USER']} " in overlay


def test_no_container_fills_the_disk_of_the_database_with_its_log() -> None:
    for name, service in SERVICES.items():
        kept = service["logging"]
        assert (kept["driver"], kept["options"]) == ("local", {"max-size": "50m", "max-file": "5"}), name


# Access to the stores -------------------------------------------------------------------------------------------------

COMPOSED = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
STORES = ("postgres", "valkey")


def networks(service: str) -> set[str]:
    return set(SERVICES[service].get("networks", ["default"]))


def test_peers_that_read_foreign_bytes_share_no_network_with_the_stores() -> None:
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
    """The test runs the command of compose.yaml, with the program of the wheel and its own folder."""
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
    files = ["compose.yaml", "deploy/chart/values.yaml", "deploy/systemd/environment.example"]
    files += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/installation").glob("*.md"))
    assert len(files) == 7
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(url.startswith("redis://:") for url in re.findall(r"rediss?://\S+", text)), file
