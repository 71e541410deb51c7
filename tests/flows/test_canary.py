"""Commands `manage.py canary` and `manage.py canary xmpp` against a whole server: the output when all is well, and when
one part is missing.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from kit.http import submit
from tests.rig import server as processes
from tests.rig.budget import first_everyday
from tests.rig.network import Network, iphone
from tests.rig.peers import ask
from tests.rig.rows import firebase_token
from tests.rig.server import Fleet, NewFleet, services, wait_for_http, wait_until
from xmpp_bridge.tests.talking import SECRET, SERVICE, XmppServer

OWN_PHONE, DEAD_PHONE = firebase_token("operators-own-phone"), iphone("dead-").device_token
LAST = "SELECT {} FROM pushserver_canaryrun ORDER BY started_at DESC LIMIT 1"
# Tables of the canary itself: its history, and the hashes that recognise late copies for an hour.
OWN_TABLES = {"pushserver_canaryrun", "waku_bridge_canaryenvelope"}
# Tables that grow anyway: sums of a minute, and incidents on a busy machine. The first push to a new app makes its
# queue, which stays.
NOTED = {
    "pushserver_trafficminute",
    "pushserver_count",
    "pushserver_incident",
    "pushserver_serverstart",
    "notifications_queue",
}

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def canary(fleet: Fleet) -> Run:
    """Return a function that runs the canary and returns its exit code and output."""

    def run(**environment: str) -> tuple[int, str]:
        spec = manage("canary", "canary", stop_order=StopOrder.FRONT)
        wide = {**spec.environment, "COLUMNS": "120", **environment}
        return fleet.run_to_end(replace(spec, environment=wide))

    return run


@contextmanager
def without(fleet: Fleet, network: Network, part: str) -> Iterator[None]:
    """Stop a part while the block runs."""
    fleet.stop(part)
    try:
        yield
    finally:
        urls = {"node": fleet.environment["WAKU_NODES"], "gorush": fleet.environment["GORUSH_URL"]}
        specs = {name: getattr(processes, name)(processes.port_of(url)) for name, url in urls.items()}
        fleet.start({**services(), **specs}[part])
        wait_for_http(f"{urls['node']}/health", f"{urls['gorush']}/healthz")
        network.phone()  # it is answered, so everything works again


def last(network: Network, *columns: str) -> tuple[Any, ...]:
    return network.rows(LAST.format(", ".join(columns)))[0]


# Partitions are counted, too, as rows are moved between them when they end.
TABLES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""


def row_counts(network: Network) -> dict[str, int]:
    names = [name for (name,) in network.rows(TABLES)]
    count = "SELECT count(*) FROM {}"
    return {name: network.rows(count.format(name))[0][0] for name in sorted(set(names) - OWN_TABLES - NOTED)}


def test_every_link_is_timed_and_no_row_stays(network: Network, canary: Run) -> None:
    network.phone()  # makes the rows that a first registration leaves
    network.wait_until_answered()
    before, pushes = row_counts(network), len(network.pushes())
    code, printed = canary()
    assert code == 0, printed
    assert len(re.findall(r"│\s+\d+ │", printed)) == 9
    assert "so its credentials, Apple and Google were not tested" in " ".join(printed.split())
    assert last(network, "state", "cause", "broken_link") == ("passed", "", "")
    (work_ms,) = last(network, "work_ms")
    assert 0 < work_ms < 1000  # CPU time in milliseconds
    assert row_counts(network) == before
    assert len(network.pushes()) == pushes


def test_a_phone_of_the_operator_gets_a_real_push(network: Network, canary: Run) -> None:
    code, printed = canary(CANARY_DEVICE_TOKEN=OWN_PHONE)
    assert code == 0, printed
    assert "were not tested" not in printed
    assert OWN_PHONE not in printed
    assert [push["platform"] for push in network.pushes() if push["token"] == OWN_PHONE] == ["android"]


def test_a_dead_token_of_the_operators_phone_is_reported(network: Network, canary: Run) -> None:
    code, printed = canary(CANARY_DEVICE_TOKEN=DEAD_PHONE, CANARY_APP_TOPIC="im.status")
    assert code == 1
    assert "the gateway does not take the push" in printed
    assert last(network, "broken_link", "cause") == ("gateway", "gateway")
    assert network.rows("SELECT count(*) FROM registrations_registrationevent WHERE kind = 'token_died'") == [(0,)]


@pytest.mark.parametrize(
    ("part", "link", "cause", "words"),
    first_everyday(
        ("bridge", "register_answer", "bridge", "the bridge does not read what a node took"),
        ("node", "register", "node", "no node takes messages"),
        ("batches", "register_answer", "worker", "the workers do not process what the bridge read"),
        ("tasks", "query_answer", "worker", "queue keys: it waits for the key of its topic"),
        ("gorush", "gateway", "gateway", "the gateway does not take the push"),
    ),
)
def test_the_broken_link_is_named(
    fleet: Fleet, network: Network, canary: Run, part: str, link: str, cause: str, words: str
) -> None:
    with without(fleet, network, part):
        code, printed = canary()
    assert code == 1
    assert words in " ".join(printed.split())
    assert last(network, "state", "broken_link", "cause") == ("broken", link, cause)


def test_a_registration_that_a_missing_bridge_reads_late_is_removed_by_the_next_run(
    network: Network, canary: Run
) -> None:
    """The node's ring still had the registration of the run above, and the bridge has read it by now."""
    code, printed = canary()
    assert code == 0, printed
    kept = "SELECT count(*) FROM waku_bridge_inboundenvelope JOIN waku_bridge_canaryenvelope USING (hash)"
    assert network.rows(kept) == [(0,)]
    assert network.rows("SELECT count(*) FROM registrations_route WHERE app_topic LIKE 'canary.%%'") == [(0,)]


def test_a_killed_run_is_reported_and_cleared_away_by_the_next(fleet: Fleet, network: Network, canary: Run) -> None:
    registered = "SELECT count(*) FROM registrations_route WHERE app_topic LIKE 'canary.%%'"
    fleet.start(manage("killed", "canary", stop_order=StopOrder.FRONT))
    wait_until(lambda: network.rows(registered) == [(1,)], what="the canary is registered")
    fleet.kill("killed")
    assert canary() == (2, "CommandError: Another run of this canary is under way. Try again in a moment.\n")
    aged = "UPDATE pushserver_canaryrun SET started_at = started_at - interval '1 hour' WHERE finished_at IS NULL"
    network.rows(f"{aged} RETURNING id")
    code, printed = canary()
    assert code == 0, printed
    assert network.rows(registered) == [(0,)]
    assert network.rows("SELECT count(*) FROM pushserver_canaryrun WHERE state = 'interrupted'") == [(1,)]


# XMPP, with an XMPP server in this process ----------------------------------------------------------------------------
LAST_OF_XMPP = "SELECT state, cause, device, pseudonym FROM pushserver_canaryrun ORDER BY started_at DESC LIMIT 1"
EMPTY = (
    *("xmpp_bridge_app", "xmpp_bridge_device", "xmpp_bridge_canarystanza", "registrations_route"),
    *("registrations_registrationevent", "notifications_notificationrequest", "notifications_notification"),
    "notifications_attempt",
)


@pytest.fixture
def behind_xmpp(new_fleet: NewFleet) -> Iterator[Fleet]:
    """The server behind an XMPP server. The canary is served although its domain is not allowed."""
    xmpp, serving = XmppServer(), AsyncExitStack()
    xmpp.does_route = True
    address = submit(serving.enter_async_context(xmpp.serving())).result(20)
    component = {"JID": SERVICE, "SECRET": SECRET, "HOST": "127.0.0.1", "PORT": str(address.port)}
    own = {f"XMPP_COMPONENT_{name}": value for name, value in component.items()}
    own |= {"XMPP_ALLOWED_DOMAINS": "capulet.test", "GORUSH_TIMEOUT_SECONDS": "2", "COLUMNS": "120"}
    fleet = new_fleet("xmpp_canary", **own)
    url = fleet.environment["GORUSH_URL"]
    try:
        bridge = manage("xmpp", "run_xmpp_bridge", stop_order=StopOrder.FRONT)
        fleet.start(processes.gorush(processes.port_of(url)), processes.services()["batches"], bridge)
        wait_until(lambda: xmpp.connections, what="the component is connected")
        wait_for_http(f"{url}/healthz")
        yield fleet
    finally:
        fleet.stop(*fleet.running)
        submit(serving.aclose()).result(20)


def test_every_link_of_xmpp_is_timed_and_no_row_stays(behind_xmpp: Fleet) -> None:
    fleet = behind_xmpp
    for _ in range(2):  # the second run meets the rows of the first one
        code, printed = fleet.run_to_end(manage("canary", "canary", "xmpp", stop_order=StopOrder.FRONT))
        assert code == 0, printed
        assert len(re.findall(r"│\s+\d+ │", printed)) == 4
        assert "so its credentials, Apple and Google were not tested" in " ".join(printed.split())
        assert fleet.rows(LAST_OF_XMPP) == [("passed", "", None, None)]
        assert [table for table in EMPTY if fleet.rows(f"SELECT 1 FROM {table}")] == []
    assert ask(fleet.environment["GORUSH_URL"], "GET", "/dev/pushes").body["pushes"] == []
