"""Command `manage.py demo_clients`: the people of the demonstration."""

import re
import time

import pytest

from embedded.demo.people import make_people
from embedded.stack.plan import manage
from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.rig.network import Network
from tests.rig.server import Fleet, node, port_of, wait_for_http, wait_until

SEED = 7


def test_the_demonstration_runs_until_it_is_stopped(fleet: Fleet, network: Network) -> None:
    tokens = {person.address.device_token for person in make_people(SEED, version=0)}
    fleet.start(_clients("demo", SEED))
    process = fleet.running["demo"]
    wait_until(lambda: tokens & {push["token"] for push in network.pushes()}, what="a notification reaches gorush")
    wait_until(
        lambda: re.search(r"notified .*answer=success.*ms=\d+", fleet.log("demo")), what="the demonstration prints it"
    )
    fleet.stop("demo")
    assert process.returncode == 0
    log = fleet.log("demo")
    assert "demo_stopped" in log
    assert "Traceback" not in log
    assert [token for token in tokens if token in log] == []
    secrets = [person.phone.access_token for person in make_people(SEED, version=0)]
    assert [secret for secret in secrets if secret in log] == []


@pytest.mark.nightly
def test_the_demonstration_survives_a_restart_of_the_node(fleet: Fleet, network: Network) -> None:
    fleet.start(_clients("lasting-demo", SEED + 1))
    wait_until(lambda: "notified" in fleet.log("lasting-demo"), what="the first notification")
    fleet.stop("node")
    wait_until(lambda: "node_away" in fleet.log("lasting-demo"), what="the clients miss the node")
    node_url = fleet.environment["WAKU_NODES"]
    fleet.start(node(port_of(node_url)))
    wait_for_http(f"{node_url}/health")
    back_ms = time.time_ns() // 1_000_000
    wait_until(
        lambda: [push for push in network.pushes() if push["received_ms"] > back_ms], what="the next notification"
    )
    assert fleet.running["lasting-demo"].poll() is None
    fleet.stop("lasting-demo")


def _clients(name: str, seed: int) -> ProcessSpec:
    return manage(name, "demo_clients", f"--seed={seed}", "--pause=0.1", stop_order=StopOrder.FRONT)
