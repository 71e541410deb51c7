"""The besiegers, in a process of their own: `python -m tests.siege.besiege`, told what to do in a line of JSON.

They publish at a steady rate whatever the server does, and say at the end how much of what they sent, as JSON.
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Any

from kit.http.connections import new_client
from tests.siege.arsenal import Arsenal, Phone
from waku_bridge.node import NodeError, WakuNode

AT_ONCE = 64
SHARD = "/waku/2/rs/16/32"


async def besiege(told: dict[str, Any]) -> Arsenal:
    victims = [Phone(bytes.fromhex(key_hash), *rest) for key_hash, *rest in told["victims"]]
    arsenal = Arsenal(bytes.fromhex(told["server"]), victims, keys=told["keys"], seed=told["seed"])
    free = asyncio.Semaphore(AT_ONCE)
    print("ready", flush=True)
    async with new_client(timeout_seconds=30) as client, asyncio.TaskGroup() as group:
        node = WakuNode(told["node"], client)
        began = time.monotonic()
        for number in range(round(told["rate"] * told["seconds"])):
            await asyncio.sleep(max(began + number / told["rate"] - time.monotonic(), 0))
            if time.monotonic() > began + told["seconds"]:
                break
            await free.acquire()
            group.create_task(_publish(node, arsenal, free))
    return arsenal


async def _publish(node: WakuNode, arsenal: Arsenal, free: asyncio.Semaphore) -> None:
    with suppress(NodeError):
        await node.publish(SHARD, arsenal.next())
    free.release()


def main() -> None:
    arsenal = asyncio.run(besiege(json.loads(sys.stdin.readline())))
    print(json.dumps({"sent": arsenal.sent, "bytes": arsenal.bytes}))


if __name__ == "__main__":
    main()
