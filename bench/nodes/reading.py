"""The common part of the benchmarks of reading: the servers around a bridge, and messages for it."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from coincurve import PrivateKey

from bench.running import servers
from bench.running.servers import SERVER_KEY, TOPIC
from waku_bridge.codec import topics
from waku_bridge.messages import WakuMessage
from waku_bridge.node import to_json

BRIDGE = (sys.executable, "manage.py", "run_waku_bridge")


@contextmanager
def surroundings(*node_options: str, **settings: str) -> Iterator[tuple[dict[str, str], psutil.Process]]:
    """Run PostgreSQL with these settings, Valkey, and a node with these options.

    The value is the environment of a bridge, and the first process of PostgreSQL.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        servers.postgres(Path(folder), **settings) as (database_url, database),
        servers.valkey(Path(folder)) as redis_url,
        servers.node("--shard", TOPIC, *node_options) as node_url,
    ):
        urls = {"REDIS_URL": redis_url, "WAKU_NODES": node_url}
        environment = servers.environment(Path(folder), database_url, LOG_LEVEL="ERROR", **urls)
        servers.manage("migrate", "--verbosity=0", environment=environment)
        yield environment, database


def own_topic() -> str:
    """Return the content topic of the server's own key."""
    key = PrivateKey(bytes.fromhex(SERVER_KEY)).public_key.format()
    return topics.content_topic(topics.personal_name(key))


def raw_message(payload_bytes: int, content_topic: str) -> dict[str, Any]:
    """Return a message of this moment, in the form of a node."""
    return to_json(WakuMessage(os.urandom(payload_bytes), content_topic, time.time_ns()))
