"""Honest clients of a siege, and the start of the besiegers, which run in a process of their own."""

import asyncio
import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from embedded.load.waku import LoadRequests, ReplyReader, Result, build, evaluate, publish_on_time, pushes_recorded
from kit.http.connections import new_client
from tests.rig.server import PUBSUB_TOPIC, SERVER
from waku_bridge.client import Session
from waku_bridge.client.registration.registering import RegisteringClient
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

KEYS, HOSTILE_RATE, HONEST_RATE = 1000, 300, 50
DRAIN_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Honest:
    """Honest clients, which notify all phones but the first. The first is the victim: because of its many hostile
    notifications it would get fewer honest ones.
    """

    node: WakuNode
    session: Session
    phones: list[RegisteringClient]
    gorush_url: str

    def load(self, *, seconds: float, rate: float = HONEST_RATE) -> LoadRequests:
        """Seal the requests of the honest clients."""
        return build(self.phones[1:], SERVER.pub33, rate=rate, seconds=seconds, on_progress=nothing)


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


async def ask_honestly(honest: Honest, load: LoadRequests, besiegers: "subprocess.Popen[str] | None" = None) -> Result:
    """Send the sealed requests. Besiegers begin when the first request is due."""
    if besiegers and besiegers.stdin:
        await asyncio.sleep((load.due_ns[0] - time.time_ns()) / 1e9)
        besiegers.stdin.write("begin\n")
        besiegers.stdin.flush()
    reader = ReplyReader(honest.node, PUBSUB_TOPIC, load.senders)
    following = asyncio.create_task(reader.follow())
    sent = await publish_on_time(load.messages, load.due_ns, honest.session.publish, nothing)
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while reader.unanswered(load.message_ids):  # noqa: ASYNC110 - the store has to be polled
                await asyncio.sleep(0.5)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    await reader.read_again()
    async with new_client(timeout_seconds=60, max_answer_bytes=2**30) as client:
        found = await pushes_recorded(honest.gorush_url, client, since=0)
    return evaluate(load, sent, reader.replies(), found[0] if found else None)


def nothing() -> None:
    """Show no progress."""


def report_of(besiegers: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for the end of the besiegers, and return their report."""
    shown, _ = besiegers.communicate(timeout=60)
    return dict(json.loads(shown.strip().splitlines()[-1]))
