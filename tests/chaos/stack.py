"""Server of the fault runs and the gorushes and providers behind it: starting, breaking and mending them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embedded.servers.ports import free_port
from embedded.stack import plan
from tests.rig import server as processes
from tests.rig.peers import Servers, ask
from tests.rig.server import UNLIMITED, Fleet, NewFleet, wait_for_http

GORUSH = Path(os.environ.get("PEERS", ".peers")).resolve() / "gorush"
# Fakes and gorush log tokens by design, as they act for Apple and Google.
PEERS = ("gorush", "fakes")
# The settings that docs/gorush.md recommends.
SETTINGS = {
    "CORE_WORKER_NUM": "256",
    "CORE_QUEUE_NUM": "8192",
    "IOS_MAX_CONCURRENT_PUSHES": "256",
    "LOG_HIDE_TOKEN": "true",
    "LOG_HIDE_MESSAGES": "true",
}


def new_stack(new_fleet: NewFleet, name: str, *, apart: int = 0, **settings: str) -> "Stack":
    """Return a stack that is not started yet. Its timeout is short by default, so that a run reaches the end of it.

    The server knows the first two of its gorushes, and none of those ``apart``.
    """
    ports = [free_port() for _ in range(2 + apart)]
    own = {"GORUSH_URL": ",".join(map(_url, ports[:2])), "GORUSH_TIMEOUT_SECONDS": "5"}
    fleet = new_fleet(name, **own | UNLIMITED | settings)
    return Stack(fleet, Servers(fleet, GORUSH, fakes_port=free_port()), ports)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@dataclass(frozen=True, slots=True)
class Stack:
    """Several gorushes, by their number in ``ports``, in front of the same fakes of Apple and Google."""

    fleet: Fleet
    servers: Servers
    ports: Sequence[int]

    def start(self) -> None:
        node_url = self.fleet.environment["WAKU_NODES"]
        self.fleet.start(processes.node(processes.port_of(node_url)))
        self.start_gorush(*range(len(self.ports)))
        self.start_workers(*processes.services())
        wait_for_http(f"{node_url}/health")

    def start_gorush(self, *numbers: int) -> None:
        for number in numbers:
            self.servers.real(f"gorush{number}", port=self.ports[number], **SETTINGS)

    def kill_gorush(self, *numbers: int) -> None:
        self.fleet.kill(*(f"gorush{number}" for number in numbers))

    def stop_gorush(self, *numbers: int) -> None:
        self.fleet.stop(*(f"gorush{number}" for number in numbers))

    def pushes_through(self, number: int) -> int:
        return int(ask(_url(self.ports[number]), "GET", "/api/stat/app").body["total_count"])

    def start_workers(self, *names: str) -> None:
        services = processes.services()
        self.fleet.start(*(services[name] for name in names))

    def start_worker_behind(self, number: int) -> None:
        """Start a further worker of batches, which knows this gorush only."""
        name = f"batches{number}"
        alone = replace(self.fleet, environment={**self.fleet.environment, "GORUSH_URL": _url(self.ports[number])})
        alone.start(plan.worker(name, "batches", "--pool=prefork", "--concurrency=1"))

    def own_logs(self) -> dict[str, str]:
        """Return the logs of the server itself, without those of PEERS."""
        return {name: text for name, text in self.fleet.logs().items() if not name.startswith(PEERS)}
