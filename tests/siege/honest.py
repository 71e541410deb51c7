"""Honest clients of a siege, and the start of the besiegers, which run in a process of their own."""

import asyncio
import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embedded.load import LoadRequests, PushRecord, Result, WakuLoad
from kit.http.connections import HttpClient
from tests.rig.server import PUBSUB_TOPIC, SERVER
from waku_bridge.client import RegisteringClient
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

KEYS, HOSTILE_RATE, HONEST_RATE = 1000, 300, 50
DRAIN_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Honest:
    """Honest clients, which notify all phones but the first. The first is the victim: because of its many hostile
    notifications it would get fewer honest ones.
    """

    load: WakuLoad
    record: PushRecord
    phones: list[RegisteringClient]

    @classmethod
    async def register(cls, count: int, settings: Mapping[str, str], client: HttpClient) -> "Honest":
        node, record = WakuNode(settings["WAKU_NODES"], client), PushRecord(settings["GORUSH_URL"], client)
        load = WakuLoad(node, SERVER.pub33, PUBSUB_TOPIC)
        return cls(load, record, await load.register(count))

    def requests(self, *, seconds: float, rate: float = HONEST_RATE) -> LoadRequests:
        """Seal the requests of the honest clients."""
        return self.load.build(self.phones[1:], rate=rate, seconds=seconds)


def besieging(
    honest: Honest,
    node_url: str,
    recorded: Sequence[WakuMessage] = (),
    *,
    kind: str = "",
    rate: float = HOSTILE_RATE,
    seconds: float,
) -> "subprocess.Popen[str]":
    """Start the besiegers, which seal their messages first."""
    victims = [(p.identity.key_hash.hex(), p.installation_id, p.access_token) for p in honest.phones]
    parameters = {
        "node": node_url,
        "server": SERVER.pub33.hex(),
        "victims": victims,
        "keys": KEYS,
        "seed": 1,
        "kind": kind,
    }
    parameters |= {"recorded": [(b64encode(message.payload).decode(), message.content_topic) for message in recorded]}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "tests.siege.besiege"], **pipes)
    process.stdin.write(json.dumps(parameters | {"rate": rate, "seconds": seconds}) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    return process


async def ask_honestly(
    honest: Honest, requests: LoadRequests, besiegers: "subprocess.Popen[str] | None" = None
) -> Result:
    """Send the sealed requests. Besiegers begin when the first request is due."""
    if besiegers and besiegers.stdin:
        await asyncio.sleep((requests.due_ns[0] - time.time_ns()) / 1e9)
        besiegers.stdin.write("begin\n")
        besiegers.stdin.flush()
    return await honest.load.run(requests, honest.record, drain_seconds=DRAIN_SECONDS)


def report_of(besiegers: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for the end of the besiegers, and return their report."""
    shown, _ = besiegers.communicate(timeout=60)
    return dict(json.loads(shown.strip().splitlines()[-1]))
