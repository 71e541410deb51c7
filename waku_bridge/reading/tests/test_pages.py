"""Selection of the messages in a page that are for us, and the faults of rejected ones."""

import time
from dataclasses import replace

import pytest

from tests.rig.conversation import CLIENT, PUBSUB_TOPIC
from waku_bridge.codec import topics
from waku_bridge.codec.limits import MAX_ENVELOPE_BYTES
from waku_bridge.codec.topics import message_hash
from waku_bridge.identity import own_content_topics, server_identity
from waku_bridge.messages import WakuMessage
from waku_bridge.node import to_json
from waku_bridge.reading.pages import Topics, select

PERSONAL = topics.content_topic(topics.personal_name(server_identity().pub33))
PARTITIONED = topics.content_topic(topics.partitioned_name(server_identity().pub33))
QUERIED = topics.content_topic(topics.query_name(CLIENT.key_hash))
FOREIGN = "/waku/1/0xffffffff/rfc26"
SECOND, DAY = 10**9, 86_400 * 10**9
NOW_NS = time.time_ns()
MESSAGE = WakuMessage(b"payload", PERSONAL, NOW_NS)
TOPICS = Topics(own_content_topics(), {QUERIED})  # any container: QueryTopics has tests of its own


def selected(*page):
    return select(page, PUBSUB_TOPIC, TOPICS, oldest_ns=NOW_NS - 3 * DAY, now_ns=NOW_NS)


def raw(**fields):
    return to_json(replace(MESSAGE, **fields))


def test_the_server_has_two_topics_of_its_own():
    assert own_content_topics() == {PERSONAL, PARTITIONED}


@pytest.mark.parametrize("content_topic", [PERSONAL, PARTITIONED, QUERIED])
def test_a_message_on_a_topic_of_ours_is_selected_with_its_hash(content_topic):
    message = replace(MESSAGE, content_topic=content_topic)
    [envelope] = selected(to_json(message)).envelopes
    assert (envelope.message, envelope.hash) == (message, message_hash(PUBSUB_TOPIC, message))


def test_messages_on_other_topics_are_not_decoded():
    found = selected({"contentTopic": FOREIGN, "payload": "no base64"}, raw(content_topic=FOREIGN))
    assert (found.envelopes, found.rejected) == ([], [])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, "malformed"),
        ("text", "malformed"),
        ({}, "malformed"),
        ({"contentTopic": 5}, "malformed"),
        ({"contentTopic": PERSONAL, "payload": ["x"]}, "malformed"),
        (raw() | {"payload": "no base64!"}, "malformed"),
        (raw() | {"payload": None}, "wrong_size"),
        (raw() | {"timestamp": 2**64}, "malformed"),
        (raw() | {"timestamp": "soon"}, "malformed"),
        (raw(version=0), "wrong_version"),
        (raw(version=2), "wrong_version"),
        (raw(payload=b""), "wrong_size"),
        (raw(payload=bytes(MAX_ENVELOPE_BYTES + 1)), "wrong_size"),
        (raw(timestamp_ns=0), "wrong_time"),
        (raw(timestamp_ns=-(2**63)), "malformed"),
        (raw(timestamp_ns=1 - 2**63), "wrong_time"),
        (raw(timestamp_ns=NOW_NS - 3 * DAY - SECOND), "wrong_time"),
        (raw(timestamp_ns=NOW_NS + DAY + SECOND), "wrong_time"),
        (raw(timestamp_ns=2**63 - 1), "wrong_time"),
    ],
)
def test_a_broken_message_does_not_stop_the_rest_of_its_page(broken, reason):
    found = selected(raw(timestamp_ns=NOW_NS - 1), broken, raw(timestamp_ns=NOW_NS - 2))
    assert [envelope.message.timestamp_ns for envelope in found.envelopes] == [NOW_NS - 1, NOW_NS - 2]
    [rejected] = found.rejected
    assert (rejected.raw, rejected.reason) == (broken, reason)


@pytest.mark.parametrize(
    "odd", [{"timestamp_ns": NOW_NS - 3 * DAY}, {"timestamp_ns": NOW_NS + DAY}, {"payload": bytes(MAX_ENVELOPE_BYTES)}]
)
def test_odd_but_valid_messages_are_selected(odd):
    assert len(selected(raw(**odd)).envelopes) == 1


def test_each_message_is_checked_also_when_its_hash_comes_twice():
    """Version is no part of the hash, so a copy with another version must not hide the real message."""
    found = selected(raw(version=0), raw(version=1), raw(ephemeral=True))
    assert len({envelope.hash for envelope in found.envelopes}) == 1
    assert len(found.envelopes) == 2
    assert [rejected.reason for rejected in found.rejected] == ["wrong_version"]


def test_a_rejected_message_names_its_topic_only_if_it_is_ours():
    found = selected(raw(version=0), {"contentTopic": 5})
    assert [rejected.content_topic for rejected in found.rejected] == [PERSONAL, ""]
