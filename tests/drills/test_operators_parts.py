"""Parts as operators have them, where other tests use parts of their own: Debian's Redis 7, a mail server, promtool, a
database with a password that is changed (docs/backup.md, "The database's password").
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.stack.plan import manage
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from tests.rig import server as processes
from tests.rig.network import android, network_of, new_sender
from tests.rig.providers.certificates import serve_as
from tests.rig.server import OF_FLOWS, NewFleet, manage_py, wait_until

ALERTS = PROJECT / "docs/monitoring/alerts.yml"
ALERTED = PROJECT / "docs/monitoring/alerts.test.yml"

# Redis ----------------------------------------------------------------------------------------------------------------
# A broker and cache that does not do what workers do there is named by the first; a worker answers the second.
QUESTIONS = """
from pushserver.celery import app
from pushserver.console.health.asking import ask_broker
print(repr(ask_broker()), [*app.control.ping(timeout=5)[0].values()])
"""


def test_workers_do_on_debians_redis_what_they_do_on_valkey(
    new_fleet: NewFleet, require_or_skip: Callable[[bool, str], None], tmp_path: Path
) -> None:
    """Beat sends tasks through it, the worker carries them out, and saves facts there."""
    program = shutil.which("redis-server") or ""
    require_or_skip(bool(program), "there is no Redis: `make test` as root installs it")
    fleet = new_fleet("redis", REDIS_URL=(url := f"redis://:of-this-test@127.0.0.1:{(port := free_port())}/0"))
    options = ["--bind", "127.0.0.1", "--port", str(port), "--requirepass", "of-this-test", "--appendonly", "yes"]
    command = [program, *options, "--dir", str(tmp_path)]
    fleet.start(ProcessSpec(name="redis", command=command, stop_order=StopOrder.BROKER))
    try:
        with Redis.from_url(url, retry=Retry(ConstantBackoff(0.05), 200)) as client:
            assert client.info("server")["redis_version"].startswith("7.")
            fleet.start(processes.services()["tasks"])
            for kind in ("worker", "status"):
                wait_until(lambda kind=kind: client.keys(f"*:{kind}:*"), what=f"the worker saves its {kind}")
        fleet.run(manage("asked", "shell", "-v0", "-c", QUESTIONS, stop_order=StopOrder.FRONT))
        assert fleet.log("asked").splitlines()[-1] == "'' [{'ok': 'pong'}]"
        assert "Traceback" not in fleet.log("tasks")
    finally:
        fleet.stop(*reversed(fleet.running))


# Mail -----------------------------------------------------------------------------------------------------------------
class Inbox:
    """Mail that came: whether its session was encrypted, for whom it is, and its text."""

    def __init__(self) -> None:
        self.mail: list[tuple[bool, list[str], str]] = []

    async def handle_DATA(self, _server: object, session: Any, envelope: Any) -> str:  # noqa: N802 - the name is given
        self.mail.append((session.ssl is not None, envelope.rcpt_tos, envelope.content.decode()))
        return "250 OK"


def _authenticate(_server: object, _session: object, _envelope: object, _mechanism: str, data: object) -> Any:
    smtp = pytest.importorskip("aiosmtpd.smtp")
    return smtp.AuthResult(success=data == smtp.LoginPassword(b"push", b"of-this-test"), handled=False)


@contextmanager
def _mail_server(**options: Any) -> Iterator[tuple[Inbox, int]]:
    controller = pytest.importorskip("aiosmtpd.controller", reason="there is no mail server: `make dev` installs it")
    server = controller.Controller(inbox := Inbox(), hostname="127.0.0.1", port=free_port(), **options)
    server.start()
    try:
        yield inbox, server.port
    finally:
        server.stop()


def _mailed(port: int, **settings: str) -> str:
    """Send a mail as an operator does who tries the settings. Return the last line of the error, or an empty text."""
    given = {"EMAIL_HOST": "localhost", "EMAIL_PORT": str(port), **settings}
    ended = manage_py("sendtestemail", "ann@example.org", **given)
    return ended.stderr.strip().rpartition("\n")[2] if ended.returncode else ""


def test_mail_goes_through_a_server_with_and_without_tls(tmp_path: Path) -> None:
    context = serve_as(["localhost"], tmp_path)
    own_authority = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
    account = {"EMAIL_USER": "push", "EMAIL_PASSWORD": "of-this-test"}
    with _mail_server() as (inbox, port):
        assert _mailed(port, EMAIL_ENCRYPTION="none") == ""
        assert "STARTTLS extension not supported" in _mailed(port)
        assert [(is_encrypted, to) for is_encrypted, to, _ in inbox.mail] == [(False, ["ann@example.org"])]
    strict = {"tls_context": context, "require_starttls": True, "auth_required": True, "authenticator": _authenticate}
    with _mail_server(**strict) as (inbox, port):
        assert _mailed(port, **own_authority, **account) == ""
        assert "SMTPAuthenticationError" in _mailed(port, **own_authority, **account | {"EMAIL_PASSWORD": "wrong"})
        assert "CERTIFICATE_VERIFY_FAILED" in _mailed(port, **account, SSL_CERT_FILE="", SSL_CERT_DIR="")
        assert [is_encrypted for is_encrypted, _, _ in inbox.mail] == [True]
        assert "From: push-server@localhost" in inbox.mail[0][2]
    with _mail_server(ssl_context=context) as (inbox, port):
        assert _mailed(port, EMAIL_ENCRYPTION="tls", **own_authority) == ""
        assert len(inbox.mail) == 1


# Prometheus -----------------------------------------------------------------------------------------------------------
def test_every_alert_rule_fires_in_its_situation_and_none_when_all_is_well(
    require_or_skip: Callable[[bool, str], None],
) -> None:
    promtool = shutil.which("promtool") or ""
    require_or_skip(bool(promtool), "there is no promtool: `make test` as root installs it")
    ended = subprocess.run([promtool, "test", "rules", ALERTED], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    fired = set(re.findall(r'alertname="(\w+)"', ALERTED.read_text(encoding="utf-8")))
    assert fired == {rule["alert"] for group in groups for rule in group["rules"]}


# The database's password ----------------------------------------------------------------------------------------------
REFUSED = "PostgreSQL refuses the password of DATABASE_URL"


def test_a_changed_database_password_ends_no_session_and_nothing_is_lost_until_the_restart(
    postgres: EmbeddedPostgres, new_database: Callable[[str], str], new_fleet: NewFleet
) -> None:
    """PostgreSQL asks everybody for a password who comes to this database but its superuser."""
    url = new_database("password")
    name = url.partition("?")[0].rpartition("/")[2]
    rules = postgres.data_dir / "pg_hba.conf"
    rules.write_text(f"local {name} postgres trust\nlocal {name} all scram-sha-256\n{rules.read_text()}")
    superuser = psycopg.connect(url, autocommit=True)
    superuser.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'old'")
    superuser.execute("SELECT pg_reload_conf()")
    fleet = new_fleet("password", DATABASE_URL=url.replace("postgres@", f"{name}:old@"), **OF_FLOWS)
    new = {"DATABASE_URL": url.replace("postgres@", f"{name}:new@")}
    as_superuser = replace(fleet, environment=fleet.environment | {"DATABASE_URL": url})
    try:
        processes.start(fleet)
        with superuser, closing(network_of(as_superuser)) as network:
            sender, phone = new_sender(), network.phone(address := android())
            places = network.query(sender, phone)
            superuser.execute(f"ALTER ROLE {name} PASSWORD 'new'")
            assert [report.success for report in network.notify(sender, places)] == [True]
            superuser.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
            for process in ("bridge", "batches"):
                wait_until(lambda process=process: REFUSED in fleet.log(process), what=f"{process} names the reason")
            asked = sender.request(places, sender.one_to_one(), os.urandom(32), timestamp_ns=time.time_ns())
            [envelope] = network.publish(asked.message)
            fleet.stop(*processes.services())
            replace(fleet, environment=fleet.environment | new).start(*processes.services().values())
            assert network.how_it_ended(envelope) == ("processed", "")
            assert len(network.pushes_to(address)) == 2
    finally:
        fleet.kill(*fleet.running)
