"""`manage.py demo_clients`: life for the demonstration."""

import re
import time

from pushserver.stack.plan import manage
from pushserver.supervisor.processes import ProcessSpec, Stage
from tests.flows.fleet import Fleet, node, wait_until
from tests.flows.network import Network
from waku_bridge.client.demo.cast import cast

SEED = 7
CLIENTS = "clients"


def clients() -> ProcessSpec:
    arguments = ["demo_clients", f"--seed={SEED}", "--pause=0.1"]
    return manage(CLIENTS, *arguments, stage=Stage.FRONT)


def test_the_demonstration_runs_until_it_is_told_to_stop(fleet: Fleet, network: Network) -> None:
    tokens = {person.address.device_token for person in cast(SEED, version=0)}
    fleet.start(clients())
    process = fleet.running[CLIENTS]
    wait_until(lambda: tokens & {push["token"] for push in network.pushes()}, what="a notification reaches gorush")
    wait_until(lambda: re.search(r"notified .*answer=success.*ms=\d+", fleet.log(CLIENTS)), what="it is told so")
    fleet.stop(CLIENTS)
    assert process.returncode == 0
    log = fleet.log(CLIENTS)
    assert "demo_stopped" in log
    assert "Traceback" not in log
    assert [token for token in tokens if token in log] == []
    secrets = [person.phone.access_token for person in cast(SEED, version=0)]
    assert [secret for secret in secrets if secret in log] == []


def test_the_demonstration_survives_a_restart_of_the_node(fleet: Fleet, network: Network) -> None:
    fleet.start(clients())
    wait_until(lambda: "notified" in fleet.log(CLIENTS), what="the first notification")
    fleet.stop("node")
    fleet.start(node(int(fleet.environment["WAKU_NODES"].rsplit(":", 1)[1])))
    before = time.time_ns() // 1_000_000
    wait_until(
        lambda: [push for push in network.pushes() if push["received_ms"] > before], what="the next notification"
    )
    assert fleet.running[CLIENTS].poll() is None
    fleet.stop(CLIENTS)
