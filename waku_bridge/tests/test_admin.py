import re
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.utils import timezone

from kit.db.partitions import day_of
from kit.processes.leader import WAKU_BRIDGE
from tests.rig.rows import make_envelope, make_reply, make_request, make_watermark, make_window
from tests.rig.statements import index_of
from waku_bridge.messages import MessageType
from waku_bridge.models import LOST_REPLIES, OutboundReply
from waku_bridge.removal import retention

pytestmark = pytest.mark.django_db
ENVELOPES = "/admin/waku_bridge/inboundenvelope/"
REPLIES = "/admin/waku_bridge/outboundreply/"
# Copies of the only row.
MANY = """
    INSERT INTO waku_bridge_outboundreply
        (envelope_hash, part, state, attempt_count, repeat_count, node, message_type, pubsub_topic, content_topic,
         timestamp_ns, next_attempt_at, created_at, ended_on)
    SELECT sha256(number::text::bytea), 0, state, 1, 0, '', message_type, pubsub_topic, content_topic,
         timestamp_ns, next_attempt_at, created_at, ended_on
    FROM waku_bridge_outboundreply, generate_series(1, 20000) AS number
"""


def make_many(state: str) -> None:
    make_reply(state=state)
    with connection.cursor() as cursor:
        cursor.execute(MANY)
        cursor.execute("ANALYZE waku_bridge_outboundreply")


def today() -> str:
    return retention.REPLIES.partition(day_of(timezone.now()))


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


def test_the_page_of_a_watermark_shows_the_reading_bridge_and_the_pending_windows(admin_client: Client) -> None:
    now = timezone.now()
    row = make_watermark(node="http://node.test:8645")
    make_window(row, start_at=now - timedelta(hours=2), end_at=now - timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute("SET application_name = 'push-bridge host.test 4711'")
        cursor.execute("SELECT pg_advisory_lock(%s)", [WAKU_BRIDGE])
        try:
            page = admin_client.get(f"/admin/waku_bridge/storewatermark/{row.pk}/change/").content.decode()
        finally:
            cursor.execute("SELECT pg_advisory_unlock_all()")
            cursor.execute("RESET application_name")
    assert "host.test 4711" in page
    assert "outage" in page


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


@pytest.mark.parametrize(
    ("most", "state", "index"),
    [
        ("confirmed", "pending", "reply_pending"),  # most replies are confirmed, as on any server
        ("confirmed", "published", "reply_published"),
        ("confirmed", "unconfirmed", "reply_given_up"),
        ("confirmed", "abandoned", "reply_abandoned"),
        ("unconfirmed", "abandoned", "reply_abandoned"),
    ],
)
def test_rare_states_of_replies_are_found_by_an_index(most: str, state: str, index: str) -> None:
    make_many(most)
    assert index_of(today(), index) in OutboundReply.objects.filter(state=state).order_by("-pk")[:100].explain()
    if most == "unconfirmed":
        lost = OutboundReply.objects.filter(LOST_REPLIES, created_at__gte=timezone.now() - timedelta(hours=1))
        assert index_of(today(), "reply_lost") in lost[:1000].explain()
