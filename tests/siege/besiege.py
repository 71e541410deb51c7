"""Besiegers of a siege, in a process of their own: `python -m tests.siege.besiege`. The parameters come as a line of
JSON. With a ``kind`` all messages are of that kind.

The process seals all messages before it prints "ready", so that besieging costs this machine little. After another line
of input it publishes them at a steady rate, independently of the server, and prints at the end what it sent, as JSON.
"""

import asyncio
import json
import sys
import time
from base64 import b64decode
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kit.http.connections import new_client
from tests.siege.payloads import Payloads, Phone
from tests.siege.spool import Spool
from waku_bridge.messages import WakuMessage
from waku_bridge.node import NodeError, WakuNode

AT_ONCE = 64
SHARD = "/waku/2/rs/16/32"


class Besiegers:
    """Publisher of sealed messages, which counts those that reached the node."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.sent: Counter[str] = Counter()
        self.bytes = 0

    async def besiege(self, node_url: str, *, rate: float, seconds: float) -> None:
        """Publish at ``rate`` messages per second for ``seconds``."""
        free = asyncio.Semaphore(AT_ONCE)
        async with new_client(timeout_seconds=30) as client, asyncio.TaskGroup() as group:
            node = WakuNode(node_url, client)
            began = time.monotonic()
            for number in range(round(rate * seconds)):
                await asyncio.sleep(max(began + number / rate - time.monotonic(), 0))
                if time.monotonic() > began + seconds:
                    break
                await free.acquire()
                group.create_task(self._publish(node, free))

    async def _publish(self, node: WakuNode, free: asyncio.Semaphore) -> None:
        kind, message = self._spool.next()
        with suppress(NodeError):
            await node.publish(SHARD, replace(message, timestamp_ns=time.time_ns()))
            self.sent[kind] += 1
            self.bytes += len(message.payload)
        free.release()


def main() -> None:
    parameters: dict[str, Any] = json.loads(sys.stdin.readline())
    victims = [Phone(bytes.fromhex(key_hash), *rest) for key_hash, *rest in parameters["victims"]]
    recorded = [WakuMessage(b64decode(payload), topic, 0) for payload, topic in parameters["recorded"]]
    payloads = Payloads(
        bytes.fromhex(parameters["server"]), victims, recorded, keys=parameters["keys"], seed=parameters["seed"]
    )
    with TemporaryDirectory(prefix="siege-") as folder:
        spool = Spool(Path(folder) / "messages")
        for _ in range(round(parameters["rate"] * parameters["seconds"])):
            spool.put(*payloads.next(parameters["kind"]))
        print("ready", flush=True)
        sys.stdin.readline()
        besiegers = Besiegers(spool)
        asyncio.run(besiegers.besiege(parameters["node"], rate=parameters["rate"], seconds=parameters["seconds"]))
    print(json.dumps({"sent": besiegers.sent, "bytes": besiegers.bytes}))


if __name__ == "__main__":
    main()
