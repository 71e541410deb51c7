"""The chart and the systemd units start what compose.yaml starts; `make check-deploy` checks their form."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from django.conf import settings

from pushserver.config.role import PROCESSES
from tests.drills.test_restore import archiving_to
from tests.rig.rows import firebase_token

ROOT = settings.BASE_DIR
COMPOSED = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSED["services"]
OF_OURS = {name for name, service in SERVICES.items() if service.get("image", "").startswith("status-push-server")}
STORES = ("postgres", "valkey")
VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text(encoding="utf-8"))
EVERYTHING = yaml.safe_load((ROOT / "deploy/chart/ci/everything.yaml").read_text(encoding="utf-8"))
COMMON = (ROOT / "deploy/systemd/push-server-.service.d/common.conf").read_text(encoding="utf-8")
OURS = ("migrate", "bridge", "xmpp", "batches", "tasks", "reports")
# Which processes need a secret, by the table of the settings; one is read by Amazon's client.
USERS = {setting.name.lower(): setting.used_by for setting in settings.ENVIRONMENT.table if setting.used_by}
USERS |= {"aws_shared_credentials": frozenset({"reports"})}
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
    "canary_device_token": firebase_token(),
    "gorush_hook_secret": "0123456789abcdef0123456789abcdef",
    "otel_exporter_otlp_headers": "authorization=of-this-test",
    "aws_shared_credentials": "of-this-test",
}


def unit(name: str) -> str:
    return (ROOT / f"deploy/systemd/push-server-{name}.service").read_text(encoding="utf-8")


@cache
def secrets_of_unit(name: str) -> str:
    """Return what install.sh adds to a unit."""
    with TemporaryDirectory() as folder:
        command = [str(ROOT / "deploy/systemd/install.sh")]
        subprocess.run(command, env=os.environ | {"DESTDIR": folder}, check=True)
        added = Path(folder, f"etc/systemd/system/push-server-{name}.service.d/00-secrets.conf")
        return added.read_text(encoding="utf-8")


def secrets_of(process: str) -> set[str]:
    """Return the secrets that a process uses."""
    return {name for name, processes in USERS.items() if process in processes}


def started_by_unit(name: str) -> list[str]:
    """Return the program of a unit and its arguments as in compose. The web server has the port of the machine."""
    (command,) = re.findall(r"^ExecStart=(.+)$", unit(name), re.MULTILINE)
    inner = re.sub(r"^/bin/sh -c 'until (.+); do sleep 5; done'$", r"\1", command)
    return shlex.split(inner.replace("/opt/push-server/.venv/bin/", "").replace("%%", "%"))


def started_by_chart(name: str) -> list[str]:
    helpers = (ROOT / "deploy/chart/templates/_helpers.tpl").read_text(encoding="utf-8")
    (command,) = re.findall(rf'^  "{name}" "(.*?)"', helpers, re.MULTILINE)
    return shlex.split(command)


@pytest.mark.parametrize("name", OURS)
def test_unit_chart_and_compose_start_the_same_and_give_it_as_long_to_stop(name: str) -> None:
    assert started_by_unit(name) == started_by_chart(name) == shlex.split(SERVICES[name]["command"])
    seconds = SERVICES[name].get("stop_grace_period", "").removesuffix("s")
    if name != "migrate":
        assert f"\nTimeoutStopSec={seconds}\n" in unit(name)
        assert VALUES["processes"][name]["stopSeconds"] == int(seconds)


def test_the_web_server_is_that_of_the_image_but_for_its_address() -> None:
    assert "command" not in SERVICES["web"]
    assert not started_by_chart("web")
    last = (ROOT / "Dockerfile").read_text(encoding="utf-8").rsplit("CMD ", 1)[1]
    by_image = list(yaml.safe_load(last.replace("\\\n", "")))
    assert [word.replace("127.0.0.1", "0.0.0.0") for word in started_by_unit("web")] == by_image  # noqa: S104


def test_every_process_of_compose_is_in_the_chart_and_in_the_target() -> None:
    assert OF_OURS == {*VALUES["processes"], "migrate"} == {*PROCESSES}
    target = (ROOT / "deploy/systemd/push-server.target").read_text(encoding="utf-8")
    of_all = set(re.findall(r"push-server-(\w+)\.service", target))
    assert of_all == OF_OURS - {"migrate", "xmpp", "reports"}
    # `systemctl disable` does not stop units that the target itself wants.
    assert all("\nWantedBy=push-server.target\n" in unit(name) for name in of_all | {"xmpp", "reports"})


@pytest.mark.parametrize("process", PROCESSES)
def test_compose_and_units_give_a_process_the_secrets_that_it_uses_and_no_other(process: str) -> None:
    service, unit_conf = SERVICES[process], secrets_of_unit(process)
    files = {
        value.removeprefix("/run/secrets/"): name for name, value in service["environment"].items() if "/run/" in value
    }
    assert {*service["secrets"]} == {*files} == secrets_of(process)
    assert all(variable == f"{name.upper()}_FILE" for name, variable in files.items())
    assert {*re.findall(r"^LoadCredential=(\w+):/etc/push-server/secrets/\1$", unit_conf, re.MULTILINE)} == {*files}
    assert {*re.findall(r"^SetCredential=(\w+):\\n$", unit_conf, re.MULTILINE)} == {*files}
    named = dict(re.findall(r"^Environment=(\w+)=%d/(\w+)$", unit_conf, re.MULTILINE))
    assert named == {variable: name for name, variable in files.items()}
    assert service["env_file"] == [{"path": ".env", "required": False}]


def test_every_secret_has_a_file_and_nobody_else_mounts_one() -> None:
    assert {*USERS} == {*COMPOSED["secrets"]} - {"postgres_password", "valkey.conf", "apns_key.p8", "fcm_key.json"}
    others = {name for process in SERVICES.keys() - {*PROCESSES} for name in SERVICES[process].get("secrets", [])}
    assert not others & {*USERS}
    assert {*VALUES["secret"]["keys"]} == {*GIVEN}
    assert {*EVERYTHING["secret"]["keys"]} == {*USERS} - {"aws_shared_credentials"}


# System checks of the server with the configuration of each deployment -----------------------------------------------


def problems(process: str, environment: Mapping[str, str], folder: Path) -> list[str]:
    """Return the ids of the problems that the system checks find in the environment of a process."""
    ours = {"PATH": os.environ["PATH"], "DATA_DIR": str(folder / "data"), "METRICS_DIR": str(folder / "metrics")}
    program = f"""from pushserver.config.role import *; begin_as(Role.COMMAND, ["{process}"])
import os; os.environ["DJANGO_SETTINGS_MODULE"] = "pushserver.settings"
from django.core.management import execute_from_command_line; execute_from_command_line(["manage.py", "check"])"""
    command = [sys.executable, "-c", program]
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


def given_by_systemd(process: str, folder: Path, texts: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return the environment of a unit's process: that of the unit and of its environment files."""
    text = COMMON + unit(process) + secrets_of_unit(process)
    defaults = {name: "" for name, value in re.findall(r"^SetCredential=(\w+):(.*)$", text, re.MULTILINE)}
    secrets = written(folder, re.findall(r"^LoadCredential=(\w+):", text, re.MULTILINE), defaults | dict(texts))
    words = shlex.split(" ".join(re.findall(r"^Environment=(.+)$", text, re.MULTILINE)).replace("%d", str(secrets)))
    example = (ROOT / "deploy/systemd/environment.example").read_text(encoding="utf-8")
    lines = [line for line in example.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in [*lines, *words]) | settings


@pytest.mark.parametrize(
    ("process", "texts", "given", "found"),
    [
        *((process, GIVEN, {}, []) for process in PROCESSES if process != "xmpp"),
        *((process, GIVEN_ALL, XMPP_JID | MAIL, []) for process in PROCESSES),
        ("web", GIVEN | {"secret_key": ""}, {}, ["pushserver.missing_secret_key"]),
        ("batches", GIVEN | {"server_private_key": ""}, {}, ["pushserver.bad_private_key"]),
        ("reports", GIVEN | {"field_encryption_keys": ""}, {}, ["pushserver.bad_field_keys"]),
        ("xmpp", GIVEN, XMPP_JID, ["pushserver.half_xmpp_component"]),
    ],
)
def test_a_process_needs_no_secret_but_its_own(
    process: str, texts: dict[str, str], given: dict[str, str], found: list[str], tmp_path: Path
) -> None:
    """With few secrets, with all, and without one that it uses."""
    assert problems(process, given_by_systemd(process, tmp_path, texts, **given), tmp_path) == found


def given_by_compose(service: str, secrets: Path, **dot_env: str) -> dict[str, str]:
    """Return the environment of a container: the variables of .env, and those that compose.yaml makes from them."""
    named = {name: str(value) for name, value in SERVICES[service]["environment"].items()}
    filled = {
        name: re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: dot_env.get(found[1]) or found[2], value)
        for name, value in named.items()
    }
    return dot_env | {name: value.replace("/run/secrets", str(secrets)) for name, value in filled.items()}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_container_passes_its_checks_with_the_secrets_of_its_process(process: str, tmp_path: Path) -> None:
    secrets = written(tmp_path, SERVICES[process]["secrets"], GIVEN_ALL)
    given = given_by_compose(process, secrets, **XMPP_JID, **MAIL, XMPP_COMPONENT_TUNNELLED="1")
    assert problems(process, given, tmp_path) == []


def test_the_chart_with_everything_passes_the_check_of_its_migration(tmp_path: Path) -> None:
    names = secrets_of("migrate") & {*EVERYTHING["secret"]["keys"]}
    secrets = written(tmp_path, names, GIVEN_ALL)
    files = {f"{name.upper()}_FILE": str(secrets / name) for name in names}
    # The chart gives every container these, with the values of compose.
    of_all = {name: SERVICES["migrate"]["environment"][name] for name in ("HOST", "METRICS_HOST", "METRICS_PORT")}
    given = {**VALUES["settings"], **EVERYTHING["settings"], **files, **of_all}
    assert problems("migrate", given, tmp_path) == []


# Objects of the chart -------------------------------------------------------------------------------------------------
Objects = dict[tuple[str, str], Any]


@pytest.fixture
def rendered(require_or_skip: Callable[[bool, str], None]) -> Callable[[str], Objects]:
    """Return the function ``rendered(values)``, which returns the objects of the chart by kind and name."""
    require_or_skip((ROOT / ".tools/helm").exists(), "there is no Helm: `make check-deploy` builds it")
    return _rendered


@cache
def _rendered(values: str) -> Objects:
    command = [".tools/helm", "template", "push", "deploy/chart", "--kube-version", "1.34.1"]
    command += ["--values", f"deploy/chart/{values}.yaml"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {(made["kind"], made["metadata"]["name"]): made for made in yaml.safe_load_all(text) if made}


def goes_out(made: Objects, process: str) -> set[int]:
    """Return the ports that the pods of a process may connect to, by all policies about them."""
    of_ours = {"app.kubernetes.io/name": "push-server", "app.kubernetes.io/instance": "push"}
    labels = of_ours | {"app.kubernetes.io/component": process}

    def is_about(selector: dict[str, Any]) -> bool:
        among = [(found["key"], found["values"]) for found in selector.get("matchExpressions", [])]
        matches = all(labels[key] in values for key, values in among)
        return matches and selector["matchLabels"].items() <= labels.items()

    policies = [policy["spec"] for (kind, _), policy in made.items() if kind == "NetworkPolicy"]
    rules = [rule for spec in policies if is_about(spec["podSelector"]) for rule in spec.get("egress", [])]
    return {port["port"] for rule in rules for port in rule.get("ports", [])}


def test_pods_reach_the_xmpp_server_the_mail_server_and_webhooks_where_there_are_any(
    rendered: Callable[[str], Objects],
) -> None:
    usual = {53, *VALUES["networkPolicy"]["egressPorts"]}
    few, everything = rendered("values"), rendered("ci/everything")
    assert all(goes_out(few, process) == usual for process in VALUES["processes"])
    assert goes_out(everything, "xmpp") == usual | {5347}
    assert goes_out(everything, "tasks") == goes_out(everything, "web") == usual | {5347, 587, 443, 8065}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_pod_has_the_secrets_that_its_process_uses_and_no_other(
    rendered: Callable[[str], Objects], process: str
) -> None:
    for values in ("ci/everything", "ci/object-store"):
        kind = "Job" if process == "migrate" else "Deployment"
        if (made := rendered(values).get((kind, f"push-{process}"))) is None:
            continue
        pod = made["spec"]["template"]["spec"]
        [container], [secrets] = pod["containers"], [each for each in pod["volumes"] if "secret" in each]
        mounted = {item["key"] for item in secrets["secret"]["items"]}
        keys = yaml.safe_load((ROOT / f"deploy/chart/{values}.yaml").read_text(encoding="utf-8"))["secret"]["keys"]
        assert mounted == secrets_of(process) & {*keys}
        named = {each["name"] for each in container["env"] if each.get("value", "").startswith("/run/secrets/")}
        assert named == {f"{name.upper()}_FILE" for name in mounted}


def test_pods_are_asked_by_their_address(rendered: Callable[[str], Objects]) -> None:
    [container] = rendered("values")["Deployment", "push-web"]["spec"]["template"]["spec"]["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert probes == [{"path": "/healthz", "port": "http"}] * 3


def test_a_lake_in_an_object_store_needs_no_volume_and_is_reached_by_reports_alone(
    rendered: Callable[[str], Objects],
) -> None:
    here, elsewhere = rendered("values"), rendered("ci/object-store")
    assert ("PersistentVolumeClaim", "push-lake") in here.keys() - elsewhere.keys()
    assert 443 in goes_out(elsewhere, "reports") - goes_out(here, "reports")
    reports, web = (elsewhere["Deployment", f"push-{name}"]["spec"]["template"]["spec"] for name in ("reports", "web"))
    assert any(volume.get("emptyDir") for volume in reports["volumes"] if volume["name"] == "lake")
    own, of_web = ({one["name"] for one in pod["containers"][0]["env"]} for pod in (reports, web))
    assert own - of_web == {"AWS_SHARED_CREDENTIALS_FILE", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_HOSTNAME"}
    executors = elsewhere["NetworkPolicy", "push-reports"]["spec"]["ingress"]
    assert executors == [{"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "spark"}}}]}]


# The database of compose.yaml, and its backup -------------------------------------------------------------------------


def test_the_archive_is_kept_as_the_drill_keeps_it() -> None:
    overlay = (ROOT / "deploy/compose/archive.yaml").read_text(encoding="utf-8")
    [database] = yaml.safe_load(overlay)["services"].values()
    usual, kept = shlex.split(SERVICES["postgres"]["command"]), shlex.split(database["command"])
    added = [word for name, value in archiving_to(Path("/archive")).items() for word in ("-c", f"{name}={value}")]
    assert kept[: len(usual)] == usual
    assert sorted(kept[len(usual) :]) == sorted(added)
    assert [volume.rsplit(":", 1)[1] for volume in database["volumes"]] == ["/archive", "/backups"]
    assert f"--username {SERVICES['postgres']['environment']['POSTGRES_USER']} " in overlay


def test_no_container_fills_the_disk_of_the_database_with_its_log() -> None:
    for name, service in SERVICES.items():
        kept = service["logging"]
        assert (kept["driver"], kept["options"]) == ("local", {"max-size": "50m", "max-file": "5"}), name


# Access to the stores -------------------------------------------------------------------------------------------------


def test_peers_that_read_foreign_bytes_share_no_network_with_the_stores() -> None:
    networks = {name: set(service.get("networks", ["default"])) for name, service in SERVICES.items()}
    assert {"gorush", "nwaku"} <= (peers := set(SERVICES) - OF_OURS - {*STORES})
    [shut] = {name for name, network in COMPOSED["networks"].items() if network and network["internal"]}
    assert [networks[name] for name in STORES] == [{shut}] * 2
    assert [networks[name] for name in OF_OURS] == [{shut, "default"}] * len(OF_OURS)
    assert shut not in set.union(*(networks[name] for name in peers))
    assert not any("ports" in SERVICES[name] for name in STORES)


def test_no_set_up_names_a_redis_without_a_password() -> None:
    files = ["compose.yaml", "deploy/chart/values.yaml", "deploy/systemd/environment.example"]
    files += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/installation").glob("*.md"))
    assert len(files) == 7
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(url.startswith("redis://:") for url in re.findall(r"rediss?://\S+", text)), file
