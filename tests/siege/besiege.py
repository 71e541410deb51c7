"""Besiegers over Waku, in a process of their own: `python -m tests.siege.besiege`, with parameters as a line of JSON.

The process seals all messages before it prints "ready", so that besieging costs this machine little. After another line
of input it publishes them at a steady rate, independently of the server, and prints at the end what it sent, as JSON.
"""

import asyncio
import json
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kit.http import Connections
from tests.siege.payloads import Payloads, Phone
from waku_bridge.dialect import NodeError
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

AT_ONCE = 64
SHARD = "/waku/2/rs/16/32"


class Besiegers:
    """The process, as a test sees it. It is ready when this object is made."""

    def __init__(
        self, node_url: str, server: bytes, victims: Sequence[Phone], recorded: Sequence[WakuMessage], **others: object
    ) -> None:
        """``recorded`` are messages of honest clients. The others are ``keys``, ``rate``, ``seconds`` and ``kind``, the
        part of a name to which all messages are limited.
        """
        parameters = {"node": node_url, "server": server.hex(), "seed": 1, **others}
        parameters["victims"] = [(phone.key_hash.hex(), *phone[1:]) for phone in victims]
        parameters["recorded"] = [(b64encode(each.payload).decode(), each.content_topic) for each in recorded]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, "-m", "tests.siege.besiege"], **pipes)
        self._say(json.dumps(parameters))
        assert self._process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        self._say("begin")

    def report(self) -> tuple[Counter[str], int]:
        """Wait for the end, and return the messages by kind, and their bytes."""
        shown, _ = self._process.communicate(timeout=60)
        report = json.loads(shown.strip().splitlines()[-1])
        return Counter(report["sent"]), report["bytes"]

    def _say(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


async def publish(
    node_url: str, sealed: Sequence[tuple[str, WakuMessage]], *, rate: float, seconds: float
) -> tuple[Counter[str], int]:
    """Publish messages at ``rate`` per second for ``seconds``. Return those that reached the node, and their bytes."""
    sent, size_bytes, free = Counter[str](), 0, asyncio.Semaphore(AT_ONCE)

    async def publish_one(node: WakuNode, kind: str, message: WakuMessage) -> None:
        nonlocal size_bytes
        with suppress(NodeError):
            await node.publish(SHARD, replace(message, timestamp_ns=time.time_ns()))
            sent[kind] += 1
            size_bytes += len(message.payload)
        free.release()

    async with Connections(silent_seconds=30) as client, asyncio.TaskGroup() as group:
        node, began = WakuNode(node_url, client), time.monotonic()
        for number, (kind, message) in enumerate(sealed):
            await asyncio.sleep(max(began + number / rate - time.monotonic(), 0))
            if time.monotonic() > began + seconds:
                break
            await free.acquire()
            group.create_task(publish_one(node, kind, message))
    return sent, size_bytes


def main() -> None:
    parameters: dict[str, Any] = json.loads(sys.stdin.readline())
    victims = [Phone(bytes.fromhex(key_hash), *rest) for key_hash, *rest in parameters["victims"]]
    recorded = [WakuMessage(b64decode(payload), topic, 0) for payload, topic in parameters["recorded"]]
    payloads = Payloads(
        bytes.fromhex(parameters["server"]), victims, recorded, keys=parameters["keys"], seed=parameters["seed"]
    )
    rate, seconds = parameters["rate"], parameters["seconds"]
    sealed = [payloads.next(parameters["kind"]) for _ in range(round(rate * seconds))]
    print("ready", flush=True)
    sys.stdin.readline()
    sent, size_bytes = asyncio.run(publish(parameters["node"], sealed, rate=rate, seconds=seconds))
    print(json.dumps({"sent": sent, "bytes": size_bytes}))


if __name__ == "__main__":
    main()
