"""Search for a user or a notification, and the contents of their pages."""

import re
from datetime import timedelta
from html import unescape
from uuid import uuid4

import pytest
from coincurve import PrivateKey, PublicKey
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from kit.buckets.bucket import Limit
from kit.db.partitions import UNDER_WAY
from kit.tracing.spans import trace_of
from notifications.admin import request_timeline_url
from notifications.messages import channel_key
from notifications.models import Attempt, DecidedAtOnce, Halt, Notification, NotificationRequest, Queue
from notifications.queues import halts
from notifications.rules.policy import Verdict, Wish
from notifications.rules.reports import Decided, pack
from pushserver.console import labels
from pushserver.console.drain import DRAIN_ID
from pushserver.console.support.find import hits_for
from pushserver.models import AccessRecord
from registrations.models import Registration, Route
from tests.console.test_pages import count_queries
from tests.rig import rows
from tests.rig.conversation import CLIENT, OUTSIDER, TOKEN, push, registration, request, say
from waku_bridge.codec.keys import chat_key, key_hash
from waku_bridge.models import InboundEnvelope, OutboundReply
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.identity import client_keys

PUBLIC_KEY = PrivateKey(b"\x05" * 32).public_key.format()
pytestmark = pytest.mark.django_db


def make_story(public_key=PUBLIC_KEY, *, ago=timedelta(minutes=5), **fields):
    """Make a notification that failed once and then arrived, with everything around it."""
    at = timezone.now() - ago
    registration = rows.make_registration(public_key_hash=key_hash(public_key))
    rows.make_grant(registration)
    rows.make_event(pseudonym=registration.pseudonym)
    request = rows.make_answered_request(at=at + timedelta(milliseconds=40))
    rows.make_envelope(
        hash=request.source_key,
        message_id=request.request_key,
        message_type=20,
        state="processed",
        at=at,
        processed_at=request.received_at,
        payload=None,
    )
    rows.make_reply(
        envelope_hash=request.source_key,
        state="confirmed",
        published_at=at + timedelta(seconds=1.2),
        confirmed_at=at + timedelta(seconds=3.7),
        attempt_count=1,
        node="http://node.test:8645",
        payload=None,
        at=at + timedelta(seconds=1),
    )
    notification = rows.make_notification(
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
        rows.make_attempt(
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
    """Return the text of a page, without its markup."""
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


def test_hashes_ids_numbers_and_links_lead_to_the_one_thing_they_mean(admin_client: Client) -> None:
    notification = make_story()
    lookalike = make_story(PrivateKey(b"\x06" * 32).public_key.format())
    rows.make_registration(public_key_hash=b"\x04" * 64)  # begins like a chat key, as does the id:
    NotificationRequest.objects.filter(pk=lookalike.request_id).update(message_id=b"\x02" * 32)
    user, timeline = f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/", f"/admin/timelines/{notification.pk}/"
    request, short = notification.request, short_form(PUBLIC_KEY)

    for term, expected in [
        (key_hash(PUBLIC_KEY).hex(), user),
        ("0x" + key_hash(PUBLIC_KEY).hex().upper(), user),
        (key_hash(PUBLIC_KEY).hex()[:20], user),
        (notification.installation_id, user),
        (notification.installation_id.upper(), user),
        (f"https://status.app/u/CwSACgYKBEpvaG4D#{short}", user),
        (f"status.app/u#{short}", user),
        (f"https://join.status.im/u/{chat_key(PUBLIC_KEY)}", user),
        (f"https://status.app/u/{short}", user),
        (bytes(request.message_id).hex(), timeline),
        (bytes(request.request_key).hex(), timeline),
        (bytes(request.source_key).hex()[:12], timeline),
        (str(notification.pk), timeline),
        ("04" * 64, f"/admin/users/{'04' * 64}/"),
        ("02" * 32, f"/admin/timelines/{lookalike.pk}/"),
    ]:
        response = find(admin_client, term)
        assert end_of(response) == expected, term
        urls = "".join(url for url, _ in response.redirect_chain)
        assert short[5:20] not in urls
        assert chat_key(PUBLIC_KEY)[5:20] not in urls


def test_the_node_and_the_client_string_of_an_xmpp_device_lead_to_it(admin_client: Client) -> None:
    device = rows.make_device()
    given = issue(device.pk, client_keys()[0])
    page = f"/admin/xmpp_bridge/device/{device.pk}/change/"

    for term in (given.client, given.node, str(device.pk), device.pk.hex.upper()):
        response = find(admin_client, term)
        assert end_of(response) == page
        urls = "".join(url for url, _ in response.redirect_chain)
        assert given.client not in response.content.decode() + urls
        assert given.secret not in response.content.decode()


def test_an_unknown_client_string_or_node_is_reported_and_not_repeated(admin_client: Client) -> None:
    ours, forged = issue(uuid4(), client_keys()[0]), "_" * 44

    assert "Nothing was found" in find(admin_client, ours.client).content.decode()
    for term in (ours.node, ours.secret, forged):
        html = find(admin_client, term).content.decode()
        assert "Nothing was searched" in html
        assert term not in html


def test_a_message_to_several_installations_leads_to_a_choice(admin_client: Client) -> None:
    first = make_story()
    second = rows.make_notification(request=first.request, position=1)

    html = find(admin_client, bytes(first.request.message_id).hex()).content.decode()

    assert [f"/admin/timelines/{n.pk}/" in html for n in (first, second)] == [True, True]


def test_an_envelope_that_is_no_request_leads_to_its_page(admin_client: Client) -> None:
    envelope = rows.make_envelope()
    assert end_of(find(admin_client, envelope.hash.hex())).endswith("/change/")


def test_a_request_without_notifications_is_found(admin_client: Client) -> None:
    request = rows.make_answered_request()
    assert "/timelines/requests/" in end_of(find(admin_client, request.message_id.hex()))


@pytest.mark.parametrize(
    "term",
    ["ab" * 64, "ab" * 32, "abcdef0123", "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001", chat_key(PUBLIC_KEY)],
)
def test_an_unknown_term_is_reported_and_not_repeated(admin_client: Client, term: str) -> None:
    response = find(admin_client, term)
    assert "Nothing was found" in response.content.decode()
    assert term not in response.content.decode()


@pytest.mark.parametrize(
    "term",
    ["", " ", "'; --", "%", "\x00", "é" * 9, "a" * 5000, "zQ3sh", chat_key(PUBLIC_KEY)[:-1], "0x04" + "zz" * 64, "a b"],
)
def test_nonsense_is_reported_and_not_repeated(admin_client: Client, term: str) -> None:
    response = find(admin_client, term)
    assert (response.status_code, end_of(response)) == (200, "/admin/find/")
    assert "Nothing was searched" in response.content.decode()
    assert len(term) < 6 or term not in response.content.decode()


# Forms of a chat key, the number of lost digits, and the number that the page reports.
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
def test_a_chat_key_that_lost_digits_is_reported_and_neither_searched_nor_shown(
    admin_client: Client, write, cut: int, missing: str
) -> None:
    term = write(PUBLIC_KEY)[:-cut]
    rows.make_request()  # the term does not match it
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
    assert re.search("There is no such (user|notification)", response.content.decode())


def test_every_page_has_the_box(admin_client: Client) -> None:
    notification = make_story()
    for page in ("/admin/", "/admin/find/", "/admin/gorush/", f"/admin/timelines/{notification.pk}/"):
        assert 'action="/admin/find/"' in admin_client.get(page).content.decode()


def test_staff_without_permissions_find_nothing(client: Client) -> None:
    notification = make_story()
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    user = f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/"

    assert find(client, chat_key(PUBLIC_KEY)).status_code == 403
    assert [client.get(url).status_code for url in (user, f"/admin/timelines/{notification.pk}/")] == [403, 403]
    assert 'action="/admin/find/"' not in client.get("/admin/").content.decode()


@pytest.mark.parametrize(
    "codename", ["view_registration", "view_notification", "view_inboundenvelope", "view_device", "view_deadletter"]
)
def test_a_permission_for_any_kind_of_result_shows_the_find_box_and_the_menu(client: Client, codename: str) -> None:
    person = User.objects.create_user("some", is_staff=True)
    person.user_permissions.add(Permission.objects.get(codename=codename))
    client.force_login(person)
    may_find = codename != "view_deadletter"

    html = client.get("/admin/").content.decode()

    assert ('action="/admin/find/"' in html, 'href="/admin/find/"' in html) == (may_find, may_find)
    assert client.get("/admin/find/").status_code == (200 if may_find else 403)


def test_a_search_leads_to_no_page_that_the_role_may_not_view(client: Client) -> None:
    notification = make_story()
    user = User.objects.create_user("support", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_registration"))
    client.force_login(user)

    assert "Nothing was found" in find(client, bytes(notification.request.message_id).hex()).content.decode()
    assert "Newest notifications" not in find(client, chat_key(PUBLIC_KEY)).content.decode()


def test_the_access_record_has_who_opened_which_user(admin_client: Client) -> None:
    notification = make_story()
    find(admin_client, chat_key(PUBLIC_KEY))
    admin_client.get(f"/admin/timelines/{notification.pk}/")
    admin_client.get("/admin/timelines/987654/")

    opened = AccessRecord.objects.order_by("pk").values_list("page", "object_id")
    assert list(opened) == [("user", key_hash(PUBLIC_KEY).hex()), ("timeline", str(notification.pk))]


# Contents of the pages ------------------------------------------------------------------------------------------------


def timeline(client: Client, notification) -> str:
    return words_of(client, f"/admin/timelines/{notification.pk}/")


def assert_in_order(steps: list[str], text: str) -> None:
    positions = [text.find(step) for step in steps]
    assert -1 not in positions
    assert positions == sorted(positions)


def test_attempts_that_failed_as_the_one_before_are_one_step(admin_client: Client) -> None:
    began = timezone.now() - timedelta(minutes=10)
    notification = rows.make_notification(at=began, attempt_count=5)
    for number, code in enumerate(["http_503", "http_503", "http_503", "http_429", "http_503"], 1):
        at = began + timedelta(minutes=number)
        rows.make_attempt(notification, number=number, outcome="transient", code=code, started_at=at)
    text = timeline(admin_client, notification)
    assert "Attempts 2 to 3: transient as attempt 1; this is when the last ended" in text
    assert [f"Attempt {number} started" in text for number in range(1, 6)] == [True, False, False, True, True]


def test_a_timeline_goes_from_the_envelope_to_the_reply(admin_client: Client) -> None:
    text = timeline(admin_client, make_story())
    steps = [
        *("Envelope received", "Envelope processed", "Request accepted", "Notification created"),
        *("Attempt 1 started", "Attempt 1: transient", "Reply recorded", "Reply published", "Reply confirmed"),
        *("Attempt 2 started", "Attempt 2: delivered", "Finished: delivered"),
    ]
    assert_in_order(steps, text)
    assert "+40 ms" in text
    assert "+2.5 s" in text  # between publishing and confirming
    assert "Nothing: it is over." in text


def test_a_timeline_shows_the_trace_of_its_request_where_it_is_traced(admin_client: Client, settings) -> None:
    notification = make_story()
    assert " Trace " not in timeline(admin_client, notification)
    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    trace_id = trace_of(notification.request.source_key).id.hex()
    assert f" Trace {trace_id} " in timeline(admin_client, notification)
    settings.TRACE_PAGE = "https://jaeger.example.org/trace/{trace_id}"
    for url in (f"/admin/timelines/{notification.pk}/", request_timeline_url(notification.request_id)):
        html = admin_client.get(url).content.decode()
        assert f'href="https://jaeger.example.org/trace/{trace_id}"' in html
    settings.TRACES_SHARE = 0.0
    assert trace_id not in timeline(admin_client, notification)


def make_push(**fields):
    """Make the rows of an XMPP push that was delivered."""
    at = timezone.now() - timedelta(minutes=5)
    device = rows.make_device()
    request = rows.make_answered_request(at=at, answered_at=at, bridge="xmpp", message_id=b"")
    push = {"public_key_hash": b"", "installation_id": str(device.pk), "route": device.route, "type": 0}
    state = {"state": "delivered", "report": "success", "finished_at": at + timedelta(seconds=1)}
    notification = rows.make_notification(request=request, at=at, grade="high", **push | state | fields)
    rows.make_attempt(notification, outcome="delivered", latency_ms=80, started_at=at + timedelta(seconds=0.2))
    return notification


def test_the_timeline_of_an_xmpp_push_shows_its_steps_and_leads_to_its_device(admin_client: Client) -> None:
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


def test_a_timeline_without_its_envelope_has_the_other_steps(admin_client: Client) -> None:
    notification = make_story()
    InboundEnvelope.objects.all().delete()
    assert "Request accepted" in timeline(admin_client, notification)


def test_a_timeline_shows_a_late_result(admin_client: Client) -> None:
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
def test_a_timeline_shows_the_next_step(admin_client: Client, fields, sentence) -> None:
    then = timezone.now().replace(year=2026)
    notification = make_story(finished_at=None, next_attempt_at=then, lease_until=then, **fields)
    text = timeline(admin_client, notification)
    assert sentence in text
    assert "It expires at" in text


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        *(("pending", "waits to be published"), ("published", "looks for it in a store at 20")),
        *(("unconfirmed", "may not have got it"), ("abandoned", "the sender got none"), ("confirmed", "it is over.")),
    ],
)
def test_a_timeline_shows_the_state_of_the_reply(admin_client: Client, state: str, sentence: str) -> None:
    notification = make_story()
    is_over = OutboundReply.State(state).is_terminal
    OutboundReply.objects.update(state=state, ended_on=timezone.now() if is_over else UNDER_WAY)
    assert sentence in timeline(admin_client, notification)


def test_a_timeline_shows_the_halt_that_delays_a_push(admin_client: Client) -> None:
    notification = make_story(finished_at=None, state="retrying", next_attempt_at=timezone.now())
    now = timezone.now()
    rows.make_channel((2, ""))
    rows.make_halt("paused", (2, ""), reason="new key")
    rows.make_halt("unreachable", gateway="gorush")
    halts.start_draining(by="ann", why="gorush moves", now=now)
    notification.route.state, notification.route.disabled_reason = "disabled", "operator"
    notification.route.save()

    text = timeline(admin_client, notification)

    assert "Delivery is stopped: it waits" in text
    assert "Its app is paused: new key" in text
    assert "Its gateway gorush cannot be reached" in text
    assert "Its route is disabled (operator)" in text


def first_line(client: Client, path: str) -> str:
    html = client.get(path).content.decode().partition('id="first-line"')[2].partition(">")[2]
    return re.sub(r"\s+", " ", unescape(html.partition("</p>")[0]))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "Delivered after 4.0 s: 1 attempt failed, the last with unreachable."),
        (
            {"state": "expired"},
            "Not delivered. Its time to live ran out before an attempt succeeded. Before: 1 attempt",
        ),
        (
            {"state": "coalesced"},
            "Not sent by itself. Merged into another push to the same address: more than",
        ),
        ({"state": "unconfirmed"}, "Perhaps delivered. It may have arrived."),
        (
            {"state": "retrying", "finished_at": None, "next_attempt_at": timezone.now() + timedelta(hours=1)},
            "Not delivered yet: 1 attempt failed, the last with unreachable. The next attempt is due at 20",
        ),
        ({"state": "in_flight", "finished_at": None}, "unreachable. A worker is sending it."),
    ],
)
def test_the_first_line_of_a_timeline_shows_the_reason_and_the_next_step(
    admin_client: Client, fields: dict[str, object], line: str
) -> None:
    notification = make_story(**fields)
    assert line in first_line(admin_client, f"/admin/timelines/{notification.pk}/")


def test_the_first_line_shows_the_halt_that_delays_a_push_and_its_beginning(admin_client: Client) -> None:
    notification = make_story(finished_at=None, state="pending", next_attempt_at=timezone.now())
    halts.start_draining(by="ann", why="gorush moves", now=timezone.now())
    line = first_line(admin_client, f"/admin/timelines/{notification.pk}/")
    assert "Delivery is stopped: it waits until somebody starts it again (by ann, since 20" in line
    assert "The next attempt is due" not in timeline(admin_client, notification)


def test_the_first_line_of_a_request_shows_why_nothing_was_sent(admin_client: Client) -> None:
    decided = pack([Decided(0, Verdict.SUPPRESSED, 1, Wish.CHAT_MUTED), Decided(1, Verdict.WRONG_TOKEN, 1)])
    request = rows.make_answered_request(decided=decided)
    line = first_line(admin_client, request_timeline_url(request.pk))
    assert line.startswith("Nothing was sent: Suppressed by the recipient: its chat is muted. Wrong access")

    rows.make_notification(request=request)
    line = first_line(admin_client, request_timeline_url(request.pk))
    assert line.startswith("2 pushes decided at once: Suppressed by")
    assert line.endswith("It brought 1 notification with a timeline of its own.")


MUTED, CHOSEN, BLOCKED = b"m" * 64, b"c" * 64, b"b" * 64
SECRETS = (TOKEN, "device-token", "an-outdated-token", MUTED.hex(), BLOCKED.hex(), b"ciphertext".hex(), "ciphertext")


def decisions_shown(client: Client) -> list[tuple[str, str]]:
    """Return the decisions on the user's page, newest first, each with its reason. Nothing secret may be on it."""
    html = client.get(f"/admin/users/{CLIENT.key_hash.hex()}/").content.decode()
    assert not [secret for secret in SECRETS if secret in html]
    section = html.partition("Suppressed, refused or merged</h2>")[2].partition("</section>")[0]
    for url in re.findall(r'href="(/admin/timelines/requests/[^"]+)"', section):
        assert client.get(url).status_code == 200
    rows = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", section)]
    return [(re.sub("<[^>]+>", "", row[0]), unescape(row[1])) for row in rows if row[0] != "Decision"]


def test_the_page_of_a_user_shows_what_was_suppressed_refused_or_merged(admin_client: Client, settings) -> None:
    """A user without the pushes of one friend has blocked them, or the friend has outdated data."""
    settings.ROUTE_LIMITS = (Limit(2, 3600.0),)
    wishes = {"block_mentions": True, "muted_chat_list": (MUTED,), "blocked_chat_list": (BLOCKED,)}
    process = say(registration(**wishes))
    for number, fields in enumerate(
        [
            {"chat_id": MUTED},
            {"type": 2, "chat_id": CHOSEN},
            {"author": BLOCKED, "message": b"ciphertext"},
            *({"chat_id": CHOSEN},) * 4,  # two are sent, the third wakes the phone, and the fourth is merged into it
        ]
    ):
        say(request(push(**fields), message_id=b"%d" % number), process=process)
    say(request(push(chat_id=CHOSEN, type=1, message=b"ciphertext"), message_id=b"3"), process=process)
    say(request(push(OUTSIDER)), process=process)

    assert decisions_shown(admin_client) == [
        ("duplicate", labels.VERDICTS[Verdict.DUPLICATE]),
        ("coalesced", "Merged into another push to the same address: more than 2 pushes in 60 min to one address."),
        ("suppressed", labels.WISHES[Wish.AUTHOR_BLOCKED]),
        ("suppressed", labels.WISHES[Wish.MENTIONS_BLOCKED]),
        ("suppressed", labels.WISHES[Wish.CHAT_MUTED]),
    ]
    assert {row.recipient for row in DecidedAtOnce.objects.all()} == {CLIENT.key_hash[:8]}


def test_a_request_of_a_hundred_pushes_costs_one_row_for_each_decision_about_a_recipient(admin_client: Client) -> None:
    """A request that is refused as a whole leaves none: anybody can make it up."""
    process = say(registration(muted_chat_list=(MUTED,)))
    wrong = push(access_token="an-outdated-token")
    say(request(*[wrong] * 99, push(OUTSIDER)), process=process)
    assert DecidedAtOnce.objects.count() == 0

    say(
        request(*[wrong] * 97, push(installation_id=str(uuid4())), push(chat_id=MUTED), push(OUTSIDER)), process=process
    )
    assert DecidedAtOnce.objects.count() == 3
    assert {decision for decision, _ in decisions_shown(admin_client)} == {
        "wrong_token",
        "not_registered",
        "suppressed",
    }


def test_lists_lead_to_timelines(admin_client: Client) -> None:
    notification = make_story()
    own, of_request = f'href="/admin/timelines/{notification.pk}/"', request_timeline_url(notification.request_id)
    lists = {"notification": own, "attempt": own, "notificationrequest": f'href="{of_request}"'}
    assert [name for name in lists if lists[name] not in words(admin_client, f"/admin/notifications/{name}/")] == []
    assert own in words(admin_client, f"/admin/notifications/notificationrequest/{notification.request_id}/change/")


def words(client: Client, path: str) -> str:
    return client.get(path).content.decode()


def staffed(row: Model, message: str, *, minutes: float) -> None:
    """Log what ann did to a row, ``minutes`` after the beginning of the story."""
    ann, _ = User.objects.get_or_create(username="ann")
    LogEntry.objects.create(
        user=ann,
        content_type=ContentType.objects.get_for_model(row),
        object_id=DRAIN_ID if isinstance(row, Halt) else str(row.pk),
        object_repr="it",
        action_flag=CHANGE,
        change_message=message,
        action_time=timezone.now() - timedelta(minutes=5 - minutes),
    )


def test_the_beginning_and_the_end_of_a_halt_are_steps_of_a_timeline(admin_client: Client) -> None:
    notification = make_story(finished_at=timezone.now())
    channel = rows.make_channel((2, ""))
    staffed(channel, "Paused. Why: new key", minutes=1)
    staffed(channel, "Resumed. Why: it works", minutes=2)
    staffed(channel, "Paused. Why: it was over", minutes=-90)
    staffed(channel, "Resumed. Why: it was over", minutes=-80)
    staffed(Halt(), "Delivery is stopped. Why: gorush moves", minutes=-60)  # before the notification was made
    staffed(Halt(), "Delivery runs again. Why: it moved", minutes=3)

    text = timeline(admin_client, notification)

    steps = [
        *("Halted by ann: drained Delivery is stopped. Why: gorush moves", "Notification created"),
        *("Halted by ann: paused Paused. Why: new key", "Halt ended by ann: Resumed. Why: it works"),
        "Halt ended by ann: Delivery runs again. Why: it moved",
    ]
    assert_in_order(steps, text)
    assert "it was over" not in text
    assert "Timeline: 5 min" in text  # without the time before it
    line = first_line(admin_client, f"/admin/timelines/{notification.pk}/")
    assert "delivery was stopped by ann, its app was paused by ann" in line


def test_a_halt_that_the_server_began_is_a_step_while_it_lasts(admin_client: Client) -> None:
    notification = make_story(finished_at=None, state="retrying", next_attempt_at=timezone.now())
    rows.make_channel((2, ""))
    rows.make_halt("tripped", (2, ""), reason="41 of 50 refused")
    assert "Halted by the server: tripped 41 of 50 refused" in timeline(admin_client, notification)


def test_a_halt_that_the_server_began_and_ended_is_two_steps(admin_client: Client) -> None:
    notification = make_story()
    app, before = channel_key(2, ""), notification.created_at
    halts.trip(app, reason="41 of 50 refused", now=before - timedelta(minutes=2))
    halts.close_breaker(app, now=before + timedelta(seconds=1))
    halts.trip(app, reason="it was over", now=before - timedelta(minutes=9))
    halts.close_breaker(app, now=before - timedelta(minutes=8))
    halts.note_unreachable("gorush", now=before + timedelta(seconds=2))
    halts.note_reached("gorush", now=before + timedelta(seconds=3))
    text = timeline(admin_client, notification)
    steps = [
        *("Halted by the server: tripped 41 of 50 refused", "Notification created"),
        "Halt ended by the server: a probe was delivered",
        *("Halted by the server: unreachable gorush", "Halt ended by the server: a probe reached the gateway"),
    ]
    assert_in_order(steps, text)
    assert "it was over" not in text
    line = first_line(admin_client, f"/admin/timelines/{notification.pk}/")
    assert "its app was tripped for 1.0 s, its gateway was unreachable for 1.0 s" in line  # not for the time before


def test_the_first_line_adds_up_what_halts_of_a_kind_took_from_the_life_of_a_notification(
    admin_client: Client,
) -> None:
    notification = make_story(state="expired")
    begun, ended = notification.created_at, notification.finished_at
    halts.note_unreachable("gorush", now=begun - timedelta(hours=3))
    halts.note_reached("gorush", now=begun + timedelta(milliseconds=100))
    halts.note_unreachable("gorush", now=ended - timedelta(milliseconds=100))
    halts.note_reached("gorush", now=ended + timedelta(hours=4))
    line = first_line(admin_client, f"/admin/timelines/{notification.pk}/")
    assert line.count("its gateway") == 1
    assert "its gateway was unreachable for 200 ms" in line


@pytest.mark.parametrize("has_attempt", [True, False])
def test_the_causes_of_a_delay_stay_when_the_recipient_has_unregistered(
    admin_client: Client, *, has_attempt: bool
) -> None:
    notification, app = make_story(state="withdrawn", finished_at=timezone.now()), channel_key(2, "")
    queue = Queue.objects.create(gateway="gorush", token_type=2, is_proven=False)
    Notification.objects.filter(pk=notification.pk).update(queue_id=queue.pk)
    if not has_attempt:
        Attempt.objects.all().delete()
    channel = rows.make_channel((2, ""))
    staffed(channel, "Paused. Why: new key", minutes=1)
    staffed(channel, "Resumed. Why: it works", minutes=2)
    halts.trip(app, reason="41 of 50 refused", now=notification.created_at)
    halts.close_breaker(app, now=notification.created_at + timedelta(seconds=1))
    Registration.objects.update(route=None)
    Route.objects.all().delete()
    line = first_line(admin_client, f"/admin/timelines/{notification.pk}/")
    assert line.startswith(
        "Not sent. The recipient unregistered. Before: its app was paused by ann, its app was tripped"
    )
    assert "Halted by the server: tripped 41 of 50 refused" in timeline(admin_client, notification)


def test_a_halt_has_no_step_after_the_end_of_the_notification(admin_client: Client) -> None:
    notification, app = make_story(state="expired"), channel_key(2, "")
    halts.trip(app, reason="41 of 50 refused", now=notification.created_at)
    halts.close_breaker(app, now=timezone.now())
    halts.trip(app, reason="much later", now=timezone.now())
    text = timeline(admin_client, notification)
    assert "Halted by the server: tripped 41 of 50 refused" in text
    assert "Halt ended" not in text
    assert "much later" not in text


def test_a_breaker_that_staff_closed_is_begun_by_the_server_and_ended_by_them(admin_client: Client) -> None:
    notification, channel = make_story(), rows.make_channel((2, ""))
    app = channel_key(2, "")
    halts.trip(app, reason="41 of 50 refused", now=notification.created_at)
    halts.close_breaker(app, by="ann", now=notification.created_at + timedelta(seconds=1))
    staffed(channel, "Closed the breaker. Why: the key is new", minutes=0.05)
    text = timeline(admin_client, notification)
    assert "Halted by the server: tripped 41 of 50 refused" in text
    assert text.count("Halt ended by") == 1
    assert "Halt ended by ann: Closed the breaker. Why: the key is new" in text


def test_an_attempt_while_the_breaker_was_open_shows_that(admin_client: Client) -> None:
    notification = make_story()
    as_probe = "as a probe: the breaker of its app was open, or its gateway was unreachable"
    assert as_probe not in timeline(admin_client, notification)
    notification.attempts.filter(number=2).update(is_probe=True)
    assert f"Attempt 2 started at gorush, {as_probe}" in timeline(admin_client, notification)
    assert "it was sent as a probe" in first_line(admin_client, f"/admin/timelines/{notification.pk}/")


def test_the_end_of_a_push_that_failed_too_often_shows_its_reason(admin_client: Client) -> None:
    notification = make_story(state="undeliverable")
    assert "Apple or Google can never accept this push" in timeline(admin_client, notification)
    notification.attempts.update(is_counted=True)
    line = first_line(admin_client, f"/admin/timelines/{notification.pk}/")
    assert "Nothing was ever delivered to its address, and 2 attempts failed while its gateway delivered" in line


def test_no_attempt_is_announced_after_the_expiry(admin_client: Client) -> None:
    at = timezone.now() + timedelta(minutes=3)
    notification = make_story(finished_at=None, state="retrying", next_attempt_at=at, expires_at=at)
    text = timeline(admin_client, notification)
    assert "No attempt is due before it expires. It expires at" in text
    assert "The next attempt is due" not in text
    page = words_of(admin_client, f"/admin/notifications/notification/{notification.pk}/change/")
    assert re.search(r"Next attempt:? - ", page)


@pytest.mark.parametrize(("state", "shown"), [("confirmed", "-"), ("pending", "in 2 min")])
def test_only_a_reply_under_way_has_a_next_attempt(admin_client: Client, state: str, shown: str) -> None:
    reply = rows.make_reply(state=state, next_attempt_at=timezone.now() + timedelta(minutes=2.5))
    page = words_of(admin_client, f"/admin/waku_bridge/outboundreply/{reply.pk}/change/")
    assert re.search(rf"Next attempt:? {shown} ", page)


def test_pages_cost_the_same_for_much_as_for_little(admin_client: Client) -> None:
    notification = make_story()
    pages = [f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/", f"/admin/timelines/{notification.pk}/"]
    few = [count_queries(admin_client, page) for page in pages]
    for number in range(3, 60):
        rows.make_attempt(notification, number=number)
        other = rows.make_registration(public_key_hash=notification.public_key_hash)
        rows.make_grant(other)
        rows.make_event(pseudonym=other.pseudonym)
        rows.make_notification(route=other.route, public_key_hash=notification.public_key_hash)

    assert [count_queries(admin_client, page) for page in pages] == few


@pytest.mark.parametrize("term", ["ab" * 64, "ab" * 32, "abcdef01", "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001"])
def test_every_look_up_can_be_answered_by_an_index(term: str) -> None:
    """Forbid sequential scans. PostgreSQL then plans one only where no index can serve."""
    make_story()
    with CaptureQueriesContext(connection) as queries:
        hits_for(term)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for query in queries.captured_queries:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan" not in plan, f"{query['sql']}\n{plan}"
