"""Tests of the embedded servers: private, at the same address every time, and restarted after every kind of end."""

import asyncio
import json
import os
import re
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from embedded.servers import folders, ports
from embedded.servers.postgres import SETTINGS, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.stack.running import fetch
from kit.processes import StartError
from pushserver.console.health.asking import ask_database
from tests.rig.server import running

FAST = {"fsync": "off", "shared_buffers": "16MB"}
# Longer than a socket address, with characters that are special in URLs and in shells.
AWKWARD = "Data & 'Söhne' 100%/" + "long/" * 20 + "end"
IS_ROOT = os.geteuid() == 0


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# PostgreSQL -----------------------------------------------------------------------------------------------------------
def test_postgres_runs_without_rights_in_an_awkward_closed_folder_and_finds_its_data_after_every_kind_of_end(
    tmp_path, guard
):
    """A server is left behind when everything that could have stopped it got SIGKILL. `cp -r` makes data root's."""
    home, log = tmp_path / AWKWARD, tmp_path / "log"
    draft, folder = home / "postgres.new", home / "postgres"
    draft.mkdir(parents=True)
    home.chmod(0o700)  # as root's own home is: nothing above the data is opened
    (draft / "PG_VERSION").write_text("18\n")  # an interrupted initdb
    server = EmbeddedPostgres(folder, FAST)
    with running(server, guard, log) as leftover:
        assert not draft.exists()
        assert mode(server.socket_dir) == 0o700
        status = Path(f"/proc/{leftover.pid}/status").read_text(encoding="utf-8")
        assert re.search(r"(?s)\nUid:\t[1-9].*\nCapEff:\t0+\n", status)
        with psycopg.connect(server.url()) as connection:
            connection.execute("CREATE TABLE kept (id int)")
        with running(server, guard, log) as process:
            assert leftover.wait(timeout=20) == 0
            assert process.poll() is None
            pid_file = (folder / "postmaster.pid").read_text()
    assert (mode(home), home.stat().st_uid) == (0o700, os.geteuid())
    outsider = f"{os.getpid()}\n" + pid_file.split("\n", 1)[1]  # another process has its last id
    (folder / "postmaster.pid").write_text(outsider)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, os.geteuid(), os.getegid())
    folder.chmod(0o755)
    again = EmbeddedPostgres(folder, FAST)
    with running(again, guard, log), psycopg.connect(again.url()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        assert folder.stat().st_uid == (again.account.uid if IS_ROOT else os.geteuid())
    server.socket_dir.unlink()
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & SETTINGS.keys()  # real data are kept safe


def test_an_embedded_server_that_starts_is_not_asked_as_it_would_log_an_error(tmp_path, settings):
    server = EmbeddedPostgres(tmp_path / "postgres", FAST)
    settings.EMBEDDED_POSTGRES_DIR, settings.DATABASE_URL = server.data_dir, server.url()
    settings.EMBEDDED = {"DATABASE_URL": server.url()}
    assert ask_database()["database"] == "PostgreSQL is not ready"


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


@pytest.fixture
def originals(tmp_path):
    """Create programs as an installation under a strict umask does, in a folder that is closed to others."""
    folder = tmp_path / "closed"
    for name, allowed in (("bin/program", 0o700), ("lib/library", 0o600), ("include/header", 0o600)):
        (folder / name).parent.mkdir(mode=0o700, parents=True)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(allowed)
    folder.chmod(0o700)
    return folder


def test_checkouts_that_copy_programs_at_once_share_one_copy_that_is_made_again_when_damaged(
    originals, tmp_path, capsys
):
    def copies(count):
        """Return the folders of copies that are asked for at once, and the lines that announced them."""
        with ThreadPoolExecutor(count) as pool:
            asked = (originals, ["bin", "lib"], "programs-1", [tmp_path, tmp_path / "second"])
            copying = [pool.submit(folders.readable_copy, *asked) for _ in range(count)]
        return {each.result() for each in copying}, capsys.readouterr().out.count("\n")

    folder = tmp_path / "pushserver" / "programs-1"
    assert copies(8) == ({folder}, 1)
    modes = {path.name: mode(path) for path in (folder, *folder.rglob("*"))}
    assert modes == {"programs-1": 0o755, "bin": 0o755, "lib": 0o755, "program": 0o755, "library": 0o644}
    (folder / "bin" / "program").write_text("")
    assert copies(8) == ({folder}, 1)
    assert (folder / "bin" / "program").read_text() == "#!/bin/sh\n"
    assert {path.name for path in folder.parent.iterdir()} == {"lock", folder.name}


def test_a_place_that_takes_no_copy_is_skipped_and_the_last_fault_has_an_instruction(originals, tmp_path):
    (tmp_path / "pushserver").symlink_to(originals)  # belongs to another account
    (tmp_path / "second").mkdir()
    places = [Path("/dev/null"), tmp_path, tmp_path / "second"]
    assert folders.readable_copy(originals, ["bin"], "programs-1", places).is_relative_to(tmp_path / "second")
    with pytest.raises(StartError, match=r"/dev/null: .*; .*belongs to someone else.* start as an ordinary user"):
        folders.readable_copy(originals, ["bin"], "programs-1", places[:2])


# Valkey and ports -----------------------------------------------------------------------------------------------------
def test_valkey_has_a_password_in_private_files_refuses_to_evict_and_finds_its_data_after_a_kill(tmp_path, guard):
    data_dir = tmp_path / "with space and 'quotes\"" / "valkey"
    server = EmbeddedValkey(data_dir, ports.free_port())
    with running(server, guard, tmp_path / "log") as process:
        outsider = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        with outsider, pytest.raises(redis.AuthenticationError):
            outsider.ping()
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            kept = {"maxmemory-policy": "noeviction", "appendonly": "yes"}
            assert client.config_get("maxmemory-policy", "appendonly") == kept
            client.set("kept", "1")
            client.execute_command("WAITAOF", 1, 0, 5000)
        process.kill()
        process.wait()
    assert server.password not in " ".join(server.spec().command)
    assert {mode(data_dir / name) for name in ("valkey.conf", "password")} == {0o600}
    again = EmbeddedValkey(data_dir, server.port)
    with running(again, guard, tmp_path / "log"), redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"1"


def test_ports_stay_once_they_are_saved_and_one_in_use_is_replaced(tmp_path):
    file = tmp_path / "ports.json"
    file.write_text('{"xmpp-users": 12345}')  # a server that this start does not have
    chosen = ports.Ports(file)
    saved = {name: chosen[name] for name in ("valkey", "node")}
    assert saved["valkey"] == chosen["valkey"] != saved["node"]
    assert "node" not in file.read_text()
    chosen.save()
    assert json.loads(file.read_text()) == {"xmpp-users": 12345, **saved}
    again = ports.Ports(file)
    assert {name: again[name] for name in saved} == saved
    with socket.create_server(("127.0.0.1", saved["valkey"])):
        assert ports.Ports(file)["valkey"] != saved["valkey"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_listening_server_takes_its_port_and_none_is_in_the_range_of_outgoing_connections(host):
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free(host, port)
    assert ports.is_free(host, port)
    (first,) = re.findall(r"^\d+", Path("/proc/sys/net/ipv4/ip_local_port_range").read_text())
    assert all(1024 < ports.free_port() < min(int(first), 49152) for _ in range(50))


def test_probing_an_absent_server_needs_no_thread_as_the_process_may_have_to_fork():
    before = threading.active_count()
    assert asyncio.run(fetch(f"http://localhost:{ports.free_port()}/healthz")) == (0, b"")
    assert threading.active_count() == before
