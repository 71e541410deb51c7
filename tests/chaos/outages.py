"""Faults of nodes, bridges, database and worker while messages come in, one after the other, in a random order.

No fault destroys the last copy of a message: every message that a node has taken is in a store that comes back.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from tests.chaos.bridges import BRIDGES, NODES, Bridges
from tests.rig.peers import break_peer, mend_peer


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault, with Unix times. ``takeover_seconds`` is how long no bridge held the lock, where the fault is about
    that.
    """

    name: str
    began_at: float
    ended_at: float
    takeover_seconds: float | None


@dataclass(slots=True)
class Outages:
    """The faults, by name. ``scale`` shortens long faults for a short run. `strike` runs each kind once."""

    bridges: Bridges
    rng: random.Random
    scale: float = 1.0
    struck: list[Struck] = field(default_factory=list)

    def strike(self, *names: str) -> None:
        order = list(names or self.KINDS)
        self.rng.shuffle(order)
        for name in order:
            time.sleep(self.rng.uniform(0.5, 2))
            began_at = time.time()
            takeover_seconds = self.KINDS[name](self)
            self.struck.append(Struck(name, began_at, time.time(), takeover_seconds))

    def _lose_replies(self) -> None:
        """Drain the cache of both nodes and break the connection before the answer. With one node the other would still
        have the messages.
        """
        for _ in range(3):
            for name in NODES:
                break_peer(self.bridges.urls[name], cut_after_drain=self.rng.randint(3, 6))
            time.sleep(1)

    def _restart_node(self) -> None:
        """Restart a node, which loses its cache."""
        name = self._any_node()
        self.bridges.fleet.stop(name)
        time.sleep(self.rng.uniform(0, 2))
        self.bridges.start_nodes(name)

    def _take_node_away(self) -> None:
        """Stop a node for a while, during which the other one has faults, too."""
        name = self._any_node()
        [other] = set(NODES) - {name}
        self.bridges.fleet.stop(name)
        break_peer(self.bridges.urls[other], cut_after_drain=3)
        time.sleep(30 * self.scale)
        self.bridges.start_nodes(name)

    def _take_stores_away(self) -> None:
        """Stop both stores while answers of the caches get lost."""
        with self._broken(*NODES, store_no_peer=True, cut_after_drain=3):
            time.sleep(30 * self.scale)

    def _kill_bridge(self) -> float:
        """Kill the bridge that reads. It comes back as the standby."""
        name = self.bridges.owner() or self.rng.choice(BRIDGES)
        self.bridges.fleet.kill(name)
        seconds = self.bridges.seconds_until_owned()
        self.bridges.start_bridges(name)
        return seconds

    def _kill_both_bridges(self) -> float:
        self.bridges.fleet.kill(*BRIDGES)
        self.bridges.start_bridges(*BRIDGES)
        return self.bridges.seconds_until_owned()

    def _kill_database(self) -> float:
        self.bridges.cluster.kill()
        time.sleep(self.rng.uniform(0, 3))
        self.bridges.cluster.start()
        return self.bridges.seconds_until_owned()

    def _take_database_away(self) -> float:
        """Stop the database for a minute, in which incoming messages are only in the nodes."""
        self.bridges.cluster.kill()
        time.sleep(60 * self.scale)
        self.bridges.cluster.start()
        return self.bridges.seconds_until_owned()

    def _kill_worker(self) -> None:
        self.bridges.fleet.kill("batches")
        self.bridges.start_workers()

    def _insert_late(self) -> None:
        seconds = 8 * self.scale
        with self._broken(self._any_node(), archive_delay_ms=round(seconds * 1000), cut_after_drain=2):
            time.sleep(4 * self.scale)
        time.sleep(seconds)

    def _lose_cursors(self) -> None:
        with self._broken(*NODES, store_cursor_not_found=self.rng.randint(2, 6)):
            time.sleep(6 * self.scale)

    def _limit_rate(self) -> None:
        """Rate-limit a store. Its walker sends nothing for a minute, and the other store has to suffice."""
        with self._broken(self._any_node(), store_rate_limited=1):
            time.sleep(4)

    def _shrink_caches(self) -> None:
        """Shrink the caches. No answer reports that messages were pushed out, and only the stores have them."""
        with self._broken(*NODES, ring_capacity_messages=5):
            time.sleep(4)

    def _part_nodes(self) -> None:
        with self._broken(*NODES, gossip_lost=True):
            time.sleep(4)

    def _slow_down(self) -> None:
        with self._broken(self._any_node(), reply_delay_ms=1500):
            time.sleep(4)

    @contextmanager
    def _broken(self, *names: str, **faults: object) -> Iterator[None]:
        for name in names:
            break_peer(self.bridges.urls[name], **faults)
        yield
        for name in names:
            mend_peer(self.bridges.urls[name])

    def _any_node(self) -> str:
        return self.rng.choice(NODES)

    KINDS: ClassVar[dict[str, Callable[["Outages"], float | None]]] = {
        "answers lost after the cache was drained": _lose_replies,
        "node restarted": _restart_node,
        "node away": _take_node_away,
        "stores away": _take_stores_away,
        "bridge killed": _kill_bridge,
        "both bridges killed": _kill_both_bridges,
        "database killed": _kill_database,
        "database away": _take_database_away,
        "worker killed": _kill_worker,
        "store inserts late": _insert_late,
        "stores lose cursors": _lose_cursors,
        "store limits the rate": _limit_rate,
        "caches much too small": _shrink_caches,
        "nodes do not gossip": _part_nodes,
        "node slow": _slow_down,
    }
