"""First page of the console while a fault is staged in a whole server, over HTTP: it names the consequence for users,
the first remedy and its runbook, and is fine again after the fault. `test_journeys` shows that an open page follows.

The seconds until the page shows a fault and its end stand in `test-results/staged-faults.txt`, beside the aim of five.
"""

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM
from time import monotonic, sleep
from typing import NamedTuple

import httpx
import psutil
import psycopg
import pytest
from redis import Redis

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from pushserver.console.health.incidents import WELL_AFTER
from tests.rig.folders import fill, small_disk
from tests.rig.peers import break_peer, mend_peer
from tests.rig.server import PUBSUB_TOPIC, Up, log_in, wait_until

pytestmark = pytest.mark.nightly
RESULTS = PROJECT / "test-results"
AIM_SECONDS, GIVES_UP_AFTER_SECONDS, START_SECONDS = 5.0, 30.0, 240.0
WELL = "Messages get through"
PASSWORD = r"Console user: admin, password: (\S+) \(shown only now"
NODE = ("-m", "embedded.node", "--shard", PUBSUB_TOPIC, "--relay-cache-capacity", "1000", "--port")


@dataclass
class Stack:
    """A whole server with a node outside, steady requests through it, and a browser that is logged in."""

    up: Up
    node: psutil.Popen
    browser: httpx.Client
    own: dict[str, str]  # its settings

    def page(self) -> str:
        """Return the changing part of the first page, from its verdict on."""
        with suppress(httpx.TransportError):
            return self.browser.get("/admin/", headers={"HX-Request": "true"}).text.partition('id="verdict">')[2]
        return ""

    def says(self, pattern: str, event: str) -> None:
        """Wait until the page has this text, and record how long that took."""
        begun = monotonic()
        is_so = partial(self._has, re.compile(pattern))
        try:
            wait_until(is_so, what=f"{event}: {pattern}", seconds=GIVES_UP_AFTER_SECONDS, pause_seconds=0.5)
        except AssertionError as error:
            raise AssertionError(text_of(self.page())[:2000]) from error
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / "staged-faults.txt").open("a", encoding="utf-8") as results:
            results.write(f"{monotonic() - begun:5.1f} s of {AIM_SECONDS:g}: {event}\n")

    def _has(self, pattern: "re.Pattern[str]") -> bool:
        return bool(pattern.search(text_of(self.page())))

    def advises(self, step: str, runbook: str) -> None:
        """Check the first action on the page, and that it leads to its steps."""
        worst = self.page().partition('<ol class="worst">')[2].partition("</li>")[0]
        assert step in text_of(worst)
        [url] = re.findall(r'href="([^"]*)">Step by step<', worst)
        assert runbook in self.browser.get(url).text

    def incidents(self) -> int:
        """Return the number of rows in the list of incidents."""
        return self.browser.get("/admin/pushserver/incident/").text.count("data-row")

    def signal(self, number: int, *words: str) -> None:
        """Send a signal to all processes of the server, and to the node, whose command line has all of ``words``."""
        chosen = []
        for each in (self.node, *self.up.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                chosen += [each] * all(word in " ".join(each.cmdline()) for word in words)
        assert chosen
        for each in chosen:
            each.send_signal(number)

    def embedded(self, name: str) -> str:
        """Return the address of a server that `manage.py up` started."""
        return str(json.loads((Path(self.up.environment["DATA_DIR"]) / "embedded.json").read_text())[name])

    def sql(self, statements: str) -> None:
        with psycopg.connect(self.embedded("DATABASE_URL"), autocommit=True) as database:
            for statement in statements.split(";"):
                database.execute(statement)

    def redis(self, *command: str) -> None:
        with Redis.from_url(self.embedded("REDIS_URL")) as broker:
            broker.execute_command(*command)

    def restart(self, **environment: str) -> None:
        """Stop the server, and start it again with these settings besides its own."""
        assert self.up.ends(SIGTERM) == 0
        data_dir, port = Path(self.up.environment["DATA_DIR"]), int(self.up.environment["PORT"])
        self.up = Up(data_dir, port, self.up.log, environment={**self.own, **environment})
        self.up.shows("Ready. Console: ", START_SECONDS)


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with open_stack(tmp_path_factory.mktemp("faults")) as stack:
        yield stack


@contextmanager
def open_stack(folder: Path, password: str = "") -> Iterator[Stack]:
    """Start a whole server. ``password`` is that of the console, if the data were made before."""
    port, node_port = free_port(), free_port()
    own = {"WAKU_NODES": f"http://127.0.0.1:{node_port}", "CANARY_PERIOD_SECONDS": "20", "REPORTS_NIGHTLY": "0"}
    node = psutil.Popen([sys.executable, *NODE, str(node_port)], cwd=PROJECT)
    up = Up(folder / "data", port, folder / "up.log", environment=own)
    with httpx.Client(base_url=up.url, trust_env=False) as browser, ExitStack() as ending:
        stack = Stack(up, node, browser, own)
        ending.callback(lambda: stack.up.ends(SIGTERM))
        ending.callback(end, node)
        up.shows("Ready. Console: ", START_SECONDS)
        requests = [*up.manage_py, "load", "--devices=12", "--rate=3", "--seconds=1500", "--drain=1"]
        ending.callback(end, subprocess.Popen(requests, env=up.environment, stdout=subprocess.DEVNULL))
        log_in(browser, "admin", password or up.shows(PASSWORD).group(1))
        yield stack


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


class Fault(NamedTuple):
    begin: Callable[[Stack], object]
    end: Callable[[Stack], object]


def frozen(*words: str) -> Fault:
    """Freeze processes, as when their machine hangs."""
    return Fault(lambda stack: stack.signal(SIGSTOP, *words), lambda stack: stack.signal(SIGCONT, *words))


def stated(begin: str, end: str) -> Fault:
    return Fault(lambda stack: stack.sql(begin), lambda stack: stack.sql(end))


CLOCK_AHEAD = Fault(
    lambda stack: break_peer(stack.own["WAKU_NODES"], clock_skew_ms=12_000),
    lambda stack: mend_peer(stack.own["WAKU_NODES"]),
)
READ_ONLY_REDIS = Fault(
    lambda stack: stack.redis("REPLICAOF", "127.0.0.1", "1"), lambda stack: stack.redis("REPLICAOF", "NO", "ONE")
)
OTHER_KEY = Fault(lambda stack: stack.restart(SERVER_PRIVATE_KEY=secrets.token_hex(32)), Stack.restart)
PAUSE = """
    INSERT INTO notifications_channel (token_type, app_topic, last_success_at) VALUES (1, 'im.faults', now());
    INSERT INTO notifications_halt (kind, gateway, token_type, app_topic, since, by, reason)
    VALUES ('paused', '', 1, 'im.faults', now(), 'ann', 'certificates change')
"""
BREAK = "ALTER TABLE notifications_openrequest ADD CONSTRAINT broken CHECK (FALSE) NOT VALID"
REPAIR = """
    ALTER TABLE notifications_openrequest DROP CONSTRAINT broken;
    DELETE FROM waku_bridge_endedenvelope WHERE state = 'failed'
"""
LOCK = "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()"
UNLOCK = "ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf()"
NOTHING, NOTHING_IN = "Nothing is processed: ", "Nothing comes in through Waku: "
PAUSED = r"(iPhone pushes|Pushes of APN im\.faults) stopped .* ago: paused by ann|No pushes are sent: stopped by ann"
CHANGED = "Phones get no pushes until they register again: the server's key was changed"
OTHER_KEYS = "List the earlier key in OTHER_SERVER_PRIVATE_KEYS"
A_REPLICA = f"^{WELL}; 1 urgent.*Redis is a replica, and refuses writes"
HUNG, GONE = f"{NOTHING}the workers have hung", "No pushes are sent: no gorush answers"
NO_NODE, NO_BRIDGE = f"{NOTHING_IN}no node answers", f"{NOTHING_IN}the bridge has stopped"
# The fault, what the page says, and the first step with its runbook. The pages about PostgreSQL have only a remedy.
STAGED: dict[str, tuple[Fault, str, str, str]] = {
    "an app is paused": (stated(PAUSE, "DELETE FROM notifications_halt"), PAUSED, "Resume", "Channel"),
    "workers hang": (frozen("batches@", "ForkPoolWorker"), HUNG, "Restart the worker of batches", "QueueWithoutWorker"),
    "PostgreSQL hangs": (frozen("postgres"), f"{NOTHING}PostgreSQL does not answer.*Start PostgreSQL, or", "", ""),
    "PostgreSQL is read-only": (stated(LOCK, UNLOCK), f"{NOTHING}PostgreSQL cannot be.*Promote the standby", "", ""),
    "all fail": (stated(BREAK, REPAIR), "Messages fail because of a bug", "Repair the bug", "EnvelopesFail"),
    "the node hangs": (frozen("embedded.node"), NO_NODE, "Start the node if it does not answer", "NodeNotRead"),
    "the node's clock is wrong": (CLOCK_AHEAD, "its clock is 1[12] s ahead of ours", "Run NTP", "NodeNotRead"),
    "gorush hangs": (frozen("embedded.gorush"), GONE, "Start gorush", "GatewayAway"),
    "Redis hangs": (frozen("valkey-server"), "Redis does not answer", "Start Redis", "BrokerDown"),
    "Redis is read-only": (READ_ONLY_REDIS, A_REPLICA, "Name the primary in REDIS_URL", "BrokerDown"),
    "the bridge is stopped": (frozen("pushserver bridge"), NO_BRIDGE, "restart it if it hangs", "NoBridge"),
    "the key was changed": (OTHER_KEY, CHANGED, OTHER_KEYS, "KeyChanged"),
}


@pytest.mark.parametrize("name", STAGED)
def test_the_page_names_the_consequence_of_a_fault_and_its_remedy_and_is_fine_afterwards(
    stack: Stack, name: str
) -> None:
    fault, words, step, runbook = STAGED[name]
    stack.says(f"^{WELL}", f"before: {name}")
    sleep(WELL_AFTER.total_seconds() + AIM_SECONDS)  # what is bad again earlier goes on with its last incident
    before = stack.incidents()
    fault.begin(stack)
    try:
        stack.says(words, name)
        if step:
            stack.advises(step, f"PushServer{runbook}")
        if words == HUNG:
            assert stack.browser.get("/readyz").status_code == 503
        sleep(AIM_SECONDS)
        stack.says(words, f"still: {name}")
    finally:
        fault.end(stack)
    stack.says(f"^(?!.*({words})){WELL}", f"over: {name}")
    if fault is not OTHER_KEY:  # whose restarts are incidents, too
        one = before + 1
        wait_until(lambda: stack.incidents() == one, what=f"one row: {name}", seconds=4 * GIVES_UP_AFTER_SECONDS)


def test_a_disk_that_fills_is_told_before_and_when_nothing_is_processed(
    tmp_path: Path, require_or_skip: Callable[[bool, str], None]
) -> None:
    """Nearly full, messages still get through. The data are made before: those of PostgreSQL move to a small disk."""
    first = Up(tmp_path / "data", free_port(), tmp_path / "first.log")
    password = first.shows(PASSWORD, START_SECONDS).group(1)
    first.shows("Ready. Console: ", START_SECONDS)
    first.ends(SIGTERM)
    disk, kept = tmp_path / "data" / "postgres", tmp_path / "kept"
    disk.rename(kept)
    disk.mkdir()
    with small_disk(disk, require_or_skip, mib=420):
        subprocess.run(["/bin/cp", "-a", f"{kept}/.", str(disk)], check=True)
        with open_stack(tmp_path, password) as stack:
            nearly = fill(disk, left_mib=60)
            stack.says(rf"^{WELL}; 1 urgent.*the disk of PostgreSQL.* has \d+ MiB left of", "a disk is nearly full")
            stack.advises("Make room there", "PushServerDiskFilling")
            ballast = fill(disk)
            stack.says(f"{NOTHING}the disk of PostgreSQL is full", "a disk is full")
            nearly.unlink()
            ballast.unlink()
            stack.says(WELL, "a disk has room")
