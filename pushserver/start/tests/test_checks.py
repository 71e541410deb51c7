"""Wrong configuration: an operator reads each fault in one line, and nothing starts."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.checks import Error, run_checks
from django.core.mail.message import sanitize_address

from embedded.supervisor.processes import PROJECT
from pushserver.config.catalogue import GROUPS
from pushserver.config.environment import MAIL_ADDRESS, Environment
from pushserver.config.retired import RETIRED
from tests.rig.rows import apn_token, firebase_token


def test_the_configuration_of_the_tests_has_no_problem():
    assert [message for message in run_checks() if message.is_serious()] == []


def test_each_problem_is_an_error_with_its_id_and_hint(settings):
    env = Environment({})
    env.report("bad_flag", "X is wrong.", "Use Y.")
    settings.CONFIGURATION_PROBLEMS = env.problems
    assert Error("X is wrong.", hint="Use Y.", id="pushserver.bad_flag") in run_checks()


def test_a_token_for_the_canary_that_the_server_would_refuse_is_a_problem(settings):
    def problems():
        return [message.id for message in run_checks() if message.is_serious()]

    settings.CANARY_DEVICE_TOKEN = "half-a-token"
    assert problems() == ["pushserver.bad_canary_token"]
    settings.CANARY_DEVICE_TOKEN = firebase_token()
    assert problems() == []
    settings.CANARY_APP_TOPIC = "im.status"
    assert problems() == ["pushserver.bad_canary_token"]
    settings.CANARY_DEVICE_TOKEN = apn_token()
    assert problems() == []


def test_no_two_problems_have_the_same_id():
    """Each call of `report` has its own id, because an id stands for one repair."""
    sources = [
        (PROJECT / "pushserver" / name).read_text(encoding="utf-8") for name in ("settings.py", "config/environment.py")
    ]
    calls = [call for source in sources for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call)]
    names = [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "attr", "") == "report"]
    assert len(names) > 20
    assert sorted(names) == sorted(set(names))


WRONG = {
    "PORT": ("0", "bad_number"),
    "WAKU_NODES": ("ftp://node", "bad_urls"),
    "REDIS_URL_FILE": ("/nowhere", "unreadable_secret_file"),
    "SERVER_PRIVATE_KEY": ("5ecret", "bad_private_key"),
    "OTHER_SERVER_PRIVATE_KEYS": (f"{'01' * 32}, 5ecret", "bad_private_keys"),
    "FIELD_ENCRYPTION_KEYS": ("5ecret", "bad_field_keys"),
    "SECRET_KEY": ("", "missing_secret_key"),
    "DATABASE_URL": ("mysql://user:5ecret@host/name", "bad_database_url"),
    "REDIS_URL": ("amqp://host", ""),  # its file comes first
    "WAKU_PUBSUB_TOPICS": ("status", "bad_pubsub_topic"),
    "PUSH_PRIORITY": ("normal", "retired_setting"),
    "REPORTS_HOUR": ("24", "bad_number"),
    "EMAIL_ENCRYPTION": ("rot13", "bad_choice"),
    "REPORT_RECIPIENTS": ("ann@example.org", "missing_email_host"),
    "ALERTS_TO": ("hooks.example.org/abc", "bad_targets"),
    "CHANNEL_IN_FLIGHT": ("0", "bad_number"),
    "METRICS_PORT": ("65536", "bad_number"),
    "METRICS_TOKEN": ("5ecret", "bad_metrics_token"),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("http://collector:4318", ""),
    "OTEL_EXPORTER_OTLP_HEADERS": ("5ecret", "bad_headers"),
    "OTEL_TRACES_SAMPLER_ARG": ("10", "bad_number"),
    "TRACE_PAGE": ("jaeger/{trace_id}", "bad_trace_page"),
    "REPORTS_LAKE": ("ftp://5ecret", "bad_lake"),
    "SPARK_MASTER": ("sc://connect:15002", ""),
    "ACCESS_LOG_RETENTION_DAYS": ("6", "bad_number"),
    "CANARY_PATIENCE_SECONDS": ("10", "retired_setting"),
    "GORUSH_HOOK_SECRET": ("5ecret: with a colon, which gorush would drop", "bad_hook_secret"),
}


def test_a_slip_in_a_mail_address_is_a_problem(tmp_path):
    wrong = {"ALERTS_TO": "bob@example.org,ann@example.org.", "REPORT_RECIPIENTS": "a;b@example.org"}
    environment = os.environ | wrong | {"EMAIL_HOST": "mail", "DATA_DIR": str(tmp_path)}
    command = [sys.executable, str(PROJECT / "manage.py"), "check"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert sorted(re.findall(r"pushserver\.(\w+)", ended.stderr)) == ["bad_email_address", "bad_targets"]
    assert ended.returncode == 1
    assert "a;b" not in ended.stderr


@pytest.mark.parametrize(
    ("address", "is_right"),
    [
        *((address, True) for address in ("ann@example.org", "ann+push@mail", "a.b_c@xn--exmple-cua.org")),
        *((address, True) for address in ("ann@exämple.org", "root@localhost", "ann@127.0.0.1")),
        *((address, False) for address in ("ann@example.org.", "a;b@example.org", "ann@example.org>", "ann@x..org")),
        *((address, False) for address in ("ann@-x.org", "(a)b@example.org", "änn@example.org", "ann@x.org\nTo: b@c")),
    ],
)
def test_an_address_that_passes_can_be_mailed_to(address, is_right):
    assert bool(MAIL_ADDRESS.fullmatch(address)) == is_right
    if is_right:
        assert sanitize_address(address, "utf-8")


def test_up_names_every_wrong_value_in_a_line_of_its_own_and_does_not_start(tmp_path):
    environment = os.environ | {name: value for name, (value, _) in WRONG.items()} | {"DATA_DIR": str(tmp_path)}
    command = [sys.executable, str(PROJECT / "manage.py"), "up"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    found = [(line.split(":")[0], line.split(": ")[1].split()[0]) for line in ended.stderr.strip().splitlines()]
    assert sorted(found) == sorted((f"pushserver.{problem}", name) for name, (_, problem) in WRONG.items() if problem)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "5ecret" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


# What operators have: a start with several wrong values, each with the id of its problem.
FROM_THE_FIELD = [
    {
        "REDIS_URL": ("redis://redis:$(REDIS_PORT)/0", "unreplaced_variable"),
        "DATABASE_URL": ("postgresql://push:b@5ecret@127.0.0.1:5432/push", "bad_database_url"),
        "HOST": ("x86_64-conda-linux-gnu", "bad_host"),
        "LOG_LEVEL": ("WARN", "bad_choice"),
        "SSL_CERT_FILE": ("/nowhere/ca.pem", "bad_certificates"),
    },
    {
        "REDIS_URL": ("redis://:pa#5ecret@127.0.0.1:6379/0", "bad_redis_url"),
        "DATABASE_URL": ("postgresql://push:pa/5ecret@127.0.0.1:5432/push", "bad_database_url"),
        "HOST": ("192.0.2.1", "bad_host"),
        "LOG_FORMAT": ("JSONL", "bad_choice"),
        "GORUSH_URL": ("'http://gorush:8088'", "quoted_value"),
    },
    {
        "REDIS_URL": ("redis://127.0.0.1:99999/0", "bad_redis_url"),
        "DATABASE_URL": ("postgresql://push:AmJa%qu5ecret@127.0.0.1:5432/push", "bad_database_url"),
    },
    {
        "REDIS_URL": ("redis://127.0.0.1:6379/default", "bad_redis_url"),
        "DATABASE_URL": ("postgresql://push:5ecret@127.0.0.1:5432/", "bad_database_url"),
    },
]


def check(folder: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(PROJECT / "manage.py"), "check", *options]
    given = os.environ | {"DATA_DIR": str(folder)} | environment
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("wrong", FROM_THE_FIELD)
def test_faults_from_the_field_are_named_in_one_line_each_without_a_secret(
    tmp_path: Path, wrong: dict[str, tuple[str, str]]
) -> None:
    ended = check(tmp_path, "--database=default", **{name: value for name, (value, _) in wrong.items()})
    lines = [line for line in ended.stderr.splitlines() if "(pushserver." in line]
    found = [(line.split()[2], line.split()[1]) for line in lines]
    assert sorted(found) == sorted((name, f"(pushserver.{problem})") for name, (_, problem) in wrong.items())
    assert "5ecret" not in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("host", "is_refused"), [("127.0.0.1", False), ("mail.example.org", True)])
def test_a_password_for_mail_goes_in_plain_text_to_this_machine_alone(
    tmp_path: Path, host: str, is_refused: bool
) -> None:
    ended = check(tmp_path, EMAIL_PASSWORD="5ecret", EMAIL_ENCRYPTION="none", EMAIL_HOST=host)
    assert ("(pushserver.open_email_password) EMAIL_PASSWORD" in ended.stderr) is is_refused
    assert (ended.returncode == 1) is is_refused


def test_a_setting_that_no_longer_exists_names_its_successor():
    documented = {setting.name for own in GROUPS.values() for setting in own}
    for name, successor in RETIRED.items():
        env = Environment({name: "1"})
        env.refuse_retired(RETIRED)
        [problem] = env.problems
        assert (problem.msg, problem.hint) == (f"{name} is no longer a setting.", successor)
        assert name not in documented


def answers_under(host):
    """Return the answer of a server that is configured for another name."""
    script = f"from django.test import Client; print(Client().get('/', headers={{'host': '{host}'}}).status_code)"
    command = [sys.executable, str(PROJECT / "manage.py"), "shell", "--no-imports", "--command", script]
    environment = os.environ | {"ALLOWED_HOSTS": "push.example.org"}
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_loopback_names_are_allowed_beside_those_that_are_set():
    hosts = ("127.0.0.1:8000", "localhost", "push.example.org", "elsewhere.example.org")
    assert [answers_under(host) for host in hosts] == [302, 302, 302, 400]


def test_a_folder_for_metrics_that_cannot_be_made_is_a_problem(tmp_path):
    ended = check(tmp_path, METRICS_DIR="/dev/null/metrics")
    assert "pushserver.unwritable_metrics_dir" in ended.stderr
    assert ended.returncode == 1
