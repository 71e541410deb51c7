"""Wrong configuration: an operator reads each fault in one line, and nothing starts."""

import pytest
from django.core.checks import run_checks
from django.core.mail.message import sanitize_address

from pushserver.config.kinds import MAIL_ADDRESS
from tests.rig.rows import apn_token, firebase_token
from tests.rig.server import manage_py


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


# Starts with several wrong values, each with the id of its problem: all that can be wrong, then what operators had.
MADE_UP = {
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
    "REPORTS_HOUR": ("24", "bad_number"),
    "EMAIL_ENCRYPTION": ("rot13", "bad_choice"),
    "REPORT_RECIPIENTS": ("ann@example.org", "missing_email_host"),
    "ALERTS_TO": ("hooks.example.org/abc", "bad_targets"),
    "METRICS_PORT": ("65536", "bad_number"),
    "METRICS_TOKEN": ("5ecret", "bad_metrics_token"),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("http://collector:4318", ""),
    "OTEL_EXPORTER_OTLP_HEADERS": ("5ecret", "bad_headers"),
    "OTEL_TRACES_SAMPLER_ARG": ("10", "bad_number"),
    "TRACE_PAGE": ("jaeger/{trace_id}", "bad_trace_page"),
    "REPORTS_LAKE": ("ftp://5ecret", "bad_lake"),
    "SPARK_MASTER": ("sc://connect:15002", ""),
    "ACCESS_LOG_RETENTION_DAYS": ("6", "bad_number"),
    "METRICS_HOST": ("192.0.2.1", ""),
    "GORUSH_HOOK_SECRET": ("5ecret: with a colon, which gorush would drop", "bad_hook_secret"),
}


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
    {
        "ALERTS_TO": ("bob@example.org,ann@example.org.", "bad_targets"),
        "REPORT_RECIPIENTS": ("5ecret;b@example.org", "bad_email_address"),
        "EMAIL_HOST": ("mail.example.org", ""),
        "EMAIL_PASSWORD": ("5ecret", "open_email_password"),
        "EMAIL_ENCRYPTION": ("none", ""),
    },
    {
        "METRICS_DIR": ("/dev/null/metrics", "unwritable_metrics_dir"),
        "EMAIL_HOST": ("127.0.0.1", ""),  # in plain text to this machine alone
        "EMAIL_PASSWORD": ("5ecret", ""),
        "EMAIL_ENCRYPTION": ("none", ""),
    },
]


@pytest.mark.parametrize("wrong", [MADE_UP, *FROM_THE_FIELD])
def test_up_names_every_wrong_value_in_a_line_of_its_own_and_does_not_start(tmp_path, wrong):
    ended = manage_py("up", DATA_DIR=str(tmp_path), **{name: value for name, (value, _) in wrong.items()})
    found = [(line.split(":")[0], line.split(": ")[1].split()[0]) for line in ended.stderr.strip().splitlines()]
    assert sorted(found) == sorted((f"pushserver.{problem}", name) for name, (_, problem) in wrong.items() if problem)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "5ecret" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


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


def test_loopback_names_are_allowed_beside_those_that_are_set():
    hosts = ("127.0.0.1:8000", "localhost", "push.example.org", "elsewhere.example.org")
    script = (
        "from django.test import Client; "
        f"print(*(Client(headers={{'host': host}}).get('/').status_code for host in {hosts}))"
    )
    answered = manage_py("shell", "--no-imports", "--command", script, ALLOWED_HOSTS="push.example.org")
    assert answered.stdout.split() == ["302", "302", "302", "400"]
