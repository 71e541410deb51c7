"""Finding a user or a notification, and what their pages tell."""

import re
from datetime import timedelta
from html import unescape
from uuid import uuid4

import pytest
from coincurve import PrivateKey, PublicKey
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from kit.db.partitions import UNDER_WAY
from kit.tracing.spans import trace_of
from notifications.queues import halts
from pushserver.console.frame.links import request_timeline_url
from pushserver.console.support.find import hits_for
from pushserver.models import AccessRecord
from tests import factories
from waku_bridge.codec.keys import chat_key, key_hash
from waku_bridge.models import InboundEnvelope, OutboundReply
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.identity import client_keys

PUBLIC_KEY = PrivateKey(b"\x05" * 32).public_key.format()
pytestmark = pytest.mark.django_db


def make_story(public_key=PUBLIC_KEY, **fields):
    """A notification that failed once and then arrived, with everything around it."""
    at = timezone.now() - timedelta(minutes=5)
    registration = factories.make_registration(public_key_hash=key_hash(public_key))
    factories.make_grant(registration)
    factories.make_event(pseudonym=registration.pseudonym)
    request = factories.make_answered_request(at=at + timedelta(milliseconds=40))
    factories.make_envelope(
        hash=request.source_key,
        message_id=request.request_key,
        message_type=20,
        state="processed",
        at=at,
        processed_at=request.received_at,
        payload=None,
    )
    factories.make_reply(
        envelope_hash=request.source_key,
        state="confirmed",
        published_at=at + timedelta(seconds=1.2),
        confirmed_at=at + timedelta(seconds=3.7),
        attempt_count=1,
        node="http://node.test:8645",
        payload=None,
        at=at + timedelta(seconds=1),
    )
    notification = factories.make_notification(
        **{
            "request": request,
            "route": registration.route,
            "public_key_hash": registration.public_key_hash,
            "installation_id": registration.installation_id,
            "state": "delivered",
            "report": "success",
            "at": request.received_at,
            "finished_at": at + timedelta(seconds=4),
            "next_attempt_at": None,
        }
        | fields
    )
    for number, (outcome, code, seconds) in enumerate([("transient", "unreachable", 0.1), ("delivered", "", 3.9)], 1):
        factories.make_attempt(
            notification,
            number=number,
            outcome=outcome,
            code=code,
            latency_ms=100,
            started_at=at + timedelta(seconds=seconds),
        )
    return notification


def uncompressed(key: bytes) -> str:
    return "0x" + PublicKey(key).format(compressed=False).hex()


def find(client: Client, term: str):
    return client.post(reverse("find"), {"q": term}, follow=True)


def words_of(client: Client, path: str) -> str:
    """Return what a page says, without its markup."""
    html = client.get(path).content.decode()
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html)))


def end_of(response) -> str:
    return response.redirect_chain[-1][0]


def short_form(key: bytes) -> str:
    """Return Status' short form of a key: multibase base58btc of the varint e7 01 and the compressed key."""
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, digits = int.from_bytes(b"\xe7\x01" + key), ""
    while number:
        number, rest = divmod(number, 58)
        digits = alphabet[rest] + digits
    return f"z{digits}"


@pytest.mark.parametrize("write", [chat_key, uncompressed, bytes.hex, lambda key: "0x" + key.hex()])
def test_a_chat_key_in_any_form_leads_to_its_user(admin_client: Client, write) -> None:
    notification = make_story()

    response = find(admin_client, write(PUBLIC_KEY))

    assert end_of(response) == f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/"
    html = response.content.decode()
    assert notification.installation_id in html
    assert write(PUBLIC_KEY)[10:40] not in html + "".join(url for url, _ in response.redirect_chain)


def test_hashes_and_ids_lead_to_the_one_thing_they_mean(admin_client: Client) -> None:
    notification = make_story()
    make_story(PrivateKey(b"\x06" * 32).public_key.format())
    user, timeline = f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/", f"/admin/timelines/{notification.pk}/"
    request = notification.request

    for term, expected in [
        (key_hash(PUBLIC_KEY).hex(), user),
        ("0x" + key_hash(PUBLIC_KEY).hex().upper(), user),
        (key_hash(PUBLIC_KEY).hex()[:20], user),
        (notification.installation_id, user),
        (notification.installation_id.upper(), user),
        (bytes(request.message_id).hex(), timeline),
        (bytes(request.request_key).hex(), timeline),
        (bytes(request.source_key).hex()[:12], timeline),
    ]:
        assert end_of(find(admin_client, term)) == expected, term


def test_what_the_app_of_an_xmpp_device_was_given_leads_to_the_device(admin_client: Client) -> None:
    device = factories.make_device()
    given = issue(device.pk, client_keys()[0])
    page = f"/admin/xmpp_bridge/device/{device.pk}/change/"

    for term in (given.client, given.node, str(device.pk), device.pk.hex.upper()):
        response = find(admin_client, term)
        assert end_of(response) == page
        urls = "".join(url for url, _ in response.redirect_chain)
        assert given.client not in response.content.decode() + urls
        assert given.secret not in response.content.decode()


def test_a_client_string_or_a_node_of_nobody_is_told_and_not_repeated(admin_client: Client) -> None:
    ours, forged = issue(uuid4(), client_keys()[0]), "_" * 44

    assert "Nothing was found" in find(admin_client, ours.client).content.decode()
    for term in (ours.node, ours.secret, forged):
        html = find(admin_client, term).content.decode()
        assert "Nothing was searched" in html
        assert term not in html


def test_a_message_to_several_installations_leads_to_a_choice(admin_client: Client) -> None:
    first = make_story()
    second = factories.make_notification(request=first.request, position=1)

    html = find(admin_client, bytes(first.request.message_id).hex()).content.decode()

    assert [f"/admin/timelines/{n.pk}/" in html for n in (first, second)] == [True, True]


def test_an_envelope_that_is_no_request_leads_to_its_page(admin_client: Client) -> None:
    envelope = factories.make_envelope()
    assert end_of(find(admin_client, envelope.hash.hex())).endswith("/change/")


def test_a_request_without_notifications_is_found(admin_client: Client) -> None:
    request = factories.make_answered_request()
    assert "/timelines/requests/" in end_of(find(admin_client, request.message_id.hex()))


@pytest.mark.parametrize(
    "term",
    ["ab" * 64, "ab" * 32, "abcdef0123", "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001", chat_key(PUBLIC_KEY)],
)
def test_what_is_unknown_is_told_and_not_repeated(admin_client: Client, term: str) -> None:
    response = find(admin_client, term)
    assert "Nothing was found" in response.content.decode()
    assert term not in response.content.decode()


@pytest.mark.parametrize(
    "term",
    ["", " ", "'; --", "%", "\x00", "é" * 9, "a" * 5000, "zQ3sh", chat_key(PUBLIC_KEY)[:-1], "0x04" + "zz" * 64, "a b"],
)
def test_nonsense_is_told_and_not_repeated(admin_client: Client, term: str) -> None:
    response = find(admin_client, term)
    assert (response.status_code, end_of(response)) == (200, "/admin/find/")
    assert "Nothing was searched" in response.content.decode()
    assert len(term) < 6 or term not in response.content.decode()


# Forms of a chat key, how many digits are lost, and what is told.
LOST_DIGITS = [
    (chat_key, 2, "2 digits"),
    (lambda key: chat_key(key)[2:], 2, "2 digits"),
    (chat_key, 1, "1 digit"),
    (lambda key: chat_key(key)[2:], 5, "5 digits"),  # more digits than any id has, fewer than a key hash
    (bytes.hex, 1, "1 digit"),
    (bytes.hex, 2, "2 digits"),
    (short_form, 3, "3 digits"),
]


@pytest.mark.parametrize(("write", "cut", "missing"), LOST_DIGITS)
def test_a_chat_key_that_lost_digits_is_told_and_neither_searched_nor_shown(
    admin_client: Client, write, cut: int, missing: str
) -> None:
    term = write(PUBLIC_KEY)[:-cut]
    factories.make_request()  # which the term does not name
    for address in (reverse("find"), "/admin/search/registrations/registration/"):
        response = admin_client.post(address, {"q": term}, follow=True)
        assert f"looks like a chat key with {missing} missing" in response.content.decode()
        assert term[5:] not in response.content.decode() + end_of(response)


@pytest.mark.parametrize("path", [f"found/{chat_key(PUBLIC_KEY)}", "found/x", "found/%00", f"found/{PUBLIC_KEY.hex()}"])
def test_a_hand_made_url_is_not_searched_for_a_chat_key(admin_client: Client, path: str) -> None:
    make_story()
    response = admin_client.get(f"/admin/{path}/", follow=True)
    assert end_of(response) == "/admin/find/"
    assert "Nothing was searched" in response.content.decode()


@pytest.mark.parametrize(
    "path",
    [
        *("users/nonsense/", f"users/{'ab' * 64}/", f"users/{'AB' * 64}/", f"users/{'ab' * 63}/", "users/%00/"),
        *("timelines/1/", "timelines/x/", "timelines/-1/", f"timelines/{'9' * 40}/", "timelines/٣/"),
        *("users/nonsense/forget/",),
    ],
)
def test_a_page_of_nobody_leads_back_with_a_message(admin_client: Client, path: str) -> None:
    response = admin_client.get(f"/admin/{path}", follow=True)
    assert (response.status_code, end_of(response)) == (200, "/admin/find/")
    assert re.search("Nothing is known|no such notification", response.content.decode())


def test_every_page_has_the_box(admin_client: Client) -> None:
    notification = make_story()
    for page in ("/admin/", "/admin/find/", "/admin/gorush/", f"/admin/timelines/{notification.pk}/"):
        assert 'action="/admin/find/"' in admin_client.get(page).content.decode()


def test_who_may_see_nothing_finds_nothing(client: Client) -> None:
    notification = make_story()
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    user = f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/"

    assert find(client, chat_key(PUBLIC_KEY)).status_code == 403
    assert [client.get(url).status_code for url in (user, f"/admin/timelines/{notification.pk}/")] == [403, 403]
    assert 'action="/admin/find/"' not in client.get("/admin/").content.decode()


@pytest.mark.parametrize(
    "codename", ["view_registration", "view_notification", "view_inboundenvelope", "view_device", "view_deadletter"]
)
def test_who_may_see_any_of_what_is_found_has_the_box_and_the_menu(client: Client, codename: str) -> None:
    person = User.objects.create_user("some", is_staff=True)
    person.user_permissions.add(Permission.objects.get(codename=codename))
    client.force_login(person)
    may_find = codename != "view_deadletter"

    html = client.get("/admin/").content.decode()

    assert ('action="/admin/find/"' in html, 'href="/admin/find/"' in html) == (may_find, may_find)
    assert client.get("/admin/find/").status_code == (200 if may_find else 403)


def test_nobody_is_led_to_what_they_may_not_see(client: Client) -> None:
    notification = make_story()
    user = User.objects.create_user("support", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_registration"))
    client.force_login(user)

    assert "Nothing was found" in find(client, bytes(notification.request.message_id).hex()).content.decode()
    assert "Newest notifications" not in find(client, chat_key(PUBLIC_KEY)).content.decode()


def test_it_is_noted_who_opened_whom(admin_client: Client) -> None:
    notification = make_story()
    find(admin_client, chat_key(PUBLIC_KEY))
    admin_client.get(f"/admin/timelines/{notification.pk}/")
    admin_client.get("/admin/timelines/987654/")

    opened = AccessRecord.objects.order_by("pk").values_list("page", "object_id")
    assert list(opened) == [("user", key_hash(PUBLIC_KEY).hex()), ("timeline", str(notification.pk))]


def test_whoever_is_not_logged_in_is_asked_to(client: Client) -> None:
    for path in ("find/", f"found/{'ab' * 32}/", f"users/{'ab' * 64}/", "timelines/1/", "drain/"):
        response = client.get(f"/admin/{path}")
        assert (response.status_code, response.url.split("?")[0]) == (302, "/admin/login/")
    assert find(client, "ab" * 64).redirect_chain[0][0].startswith("/admin/login/")


# What the pages tell --------------------------------------------------------------------------------------------------


def timeline(client: Client, notification) -> str:
    html = client.get(f"/admin/timelines/{notification.pk}/").content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_attempts_that_failed_as_the_one_before_are_one_step(admin_client: Client) -> None:
    began = timezone.now() - timedelta(minutes=10)
    notification = factories.make_notification(at=began, attempt_count=5)
    for number, code in enumerate(["http_503", "http_503", "http_503", "http_429", "http_503"], 1):
        at = began + timedelta(minutes=number)
        factories.make_attempt(notification, number=number, outcome="transient", code=code, started_at=at)
    text = timeline(admin_client, notification)
    assert "Attempts 2 to 3: transient as attempt 1; this is when the last began" in text
    assert [f"Attempt {number} started" in text for number in range(1, 6)] == [True, False, False, True, True]


def test_a_timeline_goes_from_the_envelope_to_the_reply(admin_client: Client) -> None:
    text = timeline(admin_client, make_story())
    steps = [
        *("Envelope received", "Envelope processed", "Request accepted", "Notification created"),
        *("Attempt 1 started", "Attempt 1: transient", "Reply recorded", "Reply published", "Reply confirmed"),
        *("Attempt 2 started", "Attempt 2: delivered", "Finished: delivered"),
    ]
    places = [text.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
    assert "+40 ms" in text
    assert "+2.5 s" in text  # between publishing and confirming
    assert "Nothing: it is over." in text


def test_a_timeline_shows_the_trace_of_its_request_where_it_is_traced(admin_client: Client, settings) -> None:
    notification = make_story()
    assert " Trace " not in timeline(admin_client, notification)
    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    trace_id = trace_of(notification.request.source_key).id_hex
    assert f" Trace {trace_id} " in timeline(admin_client, notification)
    settings.TRACE_PAGE = "https://jaeger.example.org/trace/{trace_id}"
    for url in (f"/admin/timelines/{notification.pk}/", request_timeline_url(notification.request_id)):
        html = admin_client.get(url).content.decode()
        assert f'href="https://jaeger.example.org/trace/{trace_id}"' in html
    settings.TRACES_SHARE = 0.0
    assert trace_id not in timeline(admin_client, notification)


def make_push(**fields):
    """What is stored of a push of XMPP that was delivered."""
    at = timezone.now() - timedelta(minutes=5)
    device = factories.make_device()
    request = factories.make_answered_request(at=at, answered_at=at, bridge="xmpp", message_id=b"")
    push = {"public_key_hash": b"", "installation_id": str(device.pk), "route": device.route, "type": 0}
    state = {"state": "delivered", "report": "success", "finished_at": at + timedelta(seconds=1)}
    notification = factories.make_notification(request=request, at=at, grade="high", **push | state | fields)
    factories.make_attempt(notification, outcome="delivered", latency_ms=80, started_at=at + timedelta(seconds=0.2))
    return notification


def test_the_timeline_of_a_push_of_xmpp_tells_its_way_and_leads_to_its_device(admin_client: Client) -> None:
    notification = make_push()

    text = timeline(admin_client, notification)

    steps = ["Request accepted through xmpp", "Answered", "Notification created grade high", "Attempt 1: delivered"]
    assert [step for step in steps if step not in text.replace("  ", " ")] == []
    assert "Status message" not in text
    assert "Envelope received" not in text
    html = admin_client.get(f"/admin/timelines/{notification.pk}/").content.decode()
    assert f"/admin/xmpp_bridge/device/{notification.installation_id}/change/" in html


def test_the_pages_of_a_push_of_xmpp_lead_to_its_device_and_to_no_user(admin_client: Client) -> None:
    notification = make_push()
    device, route = f"/admin/xmpp_bridge/device/{notification.installation_id}/change/", notification.route_id

    pages = {
        name: admin_client.get(f"/admin/{name}/change/").content.decode()
        for name in (
            f"notifications/notification/{notification.pk}",
            f"notifications/notificationrequest/{notification.request_id}",
            f"registrations/route/{route}",
        )
    }
    shown = admin_client.get(device).content.decode()

    assert [device in html for html in pages.values()] == [True, False, True]
    assert [
        html
        for html in pages.values()
        if "/admin/users//" in html or "/inboundenvelope/" in html.partition('id="main"')[2]
    ] == []
    assert f"route__id__exact={route}" in shown
    assert f"/admin/registrations/route/{route}/change/" in shown


def test_a_timeline_without_its_envelope_is_told_as_far_as_it_is_known(admin_client: Client) -> None:
    notification = make_story()
    InboundEnvelope.objects.all().delete()
    assert "Request accepted" in timeline(admin_client, notification)


def test_a_result_that_came_late_is_told(admin_client: Client) -> None:
    notification = make_story()
    notification.attempts.filter(number=2).update(late_code="device_gone")
    assert "reported later: device_gone" in timeline(admin_client, notification)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"state": "retrying"}, "The next attempt is due at 2026"),
        ({"state": "in_flight"}, "A worker is sending it"),
        ({"state": "pending", "route": None}, "Its recipient unregistered"),
    ],
)
def test_a_timeline_says_what_comes_next(admin_client: Client, fields, sentence) -> None:
    then = timezone.now().replace(year=2026)
    notification = make_story(finished_at=None, next_attempt_at=then, lease_until=then, **fields)
    text = timeline(admin_client, notification)
    assert sentence in text
    assert "It expires at" in text


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        *(("pending", "waits to be published"), ("published", "is looked up at 20")),
        *(("unconfirmed", "may not have got it"), ("abandoned", "the sender got none"), ("confirmed", "it is over.")),
    ],
)
def test_a_timeline_says_what_becomes_of_the_reply(admin_client: Client, state: str, sentence: str) -> None:
    notification = make_story()
    is_over = OutboundReply.State(state).is_terminal
    OutboundReply.objects.update(state=state, ended_on=timezone.now() if is_over else UNDER_WAY)
    assert sentence in timeline(admin_client, notification)


def test_a_timeline_says_what_holds_it_up(admin_client: Client) -> None:
    notification = make_story(finished_at=None, state="retrying", next_attempt_at=timezone.now())
    now = timezone.now()
    factories.make_channel((2, ""))
    factories.make_halt("paused", (2, ""), reason="new key")
    factories.make_halt("unreachable", gateway="gorush")
    halts.start_draining(by="ann", why="gorush moves", now=now)
    notification.route.state, notification.route.disabled_reason = "disabled", "operator"
    notification.route.save()

    text = timeline(admin_client, notification)

    assert "Delivery is stopped: it waits" in text
    assert "Its app is paused: new key" in text
    assert "Its gateway gorush cannot be reached" in text
    assert "Its route is disabled (operator)" in text


def test_pages_cost_the_same_for_much_as_for_little(admin_client: Client) -> None:
    notification = make_story()
    pages = [f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/", f"/admin/timelines/{notification.pk}/"]
    few = [count_queries(admin_client, page) for page in pages]
    for number in range(3, 60):
        factories.make_attempt(notification, number=number)
        other = factories.make_registration(public_key_hash=notification.public_key_hash)
        factories.make_grant(other)
        factories.make_event(pseudonym=other.pseudonym)
        factories.make_notification(route=other.route, public_key_hash=notification.public_key_hash)

    assert [count_queries(admin_client, page) for page in pages] == few


def count_queries(client: Client, page: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(page).status_code == 200
    return len(queries)


@pytest.mark.parametrize("term", ["ab" * 64, "ab" * 32, "abcdef01", "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001"])
def test_every_look_up_can_be_answered_by_an_index(term: str) -> None:
    """With sequential scans forbidden, PostgreSQL takes one only where nothing else is possible."""
    make_story()
    with CaptureQueriesContext(connection) as queries:
        hits_for(term)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for query in queries.captured_queries:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan" not in plan, f"{query['sql']}\n{plan}"
