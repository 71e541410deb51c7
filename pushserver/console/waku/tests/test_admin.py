"""Admin pages of envelopes, replies and watermarks, and operator actions on envelopes and dead letters."""

import base64
import json
import re
import time
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from kit.db.clock import day_of
from kit.processes.leader import WAKU_BRIDGE
from pushserver.console.waku import operations
from pushserver.console.waku.admin import newest_lost, without_payloads
from tests.rig import rows
from tests.rig.rows import make_envelope, make_reply, make_request, make_watermark
from tests.rig.statements import index_of
from waku_bridge import tasks
from waku_bridge.inbox import inbox
from waku_bridge.messages import MessageType
from waku_bridge.models import LOST_REPLIES, DeadLetter, InboundEnvelope, OutboundReply
from waku_bridge.query_topics import own_content_topics

pytestmark = pytest.mark.django_db
ENVELOPES = "/admin/waku_bridge/inboundenvelope/"
REPLIES = "/admin/waku_bridge/outboundreply/"
# Copies of the only row.
MANY = """
    INSERT INTO waku_bridge_endedreply
        (envelope_hash, part, state, attempt_count, repeat_count, node, message_type, pubsub_topic, content_topic,
         timestamp_ns, created_at, ended_on)
    SELECT sha256(number::text::bytea), 0, state, 1, 0, '', message_type, pubsub_topic, content_topic,
         timestamp_ns, created_at, ended_on
    FROM waku_bridge_endedreply, generate_series(1, 20000) AS number
"""


def make_many(state: str) -> None:
    make_reply(state=state)
    with connection.cursor() as cursor:
        cursor.execute(MANY)
        cursor.execute("ANALYZE waku_bridge_endedreply")


def today() -> str:
    return tasks.REPLIES.partition(day_of(timezone.now()))


def envelopes(client: Client, query: str) -> set[str]:
    return set(
        re.findall(rf'href="{ENVELOPES}([0-9a-f]+)/change/', client.get(f"{ENVELOPES}?{query}").content.decode())
    )


def test_the_watermark_of_a_former_node_is_marked_as_such(admin_client: Client, settings: LazySettings) -> None:
    settings.WAKU_STORE_NODES = ["http://own.test:8645"]
    rows = [make_watermark(node=f"http://{name}.test:8645") for name in ("own", "former")]
    html = admin_client.get("/admin/waku_bridge/storewatermark/").content.decode()
    found = dict(re.findall(r"(own|former)\.test:8645.*?field-is_still_read[^>]*>([^<]*)<", html, re.DOTALL))
    assert found == {"own": "yes", "former": "no: a former node, or a former topic"}
    pages = [f"/admin/waku_bridge/storewatermark/{row.pk}/change/" for row in rows]
    assert ["a former node" in admin_client.get(page).content.decode() for page in pages] == [False, True]


@pytest.mark.parametrize("digits", [64, 8, 13])
def test_finds_an_envelope_by_its_hash_or_the_id_of_its_request(admin_client: Client, digits: int) -> None:
    wanted = make_envelope()
    request = make_request(source_key=wanted.hash)
    make_envelope()
    for term in (wanted.hash.hex()[:digits], request.request_key.hex()):
        assert envelopes(admin_client, f"q={term}") == {wanted.hash.hex()}


def test_envelope_request_and_reply_link_to_each_other(admin_client: Client) -> None:
    envelope = make_envelope(message_type=MessageType.REQUEST, message_id=b"\xab" * 32, state="processed")
    request = make_request(source_key=envelope.hash, request_key=b"\xab" * 32)
    reply = make_reply(envelope_hash=envelope.hash)
    page = admin_client.get(f"{ENVELOPES}{envelope.hash.hex()}/change/").content.decode()
    replies = admin_client.get(f"{REPLIES}?q={envelope.hash.hex()}").content.decode()
    reply_page = admin_client.get(f"{REPLIES}{reply.pk}/change/").content.decode()
    request_page = admin_client.get(f"/admin/notifications/notificationrequest/{request.pk}/change/").content.decode()
    assert f"/admin/notifications/notificationrequest/?q={'ab' * 32}" in page
    assert f"{REPLIES}?q={envelope.hash.hex()}" in page
    assert f"{REPLIES}{reply.pk}/change/" in replies
    assert f"{ENVELOPES}{envelope.hash.hex()}/change/" in reply_page
    assert f"{ENVELOPES}{envelope.hash.hex()}/change/" in request_page


def test_the_page_of_a_watermark_shows_the_reading_bridge(admin_client: Client) -> None:
    row = make_watermark(node="http://node.test:8645")
    with connection.cursor() as cursor:
        cursor.execute("SET application_name = 'push-bridge host.test 4711'")
        cursor.execute("SELECT pg_advisory_lock(%s)", [WAKU_BRIDGE])
        try:
            page = admin_client.get(f"/admin/waku_bridge/storewatermark/{row.pk}/change/").content.decode()
        finally:
            cursor.execute("SELECT pg_advisory_unlock_all()")
            cursor.execute("RESET application_name")
    assert "host.test 4711" in page


def test_the_page_of_a_reply_shows_its_progress_and_not_its_contents(admin_client: Client) -> None:
    reply = make_reply(
        state=OutboundReply.State.UNCONFIRMED,
        repeat_count=4,
        node="http://user:password@node.test:8645",
        message_hash=b"\xcd" * 32,
        payload=b"\x01\x02secret",
    )

    listed = admin_client.get(f"{REPLIES}?state__exact=unconfirmed").content.decode()
    page = admin_client.get(f"{REPLIES}{reply.pk}/change/").content.decode()

    assert f"{REPLIES}{reply.pk}/change/" in listed
    assert f"{REPLIES}{reply.pk}/change/" not in admin_client.get(f"{REPLIES}?state__exact=confirmed").content.decode()
    assert "cd" * 32 in page
    for html in (listed, page):
        assert "node.test:8645" in html
        assert "password@" not in html
        assert "secret" not in html


def test_rare_states_of_replies_are_found_by_an_index() -> None:
    make_many("confirmed")  # as on any server whose stores answer
    unconfirmed = OutboundReply.objects.filter(state="unconfirmed").order_by("-pk")
    assert index_of(today(), "reply_given_up") in unconfirmed[:100].explain()


def test_lost_replies_are_found_by_an_index_where_no_store_answers() -> None:
    make_many("unconfirmed")
    lately = OutboundReply.objects.filter(LOST_REPLIES, created_at__gte=timezone.now() - timedelta(hours=1))
    for lost in (lately[:1000], newest_lost(), newest_lost(state="abandoned")):
        assert index_of(today(), "reply_lost") in lost.explain()


def test_lists_of_lost_replies_have_the_newest_of_them(admin_client: Client) -> None:
    abandoned = make_reply(state="abandoned")
    repeated = make_reply(state="unconfirmed", repeat_count=1)
    unchecked = make_reply(state="unconfirmed")

    def listed(query: str) -> list[bool]:
        page = admin_client.get(f"{REPLIES}?{query}").content.decode()
        return [f"{REPLIES}{reply.pk}/change/" in page for reply in (abandoned, repeated, unchecked)]

    assert listed("lost=yes") == [True, True, False]
    assert listed("state__exact=abandoned") == [True, False, False]


@pytest.mark.parametrize("state", ["pending", "published"])
def test_replies_that_are_open_are_read_from_the_work_table(admin_client: Client, state: str) -> None:
    reply = make_reply(state=state)
    with CaptureQueriesContext(connection) as queries:
        page = admin_client.get(f"{REPLIES}?state__exact={state}").content.decode()
    assert f"{REPLIES}{reply.pk}/change/" in page
    listed = [query["sql"] for query in queries if f"'{state}'" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {listed[-1]}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    # A "Bitmap Index Scan on" names an index. Whether there is one depends on the statistics of a small table.
    read = set(re.findall(r"(?<!Index Scan) on (waku_bridge_\w*reply\w*)", plan))
    assert read - {"waku_bridge_endedreply_default"} == {"waku_bridge_openreply"}


# Operator actions on failed envelopes and dead letters ----------------------------------------------------------------
State = InboundEnvelope.State
LONG_AGO = timedelta(minutes=5)


def make_letter(*, payload: bytes = b"x" * 100, **fields):
    """Make a dead letter that can be read by now, unless ``fields`` change that."""
    raw = {
        "payload": base64.b64encode(payload).decode(),
        "contentTopic": min(own_content_topics()),
        "version": 1,
        "timestamp": time.time_ns(),
    } | fields.pop("raw_fields", {})
    text = json.dumps(raw)
    return rows.make_dead_letter(**{"raw": text, "size_bytes": len(text)} | fields)


def twice(operation, *rows):
    return [operation().run(rows, by="ann").is_change for _ in "12"]


def test_a_failed_envelope_is_processed_again_once():
    at = timezone.now() - LONG_AGO
    failed = rows.make_envelope(state=State.FAILED, reason="KeyError", at=at)
    done = rows.make_envelope(state=State.PROCESSED, at=at)
    assert twice(operations.ProcessAgain, failed, done) == [True, False]
    assert [envelope.hash for envelope in inbox.take(10).items] == [failed.hash]


def test_a_dropped_envelope_keeps_its_hash_only_and_a_dropped_letter_nothing():
    assert twice(operations.DropEnvelopes, rows.make_envelope(state=State.FAILED)) == [True, False]
    row = InboundEnvelope.objects.get()
    assert (row.state, row.reason, row.payload) == (State.DROPPED, "operator", None)
    assert twice(operations.DropLetters, make_letter()) == [True, False]


@pytest.mark.parametrize("is_query", [False, True])
def test_a_letter_that_can_be_read_by_now_goes_into_the_inbox(is_query):
    topic = f"/waku/1/0x{rows.make_topic_key().topic:08x}/rfc26"
    letter = make_letter(raw_fields={"contentTopic": topic} if is_query else {})
    assert twice(operations.ReadLettersAgain, letter) == [True, False]
    assert (DeadLetter.objects.count(), InboundEnvelope.objects.get().state) == (0, State.RECEIVED)


@pytest.mark.parametrize(
    "fields",
    [
        {"raw": "{", "size_bytes": 1},
        {"raw": "{}", "size_bytes": 9000},
        {"raw": "[[[", "size_bytes": 3},
        {"raw": '"text"', "size_bytes": 6},
        {"raw_fields": {"contentTopic": "/waku/1/0x00000000/rfc26"}},
        {"raw_fields": {"contentTopic": 7}},
        {"raw_fields": {"version": 0}},
        {"raw_fields": {"timestamp": 1}},
        {"payload": b""},
    ],
)
def test_a_letter_that_still_cannot_be_read_stays(fields):
    letter = make_letter(**fields)
    assert operations.read_again([letter.digest], now=timezone.now()) == (0, 1)
    assert (DeadLetter.objects.count(), InboundEnvelope.objects.count()) == (1, 0)


LONG = "QUJD" * 40


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ({"contentTopic": "/waku/1/x", "payload": LONG}, '{"contentTopic": "/waku/1/x", "payload": (162 characters)}'),
        ({"payload": 'no "base64" \\'}, '{"payload": (18 characters)}'),
        ({"payload": [1, 2, 255]}, '{"payload": (11 characters)}'),
        ({"payload": None, "version": 2}, '{"payload": null, "version": 2}'),
        ({"message": {"data": LONG}}, '{"message": {"data": "(160 characters)"}}'),
        ({"messageHash": f"0x{'ab' * 32}"}, f'{{"messageHash": "0x{"ab" * 32}"}}'),
        ('{"payload": "not base64, and cut of', '{"payload": (23 characters)'),
    ],
)
def test_the_console_shows_letters_without_payloads(raw: object, shown: str) -> None:
    assert without_payloads(raw if isinstance(raw, str) else json.dumps(raw)) == shown
