"""Commands against a whole server: `manage.py client`, single steps of the protocol as the README walks through them;
`manage.py load`; and `manage.py demo_clients`, the people of the demonstration.
"""

import json
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from embedded.demo.people import make_people
from embedded.management.commands.client import UNREMARKABLE, words
from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from tests.rig.network import Network
from tests.rig.rows import firebase_token
from tests.rig.server import Fleet, wait_until
from waku_bridge.client.events import Accepted, Event, Ignored, LookedUp, Reason, Refused

BOBS_PHONE = firebase_token("bobs-own-phone")

Client = Callable[..., tuple[int, str]]


@pytest.fixture
def client(fleet: Fleet, network: Network, settings: LazySettings, capsys: pytest.CaptureFixture[str]) -> Client:
    """Return a function that runs one step in this process and returns its exit code and output."""
    network.phone()  # it is answered, so the server is there
    settings.WAKU_NODES = [fleet.environment["WAKU_NODES"]]
    settings.DATA_DIR = fleet.folder / "keyboard"

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        try:
            call_command("client", *arguments)
        except CommandError as error:
            return 1, f"{capsys.readouterr().out}{error}"
        return 0, capsys.readouterr().out

    return run


def register_bob(fleet: Fleet) -> str:
    """Take the first step in a process of its own, as an operator does, and return its output."""
    spec = manage("client", "client", "register", "--as", "bob", "--token", BOBS_PHONE, stop_order=StopOrder.FRONT)
    fleet.run(replace(spec, environment={**spec.environment, "DATA_DIR": str(fleet.folder / "keyboard")}))
    return fleet.log("client")


def test_the_walk_through_the_protocol(fleet: Fleet, network: Network, client: Client) -> None:
    printed = register_bob(fleet)
    assert "accepted by" in printed
    assert "contact code published: version 1" in printed
    assert "bobs-own-phone" not in printed
    (key,) = re.findall(r"bob is (0x04\w{128})", printed)
    kept = fleet.folder / "keyboard" / "clients" / "bob.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600

    code, printed = client("query", "--as", "ada", "bob")
    assert code == 0, printed
    assert "its grant is good" in printed
    assert "Can be notified at" in printed

    code, printed = client("notify", "--as", "ada", key, "--text", "Good morning")
    assert code == 0, printed
    assert re.search(r"← \S+: notified$", printed, re.MULTILINE)
    (push,) = [push for push in network.pushes() if push["token"] == BOBS_PHONE]
    assert bytes.fromhex(push["data"]["encryptedMessage"][2:]) == b"Good morning"

    code, printed = client("watch", "--as", "ada", "bob", "--seconds", "3")
    assert code == 0, printed
    assert "the contact code of" in printed

    code, printed = client("unregister", "--as", "bob")
    assert code == 0, printed
    assert "version 2 accepted by" in printed

    code, printed = client("query", "--as", "ada", "bob")
    assert code == 1
    assert (
        "No server answered the query. A server does not answer about a client that is not registered with it."
        in printed
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("unregister", "--as", "nobody"), "nobody has never registered"),
        (("query", "someone-unknown"), "someone-unknown is neither a client of this machine (--as) nor a chat key"),
        (("query", "--as", "Not A Name", "0x"), "A name has lower-case letters, digits and hyphens"),
        (("register", "--node", "http://127.0.0.1:9"), "The node does not work: 127.0.0.1:9 cannot be reached"),
        (("register", "--server", "0x12"), "0x12 is neither"),
    ],
)
def test_a_mistake_is_reported_in_one_line(client: Client, arguments: tuple[str, ...], words: str) -> None:
    code, printed = client(*arguments)
    assert code == 1
    assert words in printed


SERVER = b"\x02" + b"\xab" * 32


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Accepted(SERVER, 3, is_registered=True), "version 3 accepted by 02ababababab…: registered"),
        (Refused(SERVER, 3, 99, is_final=False), "version 3 refused by 02ababababab…: error 99"),
        (Ignored(Reason.BAD_GRANT, "/t", SERVER), "not accepted: bad_grant signed by 02ababababab…"),
        (LookedUp(SERVER, 1), ""),
    ],
)
def test_each_event_has_a_line(event: Event, text: str) -> None:
    assert words(event) == text


def test_every_ignored_message_has_a_text_unless_it_is_for_others() -> None:
    assert {reason for reason in Reason if reason not in words(Ignored(reason, "/t"))} == UNREMARKABLE


# Load -----------------------------------------------------------------------------------------------------------------
HERE = "http://127.0.0.1:9"  # nothing listens there


def run(fleet: Fleet, *arguments: str) -> tuple[int, str]:
    spec = manage("load", "load", *arguments, stop_order=StopOrder.FRONT)
    return fleet.run_to_end(replace(spec, environment={**spec.environment, "COLUMNS": "140"}), seconds=180)


@pytest.mark.nightly
def test_every_request_of_a_load_is_pushed_once_and_answered_once(
    fleet: Fleet, network: Network, tmp_path: Path
) -> None:
    file, started_at = tmp_path / "load.json", datetime.now(UTC)
    code, printed = run(fleet, "--devices=4", "--rate=40", "--seconds=5", f"--json={file}")
    assert code == 0, printed
    result = json.loads(file.read_text())
    for kind in ("pushes", "replies"):
        found = result[kind]
        assert (found["arrived"], found["lost"], found["doubled"]) == (200, 0, 0)
        latency = found["latency_ms"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
        assert sum(count for _, count in latency["histogram"]) == 200
    assert (result["merged"], result["refused"]) == (0, {})
    generator = result["generator"]
    assert generator["lag_ms"]["count"] == generator["publish_ms"]["count"] == 200
    left = "SELECT count(*) FROM registrations_registration WHERE state = 'active' AND created_at > %s"
    assert network.rows(left, started_at) == [(0,)]
    assert "request → gorush" in printed


@pytest.mark.parametrize("option", ["--node=http://node.example.org:8645", "--gorush=http://gorush.example.org"])
def test_a_target_that_is_not_on_this_machine_is_refused(settings: LazySettings, option: str) -> None:
    settings.WAKU_NODES, settings.GORUSH_URLS = [HERE], [HERE]
    with pytest.raises(CommandError, match=r"is not on this machine\. If it is yours, add --i-own-this-server\."):
        call_command("load", option)


def test_an_unreachable_node_is_reported_in_one_line(settings: LazySettings) -> None:
    settings.GORUSH_URLS = [HERE]
    with pytest.raises(CommandError, match=r"^The load did not begin: 127\.0\.0\.1:9 cannot be reached"):
        call_command("load", f"--node={HERE}", "--devices=50")  # more than register at once


# Demonstration --------------------------------------------------------------------------------------------------------
SEED = 7


def test_the_demonstration_runs_until_it_is_stopped(fleet: Fleet, network: Network) -> None:
    tokens = {person.address.device_token for person in make_people(SEED, version=0)}
    fleet.start(manage("demo", "demo_clients", f"--seed={SEED}", "--pause=0.1", stop_order=StopOrder.FRONT))
    process = fleet.running["demo"]
    wait_until(lambda: tokens & {push["token"] for push in network.pushes()}, what="a notification reaches gorush")
    assert network.rows("SELECT count(*) FROM spark_reports_reportrun") == [(0,)]  # an operator's own database
    wait_until(
        lambda: re.search(r"notified .*answer=notified.*ms=\d+", fleet.log("demo")), what="the demonstration prints it"
    )
    fleet.stop("demo")
    assert process.returncode == 0
    log = fleet.log("demo")
    assert "demo_stopped" in log
    assert "Traceback" not in log
    assert [token for token in tokens if token in log] == []
    secrets = [person.phone.access_token for person in make_people(SEED, version=0)]
    assert [secret for secret in secrets if secret in log] == []
