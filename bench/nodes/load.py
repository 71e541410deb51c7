"""Benchmark of the load generator: one process sends more than its target rate to a node, and reads the answers.

The requests are built and dated in advance, as in `manage.py load`, which also opens the answers at the end. No server
answers here. A stand-in in a process of its own publishes one message of an answer's size for each request, so that
reading them is measured, too. ``per_second_on_one_core`` is the rate that the CPU time permits. The rate that was
reached (``sent_per_second``, and the delay) needs a machine with a free core. Run alone with ``python -m bench load``.
"""

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench.running import servers
from bench.running.servers import TOPIC
from embedded.load.waku import ReplyReader, Sent, build, publish_on_time
from embedded.load.waku.devices import new_phone
from kit.figures import distribution
from kit.http.connections import new_client
from waku_bridge.client import Session, new_identity
from waku_bridge.codec import topics
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

RATE = 600.0
SECONDS = 10.0
TARGET = 500.0
ANSWER_BYTES = 625
TIMEOUT_SECONDS = 30.0
ANSWERING = "--answering"


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with servers.node("--shard", TOPIC, "--relay-cache-capacity", "100000") as url:
        sent, replies, build_ms = asyncio.run(_measure(url))
    lags = distribution(sent.lags_ms)
    taken = max(1, len(sent.publish_ms))
    # The span begins at the due moment of the first request, and the process waits for that moment, too.
    span_seconds = SECONDS + sent.lags_ms[-1] / 1000
    result: dict[str, object] = {
        "rate": RATE,
        "sent_per_second": round(taken / span_seconds, 1),
        "cpu_ms_per_request": round(sent.cpu_seconds * 1000 / taken, 3),
        "share_of_core": round(sent.cpu_seconds / span_seconds, 3),
        "per_second_on_one_core": round(taken / sent.cpu_seconds, 1),
        "build_cpu_ms_per_request": build_ms,
        "refused": sum(sent.refused.values()),
        "answers_heard": replies,
        "lag_ms": asdict(lags) if lags else None,
    }
    _print(result)
    return result


async def _measure(url: str) -> tuple[Sent, int, float]:
    server = new_identity(os.urandom).pub33
    phones = [new_phone(server) for _ in range(50)]
    load_requests = build(phones, server, rate=RATE, seconds=SECONDS, on_progress=lambda: None)
    topic = topics.content_topic(topics.partitioned_name(load_requests.senders[0].pub33))
    command = [sys.executable, "-m", "bench.nodes.load", ANSWERING, url, topic, str(load_requests.due_ns[0])]
    with servers.process(command):
        async with new_client(timeout_seconds=TIMEOUT_SECONDS) as client:
            node = WakuNode(url, client)
            session, reader = Session(node, pubsub_topic=TOPIC), ReplyReader(node, TOPIC, load_requests.senders)
            following = asyncio.create_task(reader.follow())
            sent = await publish_on_time(load_requests.messages, load_requests.due_ns, session.publish, lambda: None)
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
    return sent, reader.count, round(load_requests.build_seconds * 1000 / len(load_requests.messages), 3)


async def _answer(url: str, content_topic: str, begin_ns: int) -> None:
    """Publish answers at the same rate, in place of the server. No sender can open them."""
    due_ns = [begin_ns + round(number * 1e9 / RATE) for number in range(round(RATE * SECONDS))]
    answers = [WakuMessage(os.urandom(ANSWER_BYTES), content_topic, at_ns) for at_ns in due_ns]
    async with new_client(timeout_seconds=TIMEOUT_SECONDS) as client:
        session = Session(WakuNode(url, client), pubsub_topic=TOPIC)
        await publish_on_time(answers, due_ns, session.publish, lambda: None)


def _print(result: dict[str, object]) -> None:
    table = Table(title=f"Load generator, {SECONDS:g} s")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in result.items():
        if name != "lag_ms":
            table.add_row(name, f"{value:g}" if isinstance(value, float | int) else str(value))
    lags = result["lag_ms"]
    if isinstance(lags, dict):
        table.add_row(
            "delay of sending, ms: p50, p99, max", ", ".join(f"{lags[name]:.1f}" for name in ("p50", "p99", "max"))
        )
    Console().print(table, f"Target: {TARGET:g} per second on one core")


if __name__ == "__main__":
    if sys.argv[1:2] == [ANSWERING]:
        asyncio.run(_answer(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        run()
