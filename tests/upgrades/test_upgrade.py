"""Upgrade under traffic: nothing is lost or doubled.

`make upgrade-test` runs it. It does what an operator does: `git pull`, then `make restart`. The new code migrates while
the processes of the last release serve, and then replaces each of them. The server is a `manage.py up` in a folder of
its own, between a node, a gorush and Prosody. The way back is left out: that release knows no tables of open rows.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL

import psycopg
import pytest

from embedded.servers import prosody
from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.stack.plan import manage
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import PROJECT, StopOrder
from notifications.messages import Report, ReportError
from tests.interop.xmpp import peers
from tests.interop.xmpp.service import APP, Service
from tests.rig import server as processes
from tests.rig.ledger import judge_pushes, say
from tests.rig.load import ANSWERED_SECONDS, Pushes, collapse_ids
from tests.rig.network import Network, Sender, android, network_of, new_sender, unregistered_phone
from tests.rig.server import UNLIMITED, Fleet, Up, wait_until
from waku_bridge.client.events import Destination
from waku_bridge.client.state import Preferences
from waku_bridge.codec.keys import author_hash
from xmpp_bridge.messages import Dialect

pytestmark = pytest.mark.upgrade

RATE_PER_SECOND = 20
LOAD_SECONDS = 45
REPLACE_SECONDS = 300
# Processes of the last release postpone their work from the migration until they are replaced.
POSTPONED_SECONDS = 30
# A third of the devices use XEP-0357, whose pushes are requests with an answer.
XMPP_DEVICES, XMPP_PER_SECOND = 90, 4
SECRETS = ("SECRET_KEY", "FIELD_ENCRYPTION_KEYS", "SERVER_PRIVATE_KEY")
MIGRATIONS = "SELECT count(*) FROM django_migrations"
CAME = "SELECT count(*) > 20 FROM notifications_notificationrequest WHERE received_at > %s"
ACCEPTED = """
    SELECT count(*) FILTER (WHERE received_at < %s), count(*) FILTER (WHERE received_at > %s)
    FROM notifications_notificationrequest
"""
# Log lines that need attention. An old worker that meets a lock of a migration (55P03) takes its batch again.
TROUBLE = re.compile(
    r"Traceback|\[(?:error|critical) |batch_split(?!.*sqlstate=55P03)|Not replaced|did not stop in time"
)
# A task of an old release fails at such a lock, or at a table that is gone, with two lines, and comes again.
COMES_AGAIN = re.compile(r".* Task \S+ raised unexpected: \S*'(?:Operational|Programming)Error at.*\n.*Traceback.*\n")

# What a pull neither brings nor removes.
NOT_PULLED = {"__pycache__", ".venv", ".uv"}

# The code of the last release and of the working tree -----------------------------------------------------------------
# No installation of an earlier commit can be upgraded: see CHANGELOG. Processes of those before open a gateway at their
# first push, when the files may be of the next release.
FIRST = "673ba0eece6acf77631d4f2eaee77f6b2d03a015"
# Stands in for a migration while no version has brought one yet, with changes that an upgrade may make.
MADE_UP = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("registrations", "0001_initial")]
    operations = [migrations.AddField("route", "made_up", models.TextField(null=True))]
"""


def git(*arguments: str) -> bytes:
    """Return what git prints, or nothing where it fails: a copy without `.git` or a shallow clone lacks the commits."""
    program = shutil.which("git") or "false"
    return subprocess.run([program, *arguments], cwd=PROJECT, capture_output=True, check=False).stdout


def last_release() -> str:
    """Return the tag of the newest release before this commit, or else the first commit that can be upgraded."""
    newest_first = ("tag", "--list", "v[0-9]*", "--merged=HEAD~", f"--contains={FIRST}", "--sort=-version:refname")
    tags = git(*newest_first) or git("rev-parse", "--verify", "--quiet", f"{FIRST}^{{commit}}")
    return tags.decode().partition("\n")[0]


def copy_both(old: Path, new: Path) -> None:
    """Copy the last release, and the files that are committed or would be, with a migration that the release lacks."""
    with tarfile.open(fileobj=BytesIO(git("archive", last_release()))) as files:
        files.extractall(old, filter="data")
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    for name in filter(None, listed):
        if (PROJECT / name).is_file():
            _put(PROJECT / name, new / name)
    migrations = [{file.relative_to(code) for file in code.glob("*/migrations/*.py")} for code in (old, new)]
    if migrations[0] == migrations[1]:
        (new / "registrations" / "migrations" / "0002_made_up.py").write_text(MADE_UP)


def pull(code: Path, into: Path) -> None:
    """Replace the files in place as `git pull` does, below processes that run from them."""
    new = _files(code)
    for name in _files(into) - new:
        (into / name).unlink()
    for name in sorted(new):
        _put(code / name, into / name)


def make(target: str, folder: Path, **environment: str) -> None:
    """Run a target of the Makefile. Each release has a virtual environment with the packages of its own lock file."""
    made = subprocess.run(
        [shutil.which("make") or "make", target],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr


def _files(folder: Path) -> set[Path]:
    found = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
    return {file for file in found if NOT_PULLED.isdisjoint(file.parts)}


def _put(file: Path, target: Path) -> None:
    """Write a file in one step, as a process may import it at this moment."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.new")
    shutil.copy(file, draft)
    draft.replace(target)


# The installation and its people --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Installation:
    """A running installation. The processes run the code in ``folder``, which is first ``old`` and then ``new``."""

    folder: Path
    old: Path
    new: Path
    fleet: Fleet
    up: Up
    network: Network
    xmpp: Service

    def replace(self, code: Path) -> list[float]:
        """Replace the code as `git pull && make restart` does, and return the waiting times of people who meanwhile
        registered, looked each other up and notified.
        """
        waits: list[float] = []
        due, deadline = self.up.output().count(" Replaced.") + 1, time.monotonic() + REPLACE_SECONDS
        pull(code, self.folder)
        make("restart", self.folder, DATA_DIR=self.up.environment["DATA_DIR"])
        while self.up.output().count(" Replaced.") < due:
            assert time.monotonic() < deadline, self.up.output()
            waits += self.come_and_go()
            time.sleep(0.3)
        return waits

    def come_and_go(self) -> list[float]:
        times, sender = [time.monotonic()], new_sender()
        phone = self.network.phone(android())
        times.append(time.monotonic())
        destinations = self.network.query(sender, phone)
        times.append(time.monotonic())
        assert [report.success for report in self.network.notify(sender, destinations)] == [True]
        times.append(time.monotonic())
        return [after - before for before, after in pairwise(times)]

    @contextmanager
    def xmpp_traffic(self) -> Iterator[None]:
        """Push for XMPP users until the block ends and every request has an answer: none is lost, none doubled."""
        sent, is_over = Pushes(), threading.Event()

        async def send() -> None:
            async with self.xmpp.user_server() as server:
                await server.wait_for_service()
                routes = [route for route in await server.routes(XMPP_DEVICES) if route.dialect is Dialect.XEP0357]
                await sent.send(server, routes, per_second=XMPP_PER_SECOND, is_enough=lambda _: is_over.is_set())

        sending = threading.Thread(target=lambda: asyncio.run(send()), name="user server")
        sending.start()
        try:
            wait_until(lambda: sent.at, what="the first XMPP push")
            yield
        finally:
            is_over.set()
            sending.join(ANSWERED_SECONDS)
        wait_until(lambda: sent.at.keys() <= collapse_ids(self.xmpp.all_pushes()).keys(), what="every XMPP push")
        arrived = self.xmpp.all_pushes()
        judge_pushes(sent, arrived, is_excused=lambda _: False)
        assert {len(ids) for ids in collapse_ids(arrived).values()} == {1}


@pytest.fixture
def installation(
    require_or_skip: Callable[[bool, str], None],
    postgres: EmbeddedPostgres,
    new_redis: Callable[[], str],
    guard: Guard,
    tmp_path: Path,
) -> Iterator[Installation]:
    require_or_skip(bool(last_release()), "this clone lacks the last release: `git fetch --unshallow --tags` gets it")
    require_or_skip(prosody.is_installed(), "there is no Prosody: `make xmpp-interop` as root installs it")
    folder, old, new, logs = (tmp_path / name for name in ("installed", "old", "new", "logs"))
    copy_both(old, new)
    pull(old, folder)
    make("install", folder)
    logs.mkdir()
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE upgrade")
    xmpp = peers.prosody(Fleet(logs, {}, guard))
    node, gorush = free_port(), free_port()
    environment = {
        "DATABASE_URL": postgres.url("upgrade"),
        "REDIS_URL": new_redis(),
        "WAKU_NODES": f"http://127.0.0.1:{node}",
        "GORUSH_URL": f"http://127.0.0.1:{gorush}",
        "METRICS_DIR": str(tmp_path / "metrics"),
        "METRICS_PORT": str(free_port()),
        **{name: os.environ[name] for name in SECRETS},
        **UNLIMITED,
    }
    fleet = Fleet(logs, environment | peers.component_of(xmpp), guard)
    python = str(folder / ".venv" / "bin" / "python")
    up = Up(
        tmp_path / "data", free_port(), logs / "up.log", environment=fleet.environment, folder=folder, python=python
    )
    try:
        fleet.start(processes.node(node), processes.gorush(gorush))
        up.shows("Ready. Console: ")
        network, service = network_of(fleet), Service(xmpp, fleet)
        service.add_app(APP)
        yield Installation(folder, old, new, fleet, up, network, service)
        network.close()
    finally:
        if up.process.poll() is None:
            up.ends(SIGKILL)
        fleet.kill(*fleet.running)
        xmpp.stop()


@dataclass(slots=True)
class Memory:
    """Requests with their answers, which are repeated later: each version must answer like the one that decided."""

    network: Network
    sender: Sender = field(default_factory=new_sender)
    answered: list[tuple[Sequence[Destination], bytes, tuple[Report, ...]]] = field(default_factory=list)

    def ask(self) -> None:
        """Send a request for three places: one is delivered, one is muted, and one has the wrong token."""
        mute = Preferences(muted_chats=(author_hash(self.sender.identity.pub33),))
        phones = [self.network.phone(preferences=wishes) for wishes in (None, mute, None)]
        places = [self.network.query(self.sender, phone)[0] for phone in phones]
        places[2] = replace(places[2], access_token=unregistered_phone().access_token)
        message_id = os.urandom(32)
        reports = self.network.notify(self.sender, places, message_id=message_id)
        assert [report.error for report in reports] == [ReportError.NONE, ReportError.NONE, ReportError.WRONG_TOKEN]
        self.answered.append((places, message_id, reports))

    def ask_again(self) -> None:
        for places, message_id, reports in self.answered:
            assert self.network.notify(self.sender, places, message_id=message_id) == reports


def test_an_upgrade_loses_nothing_and_doubles_nothing(installation: Installation, tmp_path: Path) -> None:
    network, memory = installation.network, Memory(installation.network)
    memory.ask()
    [(before,)] = network.rows(MIGRATIONS)
    with installation.xmpp_traffic():
        _replace_under_load(installation, installation.new, tmp_path / "upgrade.json")
    [(after,)] = network.rows(MIGRATIONS)
    assert after > before, "the last release has this schema: nothing was migrated"
    memory.ask()
    memory.ask_again()
    old, _, new = installation.up.output().partition(" Replaced.")
    log = COMES_AGAIN.sub("", old) + new
    assert [line for line in log.splitlines() if TROUBLE.search(line)] == []


def _replace_under_load(installation: Installation, code: Path, file: Path) -> None:
    """Replace the code while requests come, some of which are accepted before that, and some after it."""
    fleet, network, asked_at = installation.fleet, installation.network, datetime.now(UTC)
    options = ["--devices=20", f"--rate={RATE_PER_SECOND}", f"--seconds={LOAD_SECONDS}", f"--json={file}"]
    fleet.start(manage("load", "load", *options, stop_order=StopOrder.FRONT))
    wait_until(lambda: network.rows(CAME, asked_at) == [(True,)], what="requests come", pause_seconds=0.2)
    asked_at = datetime.now(UTC)
    waits = installation.replace(code)
    replaced_at = datetime.now(UTC)
    waits += installation.come_and_go()  # on a slow machine the load has ended by now
    fleet.running["load"].wait(timeout=120)
    fleet.kill("load")
    [(early, late)] = network.rows(ACCEPTED, asked_at, replaced_at)
    found = json.loads(file.read_text())
    say(f"{file.stem}: replaced in {replaced_at - asked_at}; {early} requests before that, {late} after it")
    say(f"{len(waits)} people waited {max(waits):.2f} s at most, half of them {sorted(waits)[len(waits) // 2]:.2f} s")
    say({kind: found[kind] for kind in ("pushes", "replies", "refused")})
    assert early
    assert late
    assert [(found[kind]["lost"], found[kind]["doubled"]) for kind in ("pushes", "replies")] == [(0, 0)] * 2
    assert found["refused"] == {}
    assert found["replies"]["latency_ms"]["max"] <= POSTPONED_SECONDS * 1000
    assert max(waits) <= POSTPONED_SECONDS
