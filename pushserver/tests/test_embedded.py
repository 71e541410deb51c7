"""The embedded servers: private, at the same address every time, and back after every kind of end."""

import json
import os
import signal
import socket
import stat
import subprocess
import time
from contextlib import contextmanager
from types import SimpleNamespace

import dj_database_url
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pushserver.embedded import accounts, ports
from pushserver.embedded.leftovers import stop_leftover
from pushserver.embedded.parts import waku_node
from pushserver.embedded.postgres import SETTINGS, EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.processes import StartError
from tests.folders import open_folder

FAST = {"fsync": "off", "shared_buffers": "16MB"}
# Longer than a socket address, with what has a meaning in URLs and in shells.
AWKWARD = "Data & 'Söhne' 100%/" + "long/" * 20 + "end"


@contextmanager
def served(server, guard, log):
    """Start a server as the supervisor does, and stop it afterwards."""
    spec = server.spec()
    spec.prepare()
    with log.open("ab") as out:
        process = subprocess.Popen(spec.command, stdout=out, stderr=out, **spec.arguments())
    guard.watch(process.pid, spec.stop_signal)
    try:
        wait_until(lambda: server.is_ready() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.send_signal(spec.stop_signal)
        process.wait(timeout=30)
        guard.forget(process.pid)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


STRANGER = accounts.Account(uid=54321, gid=54321)
GROUP_MATE = accounts.Account(uid=54321, gid=os.getegid())


@pytest.fixture
def open_path():
    with open_folder() as folder:
        yield folder


def test_postgres_works_in_an_awkward_folder_and_finds_its_data_again(open_path, guard):
    (open_path / AWKWARD).mkdir(parents=True)
    server = EmbeddedPostgres(open_path / AWKWARD / "postgres", FAST)
    parsed = dj_database_url.parse(server.url())
    facts = {"dbname": parsed["NAME"], "user": parsed["USER"], **parsed["OPTIONS"]}
    with served(server, guard, open_path / "log"), psycopg.connect(**facts) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    with served(server, guard, open_path / "log"), psycopg.connect(**facts) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    server.socket_dir.rmdir()


def test_postgres_starts_after_its_server_was_left_behind(open_path, guard):
    """A server is left behind when everything that could have stopped it got SIGKILL."""
    server = EmbeddedPostgres(open_path / "postgres", FAST)
    with served(server, guard, open_path / "log") as leftover, served(server, guard, open_path / "log") as process:
        assert leftover.wait(timeout=20) == 0
        assert process.poll() is None


def test_postgres_starts_when_a_stranger_has_the_number_of_its_last_life(open_path, guard):
    server = EmbeddedPostgres(open_path / "postgres", FAST)
    with served(server, guard, open_path / "log"):
        pid_file = (open_path / "postgres" / "postmaster.pid").read_text()
    stranger = f"{os.getpid()}\n" + pid_file.split("\n", 1)[1]
    (open_path / "postgres" / "postmaster.pid").write_text(stranger)
    with served(server, guard, open_path / "log"):
        pass


def test_postgres_keeps_real_data_safe():
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & SETTINGS.keys()


def test_an_interrupted_initdb_is_made_again(open_path, guard):
    (open_path / "postgres.new").mkdir()
    (open_path / "postgres.new" / "PG_VERSION").write_text("18\n")
    with served(EmbeddedPostgres(open_path / "postgres", FAST), guard, open_path / "log"):
        assert not (open_path / "postgres.new").exists()


def test_data_of_another_version_is_refused_in_one_line(open_path):
    (open_path / "postgres").mkdir()
    (open_path / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(StartError, match="was not made by PostgreSQL 18"):
        EmbeddedPostgres(open_path / "postgres").prepare()


def test_a_socket_folder_of_someone_else_is_refused(open_path, monkeypatch):
    (open_path / "elsewhere").mkdir()
    (open_path / AWKWARD).mkdir(parents=True)
    server = EmbeddedPostgres(open_path / AWKWARD / "postgres", FAST)
    server.__dict__["socket_dir"] = open_path / "link"
    (open_path / "link").symlink_to(open_path / "elsewhere")
    with pytest.raises(StartError, match="belongs to someone else"):
        server.prepare()


def test_only_we_can_enter_the_folder_of_the_socket(postgres):
    assert stat.S_IMODE(postgres.socket_dir.stat().st_mode) == 0o700


def test_valkey_asks_for_a_password_that_stands_only_in_private_files(valkey):
    with (
        redis.Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    assert valkey.password not in " ".join(valkey.spec().command)
    assert valkey.password not in valkey.address
    for name in ("valkey.conf", "password"):
        assert stat.S_IMODE((valkey.data_dir / name).stat().st_mode) == 0o600


def test_valkey_refuses_rather_than_forgets(valkey):
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        assert client.config_get("maxmemory-policy", "appendonly") == {
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
        }


def test_valkey_finds_its_data_after_a_kill(tmp_path, guard):
    data_dir = tmp_path / "with space and 'quotes\"" / "valkey"
    server = EmbeddedValkey(data_dir, ports.free_port())
    with served(server, guard, tmp_path / "log") as process:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "1")
            client.execute_command("WAITAOF", 1, 0, 5000)
        process.kill()
        process.wait()
    again = EmbeddedValkey(data_dir, server.port)
    with served(again, guard, tmp_path / "log"), redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"1"


def test_a_port_is_remembered(tmp_path):
    port = ports.remembered_port(tmp_path / "ports.json", "valkey")
    assert ports.remembered_port(tmp_path / "ports.json", "valkey") == port
    assert ports.remembered_port(tmp_path / "ports.json", "node") != port
    assert json.loads((tmp_path / "ports.json").read_text())["valkey"] == port


def test_a_port_that_someone_took_is_replaced(tmp_path):
    port = ports.remembered_port(tmp_path / "ports.json", "valkey")
    with socket.create_server(("127.0.0.1", port)):
        assert ports.remembered_port(tmp_path / "ports.json", "valkey") != port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_listening_server_takes_its_port(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free(host, port)
    assert ports.is_free(host, port)


def test_a_stranger_with_the_number_of_a_server_is_left_alone(tmp_path):
    (tmp_path / "server.pid").write_text(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop_leftover(tmp_path / "server.pid", tmp_path)
    assert not (tmp_path / "server.pid").exists()


def test_the_way_is_opened_for_passing_but_not_for_looking(open_path):
    (open_path / "data" / "a").mkdir(mode=0o700, parents=True)
    (open_path / "data").chmod(0o700)
    accounts.open_the_way(open_path / "data" / "a" / "b", STRANGER, below=open_path / "data")
    assert stat.S_IMODE((open_path / "data" / "a").stat().st_mode) == 0o701
    assert stat.S_IMODE((open_path / "data").stat().st_mode) == 0o701


def test_a_closed_folder_above_ours_is_left_alone_and_named(open_path):
    (open_path / "home" / "data").mkdir(parents=True)
    (open_path / "home").chmod(0o700)
    with pytest.raises(StartError, match=f"chmod o\\+x {open_path / 'home'}"):
        accounts.open_the_way(open_path / "home" / "data" / "postgres", STRANGER, below=open_path / "home" / "data")
    assert stat.S_IMODE((open_path / "home").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o710])
def test_a_folder_that_the_group_of_the_account_may_pass_is_open_enough(open_path, mode):
    (open_path / "home").mkdir()
    (open_path / "home").chmod(mode)
    accounts.open_the_way(open_path / "home" / "data", GROUP_MATE, below=open_path / "home" / "data")
    assert stat.S_IMODE((open_path / "home").stat().st_mode) == mode


def test_programs_become_readable_and_data_does_not_become_executable(open_path):
    for name, mode in (("program", 0o700), ("library", 0o600)):
        (open_path / name).touch()
        (open_path / name).chmod(mode)
    accounts.make_readable(open_path, STRANGER)
    assert stat.S_IMODE((open_path / "program").stat().st_mode) == 0o705
    assert stat.S_IMODE((open_path / "library").stat().st_mode) == 0o604


def test_root_without_useradd_falls_back_to_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr(accounts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(accounts.shutil, "which", lambda _: None)
    monkeypatch.setattr(accounts, "ACCOUNT_NAME", "no-such-account")
    account = accounts.account_for(tmp_path / "postgres")
    assert account.uid == accounts.pwd.getpwnam("nobody").pw_uid


def test_root_is_told_why_postgres_cannot_run(monkeypatch, tmp_path):
    failed = SimpleNamespace(returncode=1, stderr="read-only file system")
    monkeypatch.setattr(accounts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(accounts.shutil, "which", lambda _: "/usr/sbin/useradd")
    monkeypatch.setattr(accounts.subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(accounts, "ACCOUNT_NAME", "no-such-account")
    with pytest.raises(StartError, match="read-only file system"):
        accounts.account_for(tmp_path / "postgres")


def test_the_node_listens_to_every_configured_topic_and_has_the_ring_that_we_count_on(tmp_path):
    command = waku_node(tmp_path, ["/waku/2/rs/16/32", "/waku/2/rs/16/64"], ring_capacity=7000).spec.command
    assert command[command.index("--relay-cache-capacity") + 1] == "7000"
    start = command.index("--shard")
    assert command[start + 1 : start + 3] == ["/waku/2/rs/16/32", "/waku/2/rs/16/64"]
