"""Tests of the embedded servers: private, at the same address every time, and restarted after every kind of end."""

import asyncio
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
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
from embedded.servers.parts import answers, fetch, listens, pongs
from embedded.servers.postgres import SETTINGS, SOCKET_NAME, EmbeddedPostgres
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


# PostgreSQL -----------------------------------------------------------------------------------------------------------
def test_postgres_starts_in_an_awkward_folder_after_every_kind_of_end_and_finds_its_data_again(tmp_path, guard):
    """A server is left behind when everything that could have stopped it got SIGKILL."""
    draft, folder = tmp_path / AWKWARD / "postgres.new", tmp_path / AWKWARD / "postgres"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")  # an interrupted initdb
    server = EmbeddedPostgres(folder, FAST)
    with served(server, guard, tmp_path / "log") as leftover:
        assert not draft.exists()
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        with psycopg.connect(server.url()) as connection:
            connection.execute("CREATE TABLE kept (id int)")
        with served(server, guard, tmp_path / "log") as process:
            assert leftover.wait(timeout=20) == 0
            assert process.poll() is None
            pid_file = (folder / "postmaster.pid").read_text()
    outsider = f"{os.getpid()}\n" + pid_file.split("\n", 1)[1]  # another process has its last id
    (folder / "postmaster.pid").write_text(outsider)
    with served(server, guard, tmp_path / "log"), psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    server.socket_dir.unlink()
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & SETTINGS.keys()  # real data are kept safe


def test_data_of_another_version_and_a_socket_folder_of_another_account_are_refused_in_one_line(tmp_path):
    server = EmbeddedPostgres(tmp_path / "postgres")
    server.data_dir.mkdir()
    (server.data_dir / "PG_VERSION").write_text("16\n")
    with pytest.raises(StartError, match="was made by PostgreSQL 16, not 18: upgrade it"):
        server.prepare()
    (server.data_dir / "PG_VERSION").write_text("18\n")
    server.__dict__["socket_dir"] = tmp_path / "link"
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StartError, match="belongs to someone else"):
        server.prepare()


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


# Accounts -------------------------------------------------------------------------------------------------------------
@needs_root
def test_postgres_runs_as_an_account_without_rights_in_a_closed_folder_and_gets_its_data_back(tmp_path, guard):
    """Root's own home is such a folder: nothing above the data is opened. `cp -r` makes data root's."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    server = EmbeddedPostgres(home / "postgres", FAST)
    with served(server, guard, tmp_path / "log") as process:
        facts = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        assert re.search(r"^Uid:\t[1-9]", facts, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", facts, re.MULTILINE)
    assert (stat.S_IMODE(home.stat().st_mode), home.stat().st_uid) == (0o700, 0)

    for path in (server.data_dir, *server.data_dir.rglob("*")):
        os.chown(path, 0, 0)
    server.data_dir.chmod(0o755)
    again = EmbeddedPostgres(server.data_dir, FAST)
    with served(again, guard, tmp_path / "log"):
        assert again.data_dir.stat().st_uid == server.account.uid


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


@needs_root
def test_a_root_that_may_not_give_files_away_gets_an_instruction(tmp_path, require_or_skip):
    """Root has this limit in a container without capabilities, or on a network disk."""
    require_or_skip(bool(shutil.which("setpriv")), "setpriv is missing")
    command = ["setpriv", "--bounding-set=-chown", sys.executable, "-c", PREPARE, tmp_path / "postgres"]
    reported = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    [line] = reported.stdout.splitlines()[-1:]
    assert re.fullmatch(r"PostgreSQL does not run as root, and .* start as an ordinary user, or .*", line), reported


@pytest.mark.parametrize("useradd", [None, "/bin/false"])
def test_root_falls_back_to_nobody_where_no_account_can_be_made(monkeypatch, tmp_path, useradd):
    monkeypatch.setattr(folders.os, "geteuid", lambda: 0)
    monkeypatch.setattr(folders.shutil, "which", lambda _: useradd)
    monkeypatch.setattr(folders, "ACCOUNT_NAME", "no-such-account")
    account = folders.account_for(tmp_path / "postgres")
    assert account.uid == folders.pwd.getpwnam("nobody").pw_uid


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


def test_programs_are_copied_once_for_all_accounts_under_any_umask_and_again_when_damaged(originals, tmp_path, capsys):
    places = [tmp_path, tmp_path / "second"]
    folder = folders.readable_copy(originals, ["bin", "lib"], "programs-1", places)
    assert folder == tmp_path / "pushserver" / "programs-1"
    assert capsys.readouterr().out.count(str(folder)) == 1
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"programs-1": 0o755, "bin": 0o755, "lib": 0o755, "program": 0o755, "library": 0o644}
    assert folders.readable_copy(originals, ["bin", "lib"], "programs-1", places) == folder
    assert capsys.readouterr().out == ""
    (folder / "bin" / "program").write_text("")
    folders.readable_copy(originals, ["bin", "lib"], "programs-1", places)
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


# Valkey and ports -----------------------------------------------------------------------------------------------------
def test_valkey_has_a_password_in_private_files_refuses_to_evict_and_finds_its_data_after_a_kill(tmp_path, guard):
    data_dir = tmp_path / "with space and 'quotes\"" / "valkey"
    server = EmbeddedValkey(data_dir, ports.free_port())
    with served(server, guard, tmp_path / "log") as process:
        with (
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as outsider,
            pytest.raises(redis.AuthenticationError),
        ):
            outsider.ping()
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            kept = {"maxmemory-policy": "noeviction", "appendonly": "yes"}
            assert client.config_get("maxmemory-policy", "appendonly") == kept
            client.set("kept", "1")
            client.execute_command("WAITAOF", 1, 0, 5000)
        process.kill()
        process.wait()
    assert server.password not in " ".join([*server.spec().command, server.address])
    assert {stat.S_IMODE((data_dir / name).stat().st_mode) for name in ("valkey.conf", "password")} == {0o600}
    again = EmbeddedValkey(data_dir, server.port)
    with served(again, guard, tmp_path / "log"), redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"1"


def test_ports_stay_once_they_are_saved_and_one_in_use_is_replaced(tmp_path):
    file = tmp_path / "ports.json"
    chosen = ports.Ports(file)
    assert chosen["valkey"] == chosen["valkey"] != chosen["node"]
    assert not file.exists()
    file.write_text('{"xmpp-users": 12345}')  # a server that this start does not have
    chosen = ports.Ports(file)
    saved = {"valkey": chosen["valkey"], "node": chosen["node"]}
    chosen.save()
    assert json.loads(file.read_text()) == {"xmpp-users": 12345, **saved}
    again = ports.Ports(file)
    assert {name: again[name] for name in saved} == saved
    with socket.create_server(("127.0.0.1", saved["valkey"])):
        assert ports.Ports(file)["valkey"] != saved["valkey"]


def test_a_port_is_outside_the_range_of_outgoing_connections():
    (first,) = re.findall(r"^\d+", Path("/proc/sys/net/ipv4/ip_local_port_range").read_text())
    assert all(1024 < ports.free_port() < min(int(first), 49152) for _ in range(50))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_listening_server_takes_its_port(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free(host, port)
    assert ports.is_free(host, port)


def test_the_node_has_every_configured_topic_and_the_expected_ring(tmp_path):
    command = parts.waku_node(tmp_path, 9, ["/waku/2/rs/16/32", "/waku/2/rs/16/64"], ring_capacity=7000).spec.command
    assert command[command.index("--relay-cache-capacity") + 1] == "7000"
    start = command.index("--shard")
    assert command[start + 1 : start + 3] == ["/waku/2/rs/16/32", "/waku/2/rs/16/64"]


# Probes ---------------------------------------------------------------------------------------------------------------
def test_a_server_is_ready_when_it_answers_as_it_should(valkey, postgres, live_server, tmp_path):
    assert asyncio.run(pongs(valkey.url))
    assert not asyncio.run(pongs(valkey.url.replace(valkey.password, "wrong")))
    assert asyncio.run(listens(postgres.socket_dir / SOCKET_NAME))
    assert not asyncio.run(listens(tmp_path / "nobody"))
    assert asyncio.run(answers(f"{live_server.url}/healthz"))
    assert not asyncio.run(answers(f"{live_server.url}/nowhere"))
    assert asyncio.run(fetch(f"{live_server.url}/healthz")) == (200, b'{"status": "ok"}')


def test_probing_an_absent_server_needs_no_thread_as_the_process_may_have_to_fork():
    before = threading.active_count()
    assert asyncio.run(fetch(f"http://localhost:{ports.free_port()}/healthz")) == (0, b"")
    assert threading.active_count() == before
