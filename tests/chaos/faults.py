"""Faults of a storm, one after the other, while senders of both networks go on.

No fault destroys the last copy of a message: every message that a node has taken is in a store that comes back.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import psutil

from tests.chaos.world import BRIDGES, GORUSHES, NODES, World
from tests.interop.xmpp import service
from tests.interop.xmpp.peers import SERVICE
from tests.interop.xmpp.service import BRIDGE
from tests.rig.peers import break_peer, mend_peer

READ_ONLY_SECONDS = float(os.environ.get("READ_ONLY_SECONDS") or 30)
# A tool such as Patroni takes its time to notice that a primary is gone.
NOTICED_AFTER_SECONDS = 5.0
# Seconds of commits that an asynchronous standby lacks.
BEHIND_SECONDS = 1.0
# After a fault: a new process starts, connects, finds the open rows and works off the queue.
CATCH_UP_SECONDS = 20.0
# Pushes over XMPP sent this shortly before the bridge was killed or replaced may be lost with it.
IN_HAND_SECONDS = 5.0
PROVIDERS = ("providers",)


class Struck(NamedTuple):
    """One fault, with Unix times. ``takeover_seconds`` is how long no bridge read, where the fault is about that."""

    name: str
    began_at: float
    ended_at: float
    takeover_seconds: float | None

    def covers(self, at: float, *, before: float = 0, after: float = 0) -> bool:
        return self.began_at - before <= at <= self.ended_at + after


@dataclass(slots=True)
class Storm:
    """Faults of a world, by name. ``scale`` shortens long ones. ``cut_at`` is when an asynchronous standby got its last
    record.
    """

    world: World
    rng: random.Random
    scale: float = 1.0
    struck: list[Struck] = field(default_factory=list)
    cut_at: float | None = None

    def strike(self, names: Iterable[str], *, pause_seconds: float) -> None:
        """Let each of these faults strike once, after a pause of about this length."""
        for name in names:
            time.sleep(pause_seconds * self.rng.uniform(0.5, 1.5))
            began_at = time.time()
            takeover_seconds = FAULTS[name](self)
            self.struck.append(Struck(name, began_at, time.time(), takeover_seconds))
        time.sleep(pause_seconds)

    def may_delay(self, at: float) -> bool:
        """Return whether a request at this time may have had to wait for the end of a fault."""
        return any(each.covers(at, before=3, after=CATCH_UP_SECONDS) for each in self.struck)

    def had_in_hand(self, at: float) -> bool:
        """Return whether a stanza at this time may have been lost with the bridge of XMPP."""
        ends = [
            each for each in self.struck if BRIDGE in KILLS.get(each.name, ()) or BRIDGE in STOPS.get(each.name, ())
        ]
        return any(each.covers(at, before=IN_HAND_SECONDS, after=IN_HAND_SECONDS) for each in ends)

    def has_cut_off(self, at: float) -> bool:
        """Return whether the standby that took over lacks commits of this time."""
        return self.cut_at is not None and -3 <= at - self.cut_at <= BEHIND_SECONDS + 3

    def _kill(self, names: Sequence[str]) -> float | None:
        """Kill parts at once, and start them again. The bridge that reads comes back as the standby."""
        names = [self.world.reader() or BRIDGES[0]] if names == READER else names
        self.world.fleet.kill(*names)
        seconds = self.world.seconds_until_read() if set(names) < set(BRIDGES) else None
        time.sleep(self.rng.uniform(0, 2))
        self._start(names)
        return seconds or (self.world.seconds_until_read() if set(names) & set(BRIDGES) else None)

    def _stop(self, names: Sequence[str]) -> None:
        """Replace parts as a deployment does. A node loses its cache."""
        self.world.fleet.stop(*names)
        self._start(names)

    def _start(self, names: Sequence[str]) -> None:
        self.world.start(*names)
        if BRIDGE in names:
            asyncio.run(self._wait_for_xmpp())

    async def _wait_for_xmpp(self) -> None:
        """Send queries as a user does, because the neighbouring component's own address is taken."""
        peer = self.world.service.peer
        async with peer.account(peer.user("watch")) as watch:
            await service.until_answered(
                lambda: watch.ask(service.iq("get", SERVICE, service.new_id(), service.element("ping", service.PING)))
            )

    def _kill_child(self) -> None:
        """Kill a child of the worker. Its parent forks another one and sends it the task."""
        killed = psutil.Process(self.world.fleet.running["batches"].pid).children()
        for child in killed:
            child.kill()
        psutil.wait_procs(killed)

    def _break(self, names: Sequence[str], seconds: float, faults: Mapping[str, Any]) -> None:
        with self._broken(names, faults):
            time.sleep(seconds * self.scale)

    @contextmanager
    def _broken(self, names: Sequence[str], faults: Mapping[str, Any]) -> Iterator[None]:
        names = [self.rng.choice(NODES)] if names == ANY_NODE else names
        urls = [self.world.urls.get(name, self.world.servers.fakes_url) for name in names]
        for url in urls:
            break_peer(url, **faults)
        yield
        for url in urls:
            mend_peer(url)

    def _lose_answers(self) -> None:
        """Drain the cache of both nodes and break the connection before the answer. With one node the other would still
        have the messages.
        """
        for _ in range(3):
            for name in NODES:
                break_peer(self.world.urls[name], cut_after_drain=self.rng.randint(3, 6))
            time.sleep(1)

    def _take_node_away(self) -> None:
        """Stop a node for a while, during which the other one has faults, too."""
        name, other = self.rng.sample(NODES, 2)
        self.world.fleet.stop(name)
        self._break([other], 30, {"cut_after_drain": 3})
        self.world.start(name)

    def _take_database_away(self, seconds: float) -> float:
        """Stop the database for a while, in which incoming messages are only in the nodes."""
        self.world.replicas.primary.kill()
        time.sleep(seconds * self.scale)
        self.world.replicas.primary.start()
        return self.world.seconds_until_read()

    def _fail_over(self) -> float:
        """Lose the primary. The standby takes over, and gets a standby of its own."""
        pair = self.world.replicas
        if not pair.is_synchronous:
            pair.cut_off()
            self.cut_at = time.time()
            time.sleep(BEHIND_SECONDS)
        pair.fail_over(noticed_after_seconds=NOTICED_AFTER_SECONDS)
        seconds = self.world.seconds_until_read()
        pair.follow()
        return seconds

    def _become_read_only(self) -> None:
        self.world.replicas.primary.set(default_transaction_read_only="on")
        time.sleep(READ_ONLY_SECONDS)
        self.world.replicas.primary.set(default_transaction_read_only="off")


READER, ANY_NODE = ("the bridge that reads",), ("any node",)
KILLS: Mapping[str, Sequence[str]] = {
    "worker killed": ["batches"],
    "gorush killed, another takes over": GORUSHES[:1],
    "every gorush killed": GORUSHES,
    "worker and gorush killed": ["batches", GORUSHES[0]],
    "bridge killed": READER,
    "both bridges killed": BRIDGES,
    "XMPP bridge killed": [BRIDGE],
    "XMPP bridge and worker killed": [BRIDGE, "batches"],
}
STOPS: Mapping[str, Sequence[str]] = {
    "worker replaced": ["batches"],
    "gorush replaced": GORUSHES[:1],
    "node replaced": NODES[1:],
    "XMPP bridge replaced": [BRIDGE],
}
BREAKS: Mapping[str, tuple[Sequence[str], float, Mapping[str, Any]]] = {
    "connections to Apple and Google cut": (PROVIDERS, 0.1, {"down": True}),
    "Apple and Google refuse connections": (PROVIDERS, 2, {"down": True}),
    "Apple and Google answer 500": (PROVIDERS, 2, {"status": 500}),
    "Apple and Google answer too late": (PROVIDERS, 0.5, {"delay_ms": 6000}),
    "stores away": (NODES, 30, {"store_no_peer": True, "cut_after_drain": 3}),
    "store inserts late": (ANY_NODE, 12, {"archive_delay_ms": 8000, "cut_after_drain": 2}),
    "stores lose cursors": (NODES, 6, {"store_cursor_not_found": 4}),
    "store limits the rate": (ANY_NODE, 4, {"store_rate_limited": 1}),
    "caches much too small": (NODES, 4, {"ring_capacity_messages": 5}),
    "nodes do not gossip": (NODES, 4, {"gossip_lost": True}),
    "node slow": (ANY_NODE, 4, {"reply_delay_ms": 1500}),
}
LOST_ANSWERS = "answers lost after the cache was drained"
FAIL_OVER, READ_ONLY = "fail-over", "database read-only"
FAULTS: Mapping[str, Callable[[Storm], float | None]] = {
    **{name: partial(Storm._kill, names=parts) for name, parts in KILLS.items()},
    **{name: partial(Storm._stop, names=parts) for name, parts in STOPS.items()},
    **{name: partial(Storm._break, names=n, seconds=s, faults=f) for name, (n, s, f) in BREAKS.items()},
    "child of the worker killed": Storm._kill_child,
    LOST_ANSWERS: Storm._lose_answers,
    "node away": Storm._take_node_away,
    "database killed": partial(Storm._take_database_away, seconds=1),
    "database away": partial(Storm._take_database_away, seconds=60),
    FAIL_OVER: Storm._fail_over,
    READ_ONLY: Storm._become_read_only,
}
# No answer reports that messages were lost or pushed out, and only the stores have them.
LOSSES = (LOST_ANSWERS, "caches much too small")
