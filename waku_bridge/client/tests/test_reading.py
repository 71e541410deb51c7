"""The store reader of a client: it returns every message once, also those that arrive late."""

import asyncio

import pytest

from waku_bridge.client.reading import MANY_TOPICS, MAX_TOPICS, OVERLAP_NS, StoreReader
from waku_bridge.codec.tests.examples import NOW_NS
from waku_bridge.messages import WakuMessage
from waku_bridge.node import to_json

TOPIC = "/waku/1/0x00000001/rfc26"


class Store:
    """A node's store in memory, which remembers its queries."""

    def __init__(self) -> None:
        self.messages: list[WakuMessage] = []
        self.asked: list[dict] = []

    async def stored(self, **params: object) -> list[object]:
        self.asked.append(params)
        wanted = str(params.get("contentTopics", "")).split(",")
        found = [
            to_json(message)
            for message in sorted(self.messages, key=lambda message: message.timestamp_ns)
            if message.timestamp_ns >= params.get("startTime", 0)
            and ("contentTopics" not in params or message.content_topic in wanted)
        ]
        return found[: params["pageSize"]] if params["ascending"] == "true" else found[::-1][: params["pageSize"]]


@pytest.mark.requirement("W5")
def test_each_message_is_returned_once() -> None:
    _, reader = _store(*range(250))
    assert len(_new(reader)) == 250
    assert _new(reader) == []


@pytest.mark.requirement("W5")
def test_a_message_that_is_archived_after_a_later_one_is_returned() -> None:
    store, reader = _store(30 * 10**9)
    _new(reader, after_ns=30 * 10**9)
    store.messages.append(_message(10 * 10**9))
    assert [message.timestamp_ns - NOW_NS for message in _new(reader, after_ns=40 * 10**9)] == [10 * 10**9]


def test_messages_older_than_the_overlap_are_neither_read_again_nor_remembered() -> None:
    store, reader = _store(0)
    _new(reader, after_ns=0)
    _new(reader, after_ns=2 * OVERLAP_NS)
    _new(reader, after_ns=2 * OVERLAP_NS)
    assert store.asked[-1]["startTime"] == NOW_NS + OVERLAP_NS
    assert reader._seen == {}


def test_many_topics_are_queried_in_groups_and_very_many_by_the_whole_shard() -> None:
    store, reader = _store()
    _new(reader, topics=[str(number) for number in range(MAX_TOPICS + 1)])
    assert [len(asked["contentTopics"].split(",")) for asked in store.asked] == [MAX_TOPICS, 1]
    store.asked.clear()
    _new(reader, topics=[str(number) for number in range(MANY_TOPICS + 1)])
    assert ["contentTopics" in asked for asked in store.asked] == [False]


def test_only_messages_on_our_topics_are_returned_from_a_whole_shard() -> None:
    store, reader = _store(1)
    store.messages.append(WakuMessage(b"x", "another", NOW_NS))
    found = _new(reader, topics=[TOPIC, *(str(number) for number in range(MANY_TOPICS))])
    assert [message.content_topic for message in found] == [TOPIC]


def test_history_is_the_latest_page_oldest_first() -> None:
    _, reader = _store(*range(150))
    found = asyncio.run(reader.history(TOPIC))
    assert [message.timestamp_ns - NOW_NS for message in found] == list(range(50, 150))


def _store(*times_ns: int) -> tuple[Store, StoreReader]:
    store = Store()
    store.messages = [_message(after_ns) for after_ns in times_ns]
    return store, StoreReader(store, "shard", since_ns=NOW_NS)


def _message(after_ns: int) -> WakuMessage:
    return WakuMessage(after_ns.to_bytes(8), TOPIC, NOW_NS + after_ns)


def _new(reader: StoreReader, *, topics: list[str] | None = None, after_ns: int = 0) -> list[WakuMessage]:
    return asyncio.run(reader.new(topics or [TOPIC], now_ns=NOW_NS + after_ns))
