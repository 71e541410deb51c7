"""The common part of the benchmarks of reading: a bridge's environment, and messages for it."""

import os
import time
from base64 import b64encode
from pathlib import Path

from coincurve import PrivateKey

from bench.running import servers
from bench.running.servers import SERVER_KEY
from waku_bridge.codec import topics


def environment_for(folder: Path, database_url: str, redis_url: str, node_url: str) -> dict[str, str]:
    """Return the environment of a bridge with these servers."""
    return servers.environment(folder, database_url, REDIS_URL=redis_url, WAKU_NODES=node_url, LOG_LEVEL="ERROR")


def own_topic() -> str:
    """Return the content topic of the server's own key."""
    key = PrivateKey(bytes.fromhex(SERVER_KEY)).public_key.format()
    return topics.content_topic(topics.personal_name(key))


def raw_message(payload_bytes: int) -> dict[str, object]:
    """Return a message on our topic, in the form of a node."""
    return {
        "payload": b64encode(os.urandom(payload_bytes)).decode(),
        "contentTopic": own_topic(),
        "version": 1,
        "timestamp": time.time_ns(),
        "ephemeral": False,
    }
