"""Faults around a push, one every few seconds, while senders go on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import ClassVar

import psutil

from tests.chaos.stack import Stack
from tests.rig.peers import break_peer, mend_peer

PAUSE_SECONDS = 2.0
IN_FLIGHT = "SELECT id, attempt_count FROM notifications_notification WHERE state = 'in_flight'"
# Faults that kill or replace a worker.
WORKER_ENDS = ("worker killed", "child of the worker killed", "worker and gorush killed", "worker restarted")


@dataclass(slots=True)
class Storm:
    """Series of faults. ``struck`` has each fault with the Unix time of its beginning. ``held`` has the attempts that
    were under way when a worker was killed, by notification and number.
    """

    stack: Stack
    struck: list[tuple[float, str]] = field(default_factory=list)
    held: set[tuple[int, int]] = field(default_factory=set)
    held_at_kills: list[int] = field(default_factory=list)

    def run(self, is_over: threading.Event) -> None:
        for name in cycle(self.FAULTS):
            if is_over.wait(PAUSE_SECONDS):
                return
            self.struck.append((time.time(), name))
            self.FAULTS[name](self)

    def _kill_worker(self) -> None:
        self.stack.fleet.kill("batches")
        self._note_held()
        self.stack.start_workers("batches")

    def _kill_child(self) -> None:
        """Kill a child of the worker. Its parent forks another one and sends it the task."""
        killed = psutil.Process(self.stack.fleet.running["batches"].pid).children()
        for child in killed:
            child.kill()
        psutil.wait_procs(killed)
        self._note_held()

    def _kill_first_gorush(self) -> None:
        self.stack.kill_gorush(0)
        time.sleep(1)
        self.stack.start_gorush(0)

    def _kill_every_gorush(self) -> None:
        self.stack.kill_gorush(0, 1)
        time.sleep(2)
        self.stack.start_gorush(0, 1)

    def _restart_gorush(self) -> None:
        """Restart gorush as a deployment does."""
        self.stack.stop_gorush(0)
        self.stack.start_gorush(0)

    def _kill_worker_and_gorush(self) -> None:
        self.stack.fleet.kill("batches", "gorush0")
        self._note_held()
        self.stack.start_gorush(0)
        self.stack.start_workers("batches")

    def _stop_worker(self) -> None:
        """Restart the worker as a deployment does."""
        self.stack.fleet.stop("batches")
        self.stack.start_workers("batches")

    def _cut_providers_off(self) -> None:
        self._break(down=True, seconds=0.1)

    def _refuse_connections(self) -> None:
        self._break(down=True, seconds=2)

    def _fail(self) -> None:
        self._break(status=500, seconds=2)

    def _time_out(self) -> None:
        """Delay the providers' answers for longer than the server waits for gorush."""
        self._break(delay_ms=6000, seconds=0.5)

    def _note_held(self) -> None:
        found = set(self.stack.fleet.rows(IN_FLIGHT)) - self.held
        self.held |= found
        self.held_at_kills.append(len(found))

    def _break(self, *, seconds: float, **faults: object) -> None:
        break_peer(self.stack.servers.fakes_url, **faults)
        time.sleep(seconds)
        mend_peer(self.stack.servers.fakes_url)

    FAULTS: ClassVar[dict[str, Callable[["Storm"], None]]] = {
        "worker killed": _kill_worker,
        "gorush killed, another takes over": _kill_first_gorush,
        "connections to Apple and Google cut": _cut_providers_off,
        "Apple and Google answer 500": _fail,
        "child of the worker killed": _kill_child,
        "every gorush killed": _kill_every_gorush,
        "Apple and Google refuse connections": _refuse_connections,
        "gorush restarted": _restart_gorush,
        "Apple and Google answer too late": _time_out,
        "worker and gorush killed": _kill_worker_and_gorush,
        "worker restarted": _stop_worker,
    }


@contextmanager
def storm(stack: Stack) -> Iterator[Storm]:
    """Run a storm during the block, and mend everything afterwards. An error of its thread is raised at the end."""
    raised: list[BaseException] = []
    is_over, blowing = threading.Event(), Storm(stack)

    def run() -> None:
        try:
            blowing.run(is_over)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            raised.append(error)

    thread = threading.Thread(target=run, name="storm")
    thread.start()
    try:
        yield blowing
    finally:
        is_over.set()
        thread.join()
    if raised:
        raise raised[0]
