"""The common part of the benchmarks of reading: a bridge's environment, and messages for it."""

import os
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

from coincurve import PrivateKey

from waku_bridge.codec import topics

SERVER_KEY = "02" * 32


def environment_for(folder: Path, database_url: str, redis_url: str, node_url: str) -> dict[str, str]:
    """Return the environment of a bridge with these servers."""
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "pushserver.settings",
        "DATA_DIR": str(folder / "data"),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "WAKU_NODES": node_url,
        "DEBUG": "0",
        "LOG_LEVEL": "ERROR",
        "SECRET_KEY": "only-for-the-benchmark-and-long-enough-for-it",
        "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "SERVER_PRIVATE_KEY": SERVER_KEY,
    }


def manage(*arguments: str, environment: Mapping[str, str]) -> None:
    """Run a management command in this environment."""
    subprocess.run([sys.executable, "manage.py", *arguments], env=environment, check=True)


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
