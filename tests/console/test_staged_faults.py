"""First page of the console while a fault is staged in a whole server. It reports the consequences for users and the
first remedy, and is fine again once the fault is over.

Each fault is timed from its beginning, and from its end, until the open page shows the change. The times stand beside
the aim of five seconds in `test-results/staged-faults.txt`, and a test gives up after `GIVES_UP_AFTER_SECONDS`.
"""

import itertools
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM

import httpx
import psutil
import psycopg
import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from kit.http.urls import host_of
from tests.console.browsing import confirm, send_login
from tests.rig.server import PUBSUB_TOPIC, Up

pytestmark = pytest.mark.nightly
RESULTS = PROJECT / "test-results"
AIM_SECONDS = 5.0
GIVES_UP_AFTER_SECONDS = 30.0
WELL = re.compile("Messages get through")
START_SECONDS = 240.0
PASSWORD = r"Console user: admin, password: (\S+) \(shown only now"
# Requests an hour on the days before, so that twenty a minute are usual.
USUAL_HOUR = 1200


@dataclass
class Stack:
    """A whole server with a node that can have faults, steady requests through it, and its first page."""

    up: Up
    node: "subprocess.Popen[bytes]"
    node_url: str
    page: Page
    load: "subprocess.Popen[bytes]"
    own: dict[str, str]  # its settings
    times: list[tuple[str, float]] = field(default_factory=list)

    @property
    def database(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(_embedded(self)["DATABASE_URL"], autocommit=True)

    def says(self, words: "re.Pattern[str]", event: str) -> None:
        """Wait until the page shows ``words``, and record how long that took."""
        begun = time.monotonic()
        expect(self.page.locator("body")).to_contain_text(words, timeout=GIVES_UP_AFTER_SECONDS * 1000)
        self.times.append((event, time.monotonic() - begun))

    def keeps_saying(self, words: "re.Pattern[str]") -> None:
        """Check for ten seconds that the first line of the page stays the same."""
        for _ in range(20):
            assert words.search(line := self.page.locator("#verdict").inner_text()), line
            time.sleep(0.5)

    def restart(self, **environment: str) -> None:
        """Stop the server, and start it again with these settings besides its own."""
        assert self.up.ends(SIGTERM) == 0
        port, data_dir = int(self.up.environment["PORT"]), Path(self.up.environment["DATA_DIR"])
        self.up = Up(data_dir, port, self.up.log, environment={**self.own, **environment})
        self.up.shows("Ready. Console: ", START_SECONDS)

    def first_action(self, words: str, page_title: str) -> None:
        """Check the first action on the page, and that a click on it leads to its steps."""
        expect(self.page.locator(".worst li").first).to_contain_text(words)
        self.page.bring_to_front()  # a page behind another one draws no frames, so that nothing on it can be clicked
        self.page.locator(".worst li").first.get_by_role("link", name="Step by step").click()
        expect(self.page.locator("body")).to_contain_text(page_title)
        self.page.goto("/admin/")

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the processes of the server whose command line contains all of ``words``."""
        family = self.up.process.children(recursive=True)
        return [each for each in family if all(word in " ".join(_command(each)) for word in words)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Stack]:
    with a_stack(tmp_path_factory.mktemp("faults"), chromium) as known:
        yield known


@contextmanager
def a_stack(folder: Path, chromium: Browser, password: str = "") -> Iterator[Stack]:
    """Start a whole server. ``password`` is that of the console, if the data were made before."""
    node_port, port = free_port(), free_port()
    node_url = f"http://127.0.0.1:{node_port}"
    node_command = [
        "embedded.node",
        "--port",
        str(node_port),
        "--shard",
        PUBSUB_TOPIC,
        "--relay-cache-capacity",
        "1000",
    ]
    environment = {"WAKU_NODES": node_url, "CANARY_PERIOD_SECONDS": "20", "REPORTS_NIGHTLY": "0"}
    with (folder / "node.log").open("wb") as log:
        node = subprocess.Popen([sys.executable, "-m", *node_command], cwd=PROJECT, stdout=log, stderr=log)
    up = Up(folder / "data", port, folder / "up.log", environment=environment)
    context = chromium.new_context(base_url=up.url, viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    try:
        up.shows("Ready. Console: ", START_SECONDS)
        password = password or up.shows(PASSWORD).group(1)
        with _steady_requests(up, folder) as load:
            known = Stack(up, node, node_url, context.new_page(), load, environment)
            send_login(known.page, "admin", password)
            expect(known.page.locator("#verdict")).to_be_visible()
            known.says(WELL, "ready")
            yield known
            up = known.up
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / "staged-faults.txt").open("a", encoding="utf-8") as results:
            results.writelines(f"{seconds:5.1f} s of {AIM_SECONDS:g}: {event}\n" for event, seconds in known.times)
    finally:
        context.close()
        for each in up.process.children(recursive=True):
            each.send_signal(SIGCONT)
        up.ends(SIGTERM)
        node.send_signal(SIGCONT)
        node.kill()
        node.wait()


@contextmanager
def _steady_requests(up: Up, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Notify phones three times a second. Failures do not matter here."""
    command = [*up.manage_py, "load", "--devices", "12", "--rate", "3", "--seconds", "1500", "--drain", "1"]
    with (folder / "load.log").open("wb") as log:
        load = subprocess.Popen(command, env=up.environment, stdout=log, stderr=log)
    try:
        yield load
    finally:
        load.kill()
        load.wait()


@contextmanager
def frozen(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Freeze processes while the block runs, as when their machine hangs."""
    chosen = list(processes)
    assert chosen
    for each in chosen:
        each.send_signal(SIGSTOP)
    try:
        yield
    finally:
        for each in chosen:
            each.send_signal(SIGCONT)


@pytest.fixture
def well(stack: Stack) -> Stack:
    """The server, after waiting until its first page shows nothing urgent."""
    stack.page.goto("/admin/")
    expect(stack.page.locator("#verdict")).to_contain_text(WELL, timeout=GIVES_UP_AFTER_SECONDS * 1000)
    return stack


def test_a_paused_app(well: Stack) -> None:
    with well.database as database:
        database.execute(
            "INSERT INTO notifications_channel (token_type, app_topic, last_success_at) VALUES (1, 'im.faults', now())"
            " ON CONFLICT DO NOTHING"
        )
    other = well.page.context.new_page()
    other.goto("/admin/notifications/channel/")
    other.locator("#result_list tbody th a", has_text="im.faults").click()
    other.get_by_role("link", name="Pause").click()
    confirm(other, "Pause", "certificates change")
    well.says(
        re.compile(
            r"(iPhone pushes|Pushes of APN im\.faults) stopped .* ago: paused by admin"
            "|No pushes are sent: stopped by admin"
        ),
        "an app is paused",
    )
    well.first_action("Resume", "PushServerChannel")

    other.goto("/admin/notifications/channel/")
    other.locator("#result_list tbody th a", has_text="im.faults").click()
    other.get_by_role("link", name="Resume").click()
    confirm(other, "Resume", "certificates have changed")
    well.says(WELL, "it is resumed")
    other.close()


def test_workers_that_hang(well: Stack) -> None:
    with frozen(well.processes("batches@", "ForkPoolWorker")):
        well.says(re.compile("Nothing is processed: the workers have hung"), "workers hang")
        expect(well.page.locator(".worst li").first).to_contain_text("Batches")
        assert httpx.get(f"{well.up.url}/readyz").status_code == 503
        well.first_action("Restart the worker of batches", "PushServerQueueWithoutWorker")
    well.says(WELL, "workers go on")


def test_a_database_that_hangs(well: Stack) -> None:
    with frozen(well.processes("postgres")):
        well.says(re.compile("PostgreSQL does not answer"), "PostgreSQL hangs")
        expect(well.page.locator("body")).to_contain_text("Start PostgreSQL, or correct DATABASE_URL")
        time.sleep(5)
    well.says(WELL, "PostgreSQL goes on")
    well.page.goto("/admin/pushserver/incident/?indicator__exact=database")
    expect(well.page.locator("#result_list tbody tr").first).to_contain_text("PostgreSQL")


def test_requests_that_all_fail_because_of_a_bug(well: Stack) -> None:
    with well.database as database:
        database.execute("ALTER TABLE notifications_notificationrequest ADD CONSTRAINT broken CHECK (FALSE) NOT VALID")
        well.says(re.compile("Messages fail because of a bug in this server"), "all requests fail")
        well.first_action("Repair the bug", "PushServerEnvelopesFail")
        database.execute("ALTER TABLE notifications_notificationrequest DROP CONSTRAINT broken")
    well.page.goto("/admin/waku_bridge/inboundenvelope/?state__exact=failed")
    while well.page.locator("#result_list tbody tr").count():
        well.page.locator("#action-toggle").check()
        well.page.locator("select[name=action]").select_option("Process again")
        well.page.get_by_role("button", name="Run").click()
        confirm(well.page, "Process again", "the constraint is gone")
        well.page.goto("/admin/waku_bridge/inboundenvelope/?state__exact=failed")
    well.page.goto("/admin/")
    well.says(WELL, "failed envelopes are processed")


def test_a_node_that_hangs(well: Stack) -> None:
    with frozen([psutil.Process(well.node.pid)]):
        well.says(re.compile("Nothing comes in through Waku: no node answers"), "the node hangs")
        well.first_action("Start the node if it does not answer", "PushServerNodeNotRead")
    well.says(WELL, "the node goes on")


def test_a_node_with_a_wrong_clock(well: Stack) -> None:
    httpx.post(f"{well.node_url}/dev/faults", json={"clock_skew_ms": 12_000}).raise_for_status()
    well.says(re.compile("its clock is 1[12] s ahead of ours"), "the node's clock is wrong")
    expect(well.page.locator(".worst li").first).to_contain_text(f"Node {host_of(well.node_url)}")
    well.first_action("Run NTP", "PushServerNodeNotRead")
    httpx.post(f"{well.node_url}/dev/faults", json={"clock_skew_ms": 0}).raise_for_status()
    begun = time.monotonic()
    expect(well.page.locator("body")).not_to_contain_text("its clock is", timeout=GIVES_UP_AFTER_SECONDS * 1000)
    well.times.append(("the node's clock is right", time.monotonic() - begun))


def test_a_gorush_that_hangs(well: Stack) -> None:
    with frozen(well.processes("embedded.gorush")):
        well.says(re.compile("No pushes are sent: no gorush answers"), "gorush hangs")
        well.first_action("Start gorush", "PushServerGatewayAway")
    well.says(WELL, "gorush goes on")


def test_a_broker_that_is_away(well: Stack) -> None:
    with frozen(well.processes("valkey-server")):
        well.says(re.compile("Redis does not answer"), "Redis hangs")
        well.first_action("Start Redis", "PushServerBrokerDown")
    well.says(WELL, "Redis goes on")


def test_a_redis_that_is_read_only(well: Stack) -> None:
    with redis.Redis.from_url(_embedded(well)["REDIS_URL"]) as broker:
        broker.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            well.says(re.compile("Redis is a replica, and refuses writes"), "Redis is read-only")
            well.first_action("Name the primary in REDIS_URL", "PushServerBrokerDown")
            well.keeps_saying(re.compile(r"^Messages get through; 1 urgent"))
        finally:
            broker.execute_command("REPLICAOF", "NO", "ONE")
    well.says(WELL, "Redis takes writes again")


def test_a_postgresql_that_is_read_only(well: Stack) -> None:
    headline = re.compile("Nothing is processed: PostgreSQL cannot be written")
    with well.database as database:
        database.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        database.execute("SELECT pg_reload_conf()")
        try:
            well.says(headline, "PostgreSQL is read-only")
            expect(well.page.locator("body")).to_contain_text("Promote the standby")
            well.keeps_saying(headline)
        finally:
            database.execute("ALTER SYSTEM RESET default_transaction_read_only")
            database.execute("SELECT pg_reload_conf()")
    well.says(WELL, "PostgreSQL can be written")


def test_a_bridge_that_is_stopped(well: Stack) -> None:
    headline = re.compile("Nothing comes in through Waku: the bridge has stopped")
    with frozen(well.processes("pushserver bridge")):
        well.says(headline, "the bridge is stopped")
        well.first_action("restart it if it hangs", "PushServerNoBridge")
        well.keeps_saying(headline)
    well.says(WELL, "the bridge goes on")


def test_a_worker_that_is_cut_off_from_gorush(well: Stack, tmp_path: Path) -> None:
    """It has a gorush of its own, which ends. It leads, so that it gets its share of so little load."""
    port = free_port()
    words = re.compile(r"process \d+ on \S+ cannot reach gorush, and leaves its pushes to the others")
    at_work = re.compile(r"(\d+) process(?:es)? at work")
    expect(well.page.locator("body")).to_contain_text(at_work)
    usual = at_work.search(well.page.locator("body").inner_text())
    all_at_work = f"{int(usual.group(1)) + 1} processes at work" if usual else ""
    with ExitStack() as running:
        gorush = running.enter_context(program(tmp_path, "embedded.gorush", "--port", str(port)))
        environment = well.up.environment | {"GORUSH_URL": f"http://127.0.0.1:{port}", "METRICS_PORT": "0"}
        apart = ["celery", "--app=pushserver.worker", "worker", "--hostname=apart@%h", "--queues=batches"]
        running.enter_context(program(tmp_path, *apart, "--pool=prefork", "--concurrency=1", environment=environment))
        expect(well.page.locator("body")).to_contain_text(all_at_work, timeout=90_000)
        for each in well.processes("batches@", "MainProcess"):
            each.terminate()  # the supervisor starts it again
        expect(well.page.locator("body")).to_contain_text("1 process at work", timeout=30_000)
        expect(well.page.locator("body")).to_contain_text(all_at_work, timeout=90_000)
        gorush.kill()
        well.says(words, "a worker is cut off from gorush")
        well.keeps_saying(re.compile("^Messages get through; 1 can wait"))
        running.enter_context(program(tmp_path, "embedded.gorush", "--port", str(port)))
        begun = time.monotonic()
        expect(well.page.locator("body")).not_to_contain_text(words, timeout=GIVES_UP_AFTER_SECONDS * 1000)
        well.times.append(("it reaches gorush again", time.monotonic() - begun))
    well.says(WELL, "it has ended")


@contextmanager
def program(
    folder: Path, *module: str, environment: "dict[str, str] | None" = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a module of ours, or one that is installed, while the block runs."""
    with (folder / "programs.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module], cwd=PROJECT, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def test_a_key_that_changed_at_a_restart(well: Stack) -> None:
    headline = re.compile("Phones get no pushes until they register again: the server's key was changed")
    well.restart(SERVER_PRIVATE_KEY=secrets.token_hex(32))
    well.page.goto("/admin/")
    well.says(headline, "the key was changed")
    well.first_action("List the earlier key in OTHER_SERVER_PRIVATE_KEYS", "PushServerKeyChanged")
    well.keeps_saying(headline)
    well.restart()
    well.page.goto("/admin/")
    well.says(WELL, "the key is back")


@pytest.mark.parametrize("name", ["postgres", ""], ids=["of PostgreSQL alone", "of all data"])
def test_a_disk_that_fills(name: str, tmp_path: Path, chromium: Browser) -> None:
    """Nearly full, messages still get through. Full, nothing is processed, and its own process says so."""
    first = Up(tmp_path / "data", free_port(), tmp_path / "first.log")
    try:
        password = first.shows(PASSWORD, START_SECONDS).group(1)
        first.shows("Ready. Console: ", START_SECONDS)
    finally:
        first.ends(SIGTERM)
    with small_disk(tmp_path / "data" / name) as disk, a_stack(tmp_path, chromium, password) as well:
        disk.fill(left_mib=60)
        well.says(re.compile(r"the disk of PostgreSQL.* has \d+ MiB left of"), f"the disk {name} is nearly full")
        well.first_action("Make room there", "PushServerDiskFilling")
        well.keeps_saying(re.compile("^Messages get through; 1 urgent"))
        disk.fill(left_mib=0)
        headline = re.compile("Nothing is processed: the disk of PostgreSQL is full")
        well.says(headline, f"the disk {name} is full")
        well.keeps_saying(headline)
        disk.empty()
        well.says(WELL, f"the disk {name} has room")


@dataclass
class SmallDisk:
    """A file system in memory that a test fills."""

    folder: Path

    def fill(self, *, left_mib: int) -> None:
        for number in itertools.count():
            free = os.statvfs(self.folder)
            wanted = free.f_bavail * free.f_frsize - left_mib * 2**20
            if wanted <= 0:
                return
            with suppress(OSError), (self.folder / f"filler-{left_mib}-{number}").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, wanted)

    def empty(self) -> None:
        for file in self.folder.glob("filler-*"):
            file.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Move a folder of data onto a small disk. Only root may mount one."""
    kept = folder.with_name(f"{folder.name}.kept")
    folder.rename(kept)
    folder.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=420m,mode=0700", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        shutil.copystat(kept, folder)
        os.chown(folder, kept.stat().st_uid, kept.stat().st_gid)
        subprocess.run(["/bin/cp", "-a", f"{kept}/.", str(folder)], check=True)
        yield SmallDisk(folder)
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(folder)], check=True)


def _embedded(stack: Stack) -> dict[str, str]:
    return dict(json.loads((Path(stack.up.environment["DATA_DIR"]) / "embedded.json").read_text()))


def test_clients_that_fall_silent(well: Stack) -> None:
    """The threshold is the third whole minute without a request, where twenty a minute are usual."""
    well.load.kill()
    with well.database as database:
        database.execute(
            "INSERT INTO pushserver_traffichour (begin_at, flow, count) SELECT"
            " date_trunc('hour', now()) + hour * interval '1 hour' - day * interval '1 day', 'requests waku', %s"
            " FROM generate_series(1, 9) AS day, generate_series(0, 1) AS hour",
            [USUAL_HOUR],
        )
        _wait(lambda: _silent_minutes(database) >= 3, seconds=300)
        well.says(re.compile(r"No request has arrived through Waku for \d min; usual is 20 a minute"), "silence")
        well.first_action("If the canary is fine", "IndicatorTraffic")
        database.execute("DELETE FROM pushserver_traffichour")
    well.says(WELL, "usual traffic is not known any more")


def _silent_minutes(database: "psycopg.Connection[tuple[object, ...]]") -> int:
    """Return how many of the newest counted minutes had no request."""
    rows = database.execute(
        "SELECT request_count FROM pushserver_trafficminute ORDER BY begin_at DESC LIMIT 9"
    ).fetchall()
    return next((number for number, (requests,) in enumerate(rows) if requests), len(rows))


def _wait(is_over: Callable[[], bool], *, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_over():
        assert time.monotonic() < until
        time.sleep(0.2)
