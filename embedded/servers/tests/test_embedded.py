"""Tests of the embedded servers: private, at the same address every time, and restarted after every kind of end."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from embedded.servers import folders, parts, ports
from embedded.servers.postgres import SETTINGS, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.processes import PROJECT
from kit.errors import StartError
from pushserver.indicators.asking import ask_database

FAST = {"fsync": "off", "shared_buffers": "16MB"}
# Longer than a socket address, with characters that are special in URLs and in shells.
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


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may choose another account")
PREPARE = """
import sys
from pathlib import Path
from embedded.servers.postgres import EmbeddedPostgres
from kit.errors import StartError
try:
    EmbeddedPostgres(Path(sys.argv[1])).prepare()
except StartError as error:
    print(error)
"""


@pytest.fixture
def originals(tmp_path):
    """Create programs as an installation under a strict umask does, in a folder that is closed to others."""
    folder = tmp_path / "closed"
    for name, mode in (("bin/program", 0o700), ("lib/library", 0o600), ("include/header", 0o600)):
        (folder / name).parent.mkdir(mode=0o700, parents=True)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(mode)
    folder.chmod(0o700)
    return folder


def test_postgres_works_in_an_awkward_folder_and_finds_its_data_again(tmp_path, guard):
    (tmp_path / AWKWARD).mkdir(parents=True)
    server = EmbeddedPostgres(tmp_path / AWKWARD / "postgres", FAST)
    with served(server, guard, tmp_path / "log"), psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    with served(server, guard, tmp_path / "log"), psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    server.socket_dir.unlink()


def test_postgres_starts_after_its_server_was_left_behind(tmp_path, guard):
    """A server is left behind when everything that could have stopped it got SIGKILL."""
    server = EmbeddedPostgres(tmp_path / "postgres", FAST)
    with served(server, guard, tmp_path / "log") as leftover, served(server, guard, tmp_path / "log") as process:
        assert leftover.wait(timeout=20) == 0
        assert process.poll() is None


def test_postgres_starts_when_another_process_has_its_last_id(tmp_path, guard):
    server = EmbeddedPostgres(tmp_path / "postgres", FAST)
    with served(server, guard, tmp_path / "log"):
        pid_file = (tmp_path / "postgres" / "postmaster.pid").read_text()
    outsider = f"{os.getpid()}\n" + pid_file.split("\n", 1)[1]
    (tmp_path / "postgres" / "postmaster.pid").write_text(outsider)
    with served(server, guard, tmp_path / "log"):
        pass


def test_postgres_keeps_real_data_safe():
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & SETTINGS.keys()


def test_an_interrupted_initdb_is_made_again(tmp_path, guard):
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18\n")
    with served(EmbeddedPostgres(tmp_path / "postgres", FAST), guard, tmp_path / "log"):
        assert not (tmp_path / "postgres.new").exists()


def test_data_of_another_version_is_refused_in_one_line(tmp_path):
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(StartError, match="was made by PostgreSQL 16, not 18: upgrade it"):
        EmbeddedPostgres(tmp_path / "postgres").prepare()


def test_a_socket_folder_of_another_account_is_refused(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / AWKWARD).mkdir(parents=True)
    server = EmbeddedPostgres(tmp_path / AWKWARD / "postgres", FAST)
    server.__dict__["socket_dir"] = tmp_path / "link"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="belongs to someone else"):
        server.prepare()


def test_only_our_account_can_enter_the_folder_of_the_socket(postgres):
    assert stat.S_IMODE(postgres.socket_dir.stat().st_mode) == 0o700


def test_valkey_requires_a_password_that_is_only_in_private_files(valkey):
    with (
        redis.Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as outsider,
        pytest.raises(redis.AuthenticationError),
    ):
        outsider.ping()
    assert valkey.password not in " ".join(valkey.spec().command)
    assert valkey.password not in valkey.address
    for name in ("valkey.conf", "password"):
        assert stat.S_IMODE((valkey.data_dir / name).stat().st_mode) == 0o600


def test_valkey_refuses_writes_rather_than_evict_keys(valkey):
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


def test_a_port_stays_once_it_is_saved(tmp_path):
    file = tmp_path / "ports.json"
    chosen = ports.Ports(file)
    assert chosen["valkey"] == chosen["valkey"] != chosen["node"]
    assert not file.exists()
    chosen.save()
    again = ports.Ports(file)
    assert (again["valkey"], again["node"]) == (chosen["valkey"], chosen["node"])


def test_ports_of_servers_that_a_start_does_not_have_stay(tmp_path):
    file = tmp_path / "ports.json"
    file.write_text('{"xmpp-users": 12345}')
    chosen = ports.Ports(file)
    assert chosen["valkey"]
    chosen.save()
    assert json.loads(file.read_text()) == {"xmpp-users": 12345, "valkey": chosen["valkey"]}


def test_a_port_is_outside_the_range_of_outgoing_connections():
    (first,) = re.findall(r"^\d+", Path("/proc/sys/net/ipv4/ip_local_port_range").read_text())
    assert all(1024 < ports.free_port() < min(int(first), 49152) for _ in range(50))


def test_a_port_in_use_is_replaced(tmp_path):
    chosen = ports.Ports(tmp_path / "ports.json")
    with socket.create_server(("127.0.0.1", chosen["valkey"])):
        chosen.save()
        assert ports.Ports(tmp_path / "ports.json")["valkey"] != chosen["valkey"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_listening_server_takes_its_port(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free(host, port)
    assert ports.is_free(host, port)


def test_another_process_with_the_id_of_a_server_is_left_alone(tmp_path):
    (tmp_path / "server.pid").write_text(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folders.stop_leftover(tmp_path / "server.pid", tmp_path)
    assert not (tmp_path / "server.pid").exists()


@needs_root
def test_postgres_runs_in_a_closed_folder_without_a_right_to_pass_it(tmp_path, guard):
    """Root's own home is such a folder. Nothing above the data is opened, and the account gets no capability."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with served(EmbeddedPostgres(home / "postgres", FAST), guard, tmp_path / "log") as process:
        facts = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        assert re.search(r"^Uid:\t[1-9]", facts, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", facts, re.MULTILINE)
    assert (stat.S_IMODE(home.stat().st_mode), home.stat().st_uid) == (0o700, 0)


@needs_root
def test_data_that_became_roots_are_given_back_to_the_account(tmp_path, guard):
    """`cp -r` and `chown -R root` do that."""
    server = EmbeddedPostgres(tmp_path / "postgres", FAST)
    with served(server, guard, tmp_path / "log"):
        pass
    for path in (server.data_dir, *server.data_dir.rglob("*")):
        os.chown(path, 0, 0)
    server.data_dir.chmod(0o755)
    again = EmbeddedPostgres(server.data_dir, FAST)
    with served(again, guard, tmp_path / "log"):
        assert again.data_dir.stat().st_uid == server.account.uid


@needs_root
def test_a_root_that_may_not_give_files_away_gets_an_instruction(tmp_path, require_or_skip):
    """Root has this limit in a container without capabilities, or on a network disk."""
    require_or_skip(bool(shutil.which("setpriv")), "setpriv is missing")
    command = ["setpriv", "--bounding-set=-chown", sys.executable, "-c", PREPARE, tmp_path / "postgres"]
    reported = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    [line] = reported.stdout.splitlines()[-1:]
    assert re.fullmatch(r"PostgreSQL does not run as root, and .* start as an ordinary user, or .*", line), reported


def test_programs_are_copied_once_for_all_accounts_under_any_umask(originals, tmp_path, capsys):
    places = [tmp_path, tmp_path / "second"]
    folder = folders.readable_copy(originals, ["bin", "lib"], "programs-1", places)
    assert folder == tmp_path / "pushserver" / "programs-1"
    assert capsys.readouterr().out.count(str(folder)) == 1
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"programs-1": 0o755, "bin": 0o755, "lib": 0o755, "program": 0o755, "library": 0o644}
    assert folders.readable_copy(originals, ["bin", "lib"], "programs-1", places) == folder
    assert capsys.readouterr().out == ""


def test_a_damaged_copy_is_made_again(originals, tmp_path):
    folder = folders.readable_copy(originals, ["bin", "lib"], "programs-1", [tmp_path])
    (folder / "bin" / "program").write_text("")
    folders.readable_copy(originals, ["bin", "lib"], "programs-1", [tmp_path])
    assert (folder / "bin" / "program").read_text() == "#!/bin/sh\n"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_place_that_takes_no_copy_is_skipped_and_the_last_fault_has_an_instruction(originals, tmp_path):
    (tmp_path / "pushserver").symlink_to(originals)  # belongs to another account
    (tmp_path / "second").mkdir()
    places = [Path("/dev/null"), tmp_path, tmp_path / "second"]
    assert folders.readable_copy(originals, ["bin"], "programs-1", places).is_relative_to(tmp_path / "second")
    with pytest.raises(StartError, match=r"/dev/null: .*; .*belongs to someone else.* start as an ordinary user"):
        folders.readable_copy(originals, ["bin"], "programs-1", places[:2])


def test_checkouts_that_copy_at_once_share_one_copy(originals, tmp_path, capsys):
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            copying = [
                pool.submit(folders.readable_copy, originals, ["bin", "lib"], f"p{number}", [tmp_path])
                for _ in range(8)
            ]
            assert {each.result() for each in copying} == {tmp_path / "pushserver" / f"p{number}"}
    assert {path.name for path in (tmp_path / "pushserver").iterdir()} == {f"p{number}" for number in range(20)}
    assert len(capsys.readouterr().out.splitlines()) == 20


def test_a_starting_server_gets_no_connection_as_it_would_log_an_error(tmp_path, guard, settings):
    server = EmbeddedPostgres(tmp_path / "postgres", FAST)
    settings.EMBEDDED_POSTGRES_DIR, settings.DATABASE_URL = server.data_dir, server.url()
    settings.EMBEDDED = {"DATABASE_URL": server.url()}

    def are_ready():
        is_asked = ask_database()[0] != "PostgreSQL is not ready"
        return server.is_ready(), asyncio.run(parts.postgres(server).is_ready()), is_asked

    assert are_ready() == (False, False, False)
    with served(server, guard, tmp_path / "log"):
        pid_file = tmp_path / "postgres" / "postmaster.pid"
        lines = pid_file.read_text()
        pid_file.write_text(lines.replace("ready   ", "starting"))
        assert are_ready() == (False, False, False)
        pid_file.write_text(lines)
        assert are_ready() == (True, True, True)
    assert are_ready() == (False, False, False)


@pytest.mark.parametrize("useradd", [None, "/bin/false"])
def test_root_falls_back_to_nobody_where_no_account_can_be_made(monkeypatch, tmp_path, useradd):
    monkeypatch.setattr(folders.os, "geteuid", lambda: 0)
    monkeypatch.setattr(folders.shutil, "which", lambda _: useradd)
    monkeypatch.setattr(folders, "ACCOUNT_NAME", "no-such-account")
    account = folders.account_for(tmp_path / "postgres")
    assert account.uid == folders.pwd.getpwnam("nobody").pw_uid


def test_the_node_has_every_configured_topic_and_the_expected_ring(tmp_path):
    command = parts.waku_node(tmp_path, 9, ["/waku/2/rs/16/32", "/waku/2/rs/16/64"], ring_capacity=7000).spec.command
    assert command[command.index("--relay-cache-capacity") + 1] == "7000"
    start = command.index("--shard")
    assert command[start + 1 : start + 3] == ["/waku/2/rs/16/32", "/waku/2/rs/16/64"]
