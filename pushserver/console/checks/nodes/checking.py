"""The shell of the config check: it queries every node, judges the answers, saves the findings, and logs changes.

The limit of the message size can only be found by sending a message. A server must not send useless messages into a
public network, so only an operator's command does this (`manage.py check_node --size`).
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
import orjson
from django.conf import settings
from django.utils import timezone

from kit.display import host_of
from kit.http import ask, new_client, submit
from pushserver.console.checks.nodes import NOTICES
from pushserver.console.checks.nodes.readings import (
    Reading,
    read_health,
    read_info,
    read_joined,
    read_mesh,
    read_version,
)
from pushserver.console.checks.nodes.rules import Expectations, complaints, shards_of
from pushserver.console.checks.peers import Complaint
from pushserver.console.waku.metrics import (
    NODE_CLOCK_SKEW_SECONDS,
    NODE_HEALTHY,
    NODE_MESH_PEERS,
    NODE_VERSION_TIMESTAMP_SECONDS,
)
from waku_bridge.dialect import MessageTooLarge, read_skew, refusal, to_json
from waku_bridge.messages import WakuMessage
from waku_bridge.reading.live import LONGEST_PAGE
from waku_bridge.reading.pages import LongestPage

# The timeout is short because on a small machine the periodic tasks wait for this check.
TIMEOUT_SECONDS = 2.0
MAX_MESSAGE_BYTES = 1024 * 1024  # the limit of Status and its fleet
# The difference is a reserve for topics, base64 and other bytes that a node may count.
PROBE_BYTES = MAX_MESSAGE_BYTES - 4096
# The last possible shard, which no node serves.
PROBE_SHARD = 1023
PROBE_CONTENT_TOPIC = "/push-server/1/size-probe/proto"
HTTP_OK = 200
SUBSCRIPTIONS = "/relay/v1/subscriptions"
HEADERS = {"Content-Type": "application/json"}


def check_all(*, now: datetime) -> None:
    """Check each node of the settings once. It is safe to run twice, and no answer of a node makes it fail."""
    urls = list(dict.fromkeys([*settings.WAKU_NODES, *settings.WAKU_STORE_NODES]))
    before = NOTICES.read(urls)
    readings = submit(_read_all(urls)).result()
    for url, reading in zip(urls, readings, strict=True):
        full = replace(reading, longest_page=LONGEST_PAGE.read(url) or LongestPage())
        _measure(host_of(url), full)
        NOTICES.note(url, complaints(full, _expectations(url)), known=before.get(url), now=now, memory=memory_of(full))


def check(url: str, *, with_size: bool) -> tuple[Reading, list[Complaint]]:
    """Check one node and save nothing. ``with_size`` publishes a useless message of 1 MiB."""
    [reading] = submit(_read_all([url])).result()
    if with_size and reading.is_reachable:
        reading = replace(reading, size_limit_bytes=submit(_probe_size(url)).result())
    return reading, complaints(reading, _expectations(url))


def _measure(host: str, reading: Reading) -> None:
    if reading.health or not reading.is_reachable:
        NODE_HEALTHY.labels(host).set(reading.health is not None and reading.health.node == "READY")
    if reading.version:
        NODE_VERSION_TIMESTAMP_SECONDS.labels(host, str(reading.version)).set_to_current_time()
    if reading.skew_seconds is not None:
        NODE_CLOCK_SKEW_SECONDS.labels(host).set(reading.skew_seconds)
    if reading.mesh_peers is not None:
        NODE_MESH_PEERS.labels(host).set(reading.mesh_peers)


def _expectations(url: str) -> Expectations:
    return Expectations(
        pubsub_topics=tuple(settings.WAKU_PUBSUB_TOPICS),
        max_message_bytes=PROBE_BYTES,
        is_read=url in settings.WAKU_NODES,
        is_store=url in settings.WAKU_STORE_NODES,
    )


def memory_of(reading: Reading) -> dict[str, Any]:
    """Return the facts about a node that the console shows."""
    return {
        "version": str(reading.version) if reading.version else "",
        "health": reading.health.node if reading.health else "",
        "shards": str(reading.shards) if reading.shards else "",
        "longest_page": reading.longest_page.size,
    }


async def _read_all(urls: Sequence[str]) -> list[Reading]:
    async with new_client() as client:
        return await asyncio.gather(*(_read(client, url) for url in urls))


async def _read(client: httpx.AsyncClient, url: str) -> Reading:
    asked_at = timezone.now()
    health = await _ask(client, "GET", f"{url}/health")
    answered_at = timezone.now()
    info, version, mesh = await asyncio.gather(
        _ask_either(client, url, "/debug/v1/info", "/info"),
        _ask_either(client, url, "/debug/v1/version", "/version"),
        _ask(client, "GET", f"{url}/admin/v1/peers/mesh/on/{settings.WAKU_PUBSUB_TOPICS[0].rpartition('/')[2]}"),
    )
    shards = shards_of(settings.WAKU_PUBSUB_TOPICS)
    asked = [*shards, *_others(shards)]
    joined = await asyncio.gather(*(_is_joined(client, url, *shard) for shard in asked))
    answers = (info, health, version)
    return Reading(
        is_reachable=any(answer is not None for answer in answers),
        health=read_health(_content(health)),
        version=read_version(_content(version)),
        shards=read_info(_content(info)),
        joined={shard: is_joined for shard, is_joined in zip(asked, joined, strict=True) if is_joined is not None},
        skew_seconds=_skew(health, asked_at, answered_at),
        mesh_peers=read_mesh(_content(mesh)),
    )


def _skew(answer: httpx.Response | None, asked_at: datetime, answered_at: datetime) -> float | None:
    date = answer.headers.get("Date") if answer else None
    return read_skew(date, asked_at=asked_at, answered_at=answered_at) if date else None


def _content(answer: httpx.Response | None) -> bytes:
    return answer.content if answer and answer.status_code == HTTP_OK else b""


def _others(shards: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the lowest shard that we do not read. A node that follows all shards of its cluster follows this one."""
    return [(cluster, min(set(range(len(shards) + 1)) - {number for _, number in shards})) for cluster, _ in shards[:1]]


async def _is_joined(client: httpx.AsyncClient, url: str, cluster: int, shard: int) -> bool | None:
    """Return whether the node relays a shard. The request has no body, so that nothing can be published."""
    answer = await _ask(client, "POST", url + _messages(f"/waku/2/rs/{cluster}/{shard}"))
    return read_joined(answer.status_code, answer.content) if answer else None


async def _probe_size(url: str) -> int | None:
    """Return the size limit in the node's refusal of a message, 0 when it takes the message, or None without either.

    The message has the largest size that Status sends. It is ephemeral, and on a shard that no node serves, which the
    node joins for it: a node that takes the message finds no peer to send it to. Lightpush would measure another node.
    """
    pubsub_topic = f"{settings.WAKU_PUBSUB_TOPICS[0].rpartition('/')[0]}/{PROBE_SHARD}"
    message = WakuMessage(
        os.urandom(PROBE_BYTES), PROBE_CONTENT_TOPIC, int(timezone.now().timestamp() * 10**9), ephemeral=True
    )
    topics = orjson.dumps([pubsub_topic])
    async with new_client() as client:
        await _ask(client, "POST", url + SUBSCRIPTIONS, topics)
        try:
            answer = await _ask(client, "POST", url + _messages(pubsub_topic), orjson.dumps(to_json(message)))
        finally:
            await _ask(client, "DELETE", url + SUBSCRIPTIONS, topics)
    if answer is None:
        return None
    if answer.status_code == HTTP_OK:
        return 0
    error = refusal(answer.status_code, answer.content[:1000].decode(errors="replace"), where=url)
    return (error.limit_bytes or None) if isinstance(error, MessageTooLarge) else None


def _messages(pubsub_topic: str) -> str:
    return f"/relay/v1/messages/{quote(pubsub_topic, safe='')}"


async def _ask_either(client: httpx.AsyncClient, url: str, path: str, newer_path: str) -> httpx.Response | None:
    """Request the older path first: every version so far has it, and go-waku no other. nwaku calls it deprecated."""
    answer = await _ask(client, "GET", url + path)
    if answer is None or answer.status_code == HTTP_OK:
        return answer
    return await _ask(client, "GET", url + newer_path)


async def _ask(client: httpx.AsyncClient, method: str, url: str, body: bytes | None = None) -> httpx.Response | None:
    """Return the answer, or None when there is none within `TIMEOUT_SECONDS`."""
    try:
        return await ask(client, method, url, seconds=TIMEOUT_SECONDS, content=body, headers=HEADERS)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return None
