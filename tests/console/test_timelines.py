"""Timeline of a notification and of a request: its steps, what delayed it, and the first line that sums it up."""

import re
from datetime import timedelta
from html import unescape
from uuid import uuid4

import orjson
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from kit.buckets.bucket import Limit
from kit.telemetry import trace_of
from notifications.gateways.gorush.models import GatewayErrorRule, current_rules, load_shipped
from notifications.gateways.gorush.push_api import read_response
from notifications.messages import AppKey, Result, app_key
from notifications.models import (
    Channel,
    DecidedAtOnce,
    EndedAttempt,
    EndedNotification,
    Halt,
    Notification,
    OpenNotification,
    Queue,
)
from notifications.policy import Verdict, Wish
from notifications.queues import halts
from notifications.reports import Decided, pack
from pushserver.console.notifications.admin import request_timeline_url
from pushserver.console.pages import labels
from registrations.messages import TokenType
from registrations.models import Registration, Route
from tests.console.reading import HEROINE, staff, words_of
from tests.console.test_reach import note, operate, page_of
from tests.rig import rows
from tests.rig.conversation import CLIENT, OUTSIDER, TOKEN, push, registration, request, say
from tests.rig.delivering import claimed, make_due, recorded
from waku_bridge.models import InboundEnvelope, OutboundReply

pytestmark = pytest.mark.django_db
GOOGLE = app_key(2, "")


def make_story(**fields: object) -> Notification:
    return rows.make_delivered(HEROINE, **fields)


def path_of(notification: Notification) -> str:
    return f"/admin/timelines/{notification.pk}/"


def timeline(client: Client, notification: Notification) -> str:
    return words_of(client, path_of(notification))


def first_line(client: Client, path: str) -> str:
    html = client.get(path).content.decode().partition('id="first-line"')[2].partition(">")[2]
    return re.sub(r"\s+", " ", unescape(html.partition("</p>")[0]))


def assert_in_order(steps: list[str], text: str) -> None:
    positions = [text.find(step) for step in steps]
    assert -1 not in positions
    assert positions == sorted(positions)


# The answer for the user, and the waterfall ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentences"),
    [
        ({}, ["Apple or Google took the notification for your phone 4.0 s later.", "1 try failed", "Do Not Disturb"]),
        ({"state": "dead_token"}, ["no longer know your phone", "it then registers again by itself"]),
        ({"state": "undeliverable"}, ["did not accept it"]),
        ({"state": "unconfirmed"}, ["It may have arrived"]),
        ({"state": "expired"}, ["within the time that a notification is useful", "Open Status to read your messages"]),
        ({"state": "withdrawn"}, ["no longer registered for notifications"]),
        ({"state": "coalesced"}, ["woke your phone for several messages"]),
        ({"state": "retrying", "finished_at": None}, ["has not been delivered yet", "We keep trying until 20"]),
    ],
)
def test_the_answer_for_the_user_is_plain_and_says_nothing_that_only_staff_may_know(
    admin_client: Client, fields: dict[str, object], sentences: list[str]
) -> None:
    notification = make_story(**fields)
    EndedAttempt.objects.filter(notification=notification).update(error="teapot")
    html = admin_client.get(path_of(notification)).content.decode()
    answer = unescape(re.search(r'<p id="answer"[^>]*>([^<]*)</p>', html)[1])
    assert [sentence for sentence in sentences if sentence not in answer] == []
    assert 'data-copies="answer"' in html
    known = [notification.public_key_hash.hex(), notification.installation_id, "gorush", "teapot"]
    assert [word for word in [*known, "unreachable", "device-token", "ciphertext"] if word in answer] == []


def test_the_answer_for_the_user_says_that_staff_stopped_a_push_and_that_sending_is_stopped(
    admin_client: Client,
) -> None:
    dropped = make_due(at=timezone.now())
    rows.make_halt("drained", reason="a secret plan", by="ann")
    assert "Sending is stopped at this moment." in timeline(admin_client, dropped)
    operate(admin_client, dropped, "drop", "as she asked")
    answer = timeline(admin_client, dropped).partition("Answer for the user")[2].partition("Copy the answer")[0]
    assert "our staff stopped it" in answer
    assert "a secret plan" not in answer


def test_each_step_has_a_bar_on_one_axis_of_time(admin_client: Client) -> None:
    """The bars are HTML with sizes, so that they need no script. Of a halt before the message, the rest is shown."""
    notification = make_story()
    trip(GOOGLE, "41 of 50 refused", -120, 2, notification)
    html = admin_client.get(path_of(notification)).content.decode()
    assert ">0 to 4.0 s</th>" in html
    shown = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html.partition('id="timeline"')[2], re.DOTALL):
        if sizes := re.search(r"left:min\(([\d.]+)%,100% - 3px\);width:([\d.]+)%", row):
            [heading] = re.findall("<strong>(.*?)</strong>", row)
            shown[heading] = (float(sizes[1]), float(sizes[2]))
    assert shown["Envelope received"] == (0, 0)
    assert shown["Halted by the server:"] == (0, 0)
    assert shown["Halt ended by the server:"][0] == 0
    assert 40 < shown["Halt ended by the server:"][1] < 60
    begin, width = shown["Attempt 2:"]
    assert begin == shown["Attempt 2 started"][0]
    assert width > 0
    assert all(0 <= left <= 100 and left + width <= 100.1 for left, width in shown.values())


# Steps ----------------------------------------------------------------------------------------------------------------


def test_a_timeline_goes_from_the_envelope_to_the_reply(admin_client: Client) -> None:
    notification = make_story()
    EndedAttempt.objects.filter(notification=notification, number=2).update(late_code="device_gone", is_probe=True)
    text = timeline(admin_client, notification)
    steps = [
        *("Envelope received", "Envelope processed", "Request accepted", "Notification created"),
        *("Attempt 1 started", "Attempt 1: transient", "Reply recorded", "Reply published", "Reply confirmed"),
        "Attempt 2 started at gorush, as a probe: the breaker of its app was open, or its gateway was unreachable",
        *("Attempt 2: delivered", "Finished: delivered"),
    ]
    assert_in_order(steps, text)
    assert text.count("started at gorush, as a probe") == 1
    assert "it was sent as a probe" in first_line(admin_client, path_of(notification))
    # +2.5 s between publishing and confirming
    told = ("+40 ms", "+2.5 s", "reported later: device_gone", "Nothing: it is over.")
    assert [words for words in told if words not in text] == []
    rows.delete_all(InboundEnvelope)
    assert "Request accepted" in timeline(admin_client, notification)


def test_attempts_that_failed_as_the_one_before_are_one_step(admin_client: Client) -> None:
    began = timezone.now() - timedelta(minutes=10)
    notification = rows.make_notification(at=began, attempt_count=5)
    for number, code in enumerate(["http_503", "http_503", "http_503", "http_429", "http_503"], 1):
        at = began + timedelta(minutes=number)
        rows.make_attempt(notification, number=number, outcome="transient", code=code, started_at=at)
    text = timeline(admin_client, notification)
    assert "Attempts 2 to 3: transient as attempt 1; this is when the last ended" in text
    assert [f"Attempt {number} started" in text for number in range(1, 6)] == [True, False, False, True, True]
    claim = {"attempt_count": 6, "attempt_id": 0, "claimed_at": timezone.now(), "gateway": "gorush", "token_type": 2}
    OpenNotification.objects.filter(pk=notification.pk).update(state="in_flight", **claim)
    text = timeline(admin_client, notification)
    assert ("Attempt 6 started" in text, "Attempt 6:" in text) == (True, False)


def test_a_timeline_shows_the_trace_of_its_request_where_it_is_traced(
    admin_client: Client, settings: LazySettings
) -> None:
    notification = make_story()
    assert " Trace " not in timeline(admin_client, notification)
    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    trace_id = trace_of(notification.request.source_key).id.hex()
    assert f" Trace {trace_id} " in timeline(admin_client, notification)
    settings.TRACE_PAGE = "https://jaeger.example.org/trace/{trace_id}"
    for url in (path_of(notification), request_timeline_url(notification.request_id)):
        html = admin_client.get(url).content.decode()
        assert f'href="https://jaeger.example.org/trace/{trace_id}"' in html
    settings.TRACES_SHARE = 0.0
    assert trace_id not in timeline(admin_client, notification)


def test_the_pages_of_a_push_of_xmpp_lead_to_its_device_and_to_no_user(admin_client: Client) -> None:
    notification = rows.make_xmpp_push()
    text, route = timeline(admin_client, notification), notification.route_id
    steps = ["Request accepted through xmpp", "Answered", "Notification created grade high", "Attempt 1: delivered"]
    assert [step for step in steps if step not in text] == []
    assert [step for step in ("Status message", "Envelope received") if step in text] == []

    device = f"/admin/xmpp_bridge/device/{notification.installation_id}/change/"
    pages = [path_of(notification), page_of(notification), page_of(notification.route), page_of(notification.request)]
    shown = [admin_client.get(page).content.decode() for page in pages]
    assert [device in html for html in shown] == [True, True, True, False]
    assert not [html for html in shown if "/users//" in html or "/inboundenvelope/" in html.partition('id="main"')[2]]
    html = admin_client.get(device).content.decode()
    assert f"route__id__exact={route}" in html
    assert f"/admin/registrations/route/{route}/change/" in html


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        *(("pending", "is being published"), ("published", "looks for it in a store at 20")),
        *(("unconfirmed", "may not have got it"), ("abandoned", "the sender got none"), ("confirmed", "it is over.")),
    ],
)
def test_a_timeline_shows_the_state_of_the_reply(admin_client: Client, state: str, sentence: str) -> None:
    notification = make_story()
    rows.delete_all(OutboundReply)
    rows.make_reply(envelope_hash=notification.request.source_key, state=state)
    assert sentence in timeline(admin_client, notification)


@pytest.mark.parametrize(("state", "shown"), [("confirmed", "-"), ("pending", "in 2 min")])
def test_only_a_reply_under_way_has_a_next_attempt(admin_client: Client, state: str, shown: str) -> None:
    reply = rows.make_reply(state=state, due_at=timezone.now() + timedelta(minutes=2.5))
    assert re.search(rf"Next attempt:? {shown} ", words_of(admin_client, page_of(reply)))


def test_lists_lead_to_timelines(admin_client: Client) -> None:
    notification = make_story()
    own, of_request = f'href="{path_of(notification)}"', request_timeline_url(notification.request_id)
    lists = {"notification": own, "attempt": own, "notificationrequest": f'href="{of_request}"'}
    lists[f"notificationrequest/{notification.request_id}/change"] = own
    pages = {name: admin_client.get(f"/admin/notifications/{name}/").content.decode() for name in lists}
    assert [name for name in lists if lists[name] not in pages[name]] == []


def fail(notification: Notification, token: str, error: str) -> None:
    """Make an attempt fail with an error text of gorush."""
    now = timezone.now()
    with transaction.atomic():
        [held] = claimed(notification, now=now)
    body = {"success": "ok", "counts": 1, "logs": [{"type": "failed-push", "token": token, "error": error}]}
    result: Result = read_response(200, orjson.dumps(body), held, current_rules().rules)
    with transaction.atomic():
        recorded([(held, result)], now=now)


def test_the_error_text_leads_to_its_rule_and_its_class_is_explained() -> None:
    load_shipped()
    token = "f" * 40
    apple = {"token_type": TokenType.APN, "app_topic": "im.status.ethereum", "device_token": token}
    known, unknown = (make_due(route=rows.make_registration(route=rows.make_route(**apple)).route) for _ in range(2))
    fail(known, token, "Unregistered")
    fail(unknown, token, f"teapot 17 has no {token}")
    support, page = staff("support"), path_of(known)

    assert f'href="{page}"' in support.get(page_of(known.attempts.get())).content.decode()
    assert "“unregistered”" in words_of(support, page)
    assert labels.CLASSES["dead"] in words_of(support, page)
    rule = GatewayErrorRule.objects.get(code="Unregistered", platform="ios")
    assert f'href="{page_of(rule)}"' in support.get(page).content.decode()
    shown = timeline(support, unknown)
    assert "(unknown, “teapot <n> has no <token>”)" in shown
    assert token not in shown


# The first line and the next step -------------------------------------------------------------------------------------
LATER, OPEN = timezone.now() + timedelta(hours=1), {"finished_at": None}


@pytest.mark.parametrize(
    ("fields", "line", "step"),
    [
        ({}, "Delivered after 4.0 s: 1 attempt failed, the last with unreachable.", "it is over."),
        (
            {"state": "expired"},
            "Not delivered. Its time to live ran out before an attempt succeeded. Before: 1 attempt",
            "",
        ),
        ({"state": "coalesced"}, "Not sent by itself. Merged into another push to the same address: more than", ""),
        ({"state": "unconfirmed"}, "Perhaps delivered. It may have arrived.", ""),
        (
            {"state": "retrying", "due_at": LATER} | OPEN,
            "Not delivered yet: 1 attempt failed, the last with unreachable. The next attempt is due at 20",
            "It expires at",
        ),
        (
            {"state": "in_flight", "due_at": LATER} | OPEN,
            "unreachable. A worker is sending it.",
            "A worker is sending it",
        ),
        ({"state": "pending", "route": None, "due_at": LATER} | OPEN, "", "Its recipient unregistered"),
    ],
)
def test_the_first_line_shows_the_reason_and_the_timeline_the_next_step(
    admin_client: Client, fields: dict[str, object], line: str, step: str
) -> None:
    notification = make_story(**fields)
    assert line in first_line(admin_client, path_of(notification))
    assert step in timeline(admin_client, notification)


def test_no_attempt_is_announced_after_the_expiry(admin_client: Client) -> None:
    notification = make_story(state="retrying", due_at=LATER, expires_at=LATER, **OPEN)
    text = timeline(admin_client, notification)
    assert "No attempt is due before it expires. It expires at" in text
    assert "The next attempt is due" not in text
    assert re.search(r"Next attempt:? - ", words_of(admin_client, page_of(notification)))


def test_the_end_of_a_push_that_failed_too_often_shows_its_reason(admin_client: Client) -> None:
    notification = make_story(state="undeliverable")
    assert "Apple or Google can never accept this push" in timeline(admin_client, notification)
    EndedAttempt.objects.filter(notification=notification).update(is_counted=True)
    line = first_line(admin_client, path_of(notification))
    assert "Nothing was ever delivered to its address, and 2 attempts failed while its gateway delivered" in line


def test_the_first_line_of_a_request_shows_why_nothing_was_sent(admin_client: Client) -> None:
    decided = pack([Decided(0, Verdict.SUPPRESSED, 1, Wish.CHAT_MUTED), Decided(1, Verdict.WRONG_TOKEN, 1)])
    request = rows.make_answered_request(decided=decided)
    line = first_line(admin_client, request_timeline_url(request.pk))
    assert line.startswith("Nothing was sent: Suppressed by the recipient: its chat is muted. Wrong access")

    rows.make_notification(request=request)
    line = first_line(admin_client, request_timeline_url(request.pk))
    assert line.startswith("2 pushes decided at once: Suppressed by")
    assert line.endswith("It brought 1 notification with a timeline of its own.")


# What was decided at once, on the page of the user --------------------------------------------------------------------
MUTED, CHOSEN, BLOCKED = b"m" * 64, b"c" * 64, b"b" * 64
SECRETS = (TOKEN, "device-token", "an-outdated-token", MUTED.hex(), BLOCKED.hex(), b"ciphertext".hex(), "ciphertext")


def decisions_shown(client: Client) -> list[tuple[str, str]]:
    """Return the decisions on the user's page, newest first, each with its reason. Nothing secret may be on it."""
    html = client.get(f"/admin/users/{CLIENT.key_hash.hex()}/").content.decode()
    assert not [secret for secret in SECRETS if secret in html]
    feed = html.partition("What happened</h2>")[2].partition("</section>")[0]
    found = re.findall(
        r'data-label="What">(.*?)</td><td data-label="Detail">(.*?)<a href="([^"]*/requests/[^"]+)"', feed
    )
    for *_, url in found:
        assert client.get(url).status_code == 200
    types = r" (Message|Mention|Request to join community|Type \d+)\.$"
    texts = [(re.sub("<[^>]+>", "", word), re.sub("<[^>]+>", "", unescape(why)).strip()) for word, why, _ in found]
    return [(word, re.sub(types, "", why)) for word, why in texts]


def test_the_page_of_a_user_shows_what_was_suppressed_refused_or_merged(
    admin_client: Client, settings: LazySettings
) -> None:
    """A user without the pushes of one friend has blocked them, or the friend has outdated data."""
    settings.ROUTE_LIMITS = (Limit(2, 3600.0),)
    wishes = {"block_mentions": True, "muted_chat_list": (MUTED,), "blocked_chat_list": (BLOCKED,)}
    process = say(registration(**wishes))
    # Of the last four, two are sent, the third wakes the phone, and the fourth is merged into it.
    sent = [{"chat_id": MUTED}, {"type": 2, "chat_id": CHOSEN}, {"author": BLOCKED, "message": b"ciphertext"}]
    for number, fields in enumerate([*sent, *[{"chat_id": CHOSEN}] * 4]):
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
    wrong, unknown = push(access_token="an-outdated-token"), push(installation_id=str(uuid4()))
    say(request(*[wrong] * 99, push(OUTSIDER)), process=process)
    assert DecidedAtOnce.objects.count() == 0
    say(request(*[wrong] * 97, unknown, push(chat_id=MUTED), push(OUTSIDER)), process=process)
    assert DecidedAtOnce.objects.count() == 3
    assert {found for found, _ in decisions_shown(admin_client)} == {"wrong_token", "not_registered", "suppressed"}


# Halts and actions of staff -------------------------------------------------------------------------------------------


def staffed(row: Model, message: str, *, minutes: float) -> None:
    """Log what ann did to a row, ``minutes`` after the beginning of the story."""
    ann, _ = User.objects.get_or_create(username="ann")
    note(ann, row, message, at=timezone.now() - timedelta(minutes=5 - minutes))


def test_a_timeline_and_its_first_line_show_the_halts_that_delay_a_push(admin_client: Client) -> None:
    notification = make_story(state="retrying", due_at=timezone.now(), **OPEN)
    rows.make_channel(GOOGLE)
    rows.make_halt("paused", GOOGLE, reason="new key")
    rows.make_halt("tripped", GOOGLE, reason="41 of 50 refused")
    rows.make_halt("unreachable", gateway="gorush")
    Route.objects.update(state="disabled", disabled_reason="operator")
    text = timeline(admin_client, notification)
    assert "Halted by the server: tripped 41 of 50 refused" in text
    assert "Its app is paused: new key" in text
    assert "Its gateway gorush cannot be reached" in text
    assert "Its route is disabled (operator)" in text

    halts.begin(halts.Kind.DRAINED, by="ann", reason="gorush moves", now=timezone.now())
    line = first_line(admin_client, path_of(notification))
    assert "Delivery is stopped: it waits until somebody starts it again (by ann, since 20" in line
    assert "The next attempt is due" not in timeline(admin_client, notification)


def halted(kind: str, begun: float, ended: float, why: str, over: str) -> None:
    """Halt everything, or an app, by ann, from and until these minutes after the beginning of the story."""
    begin = timezone.now() - timedelta(minutes=5)
    times = {"since": begin + timedelta(minutes=begun), "ended_at": begin + timedelta(minutes=ended)}
    rows.make_halt(kind, None if kind == "drained" else GOOGLE, reason=why, by="ann", ended_by="ann", **times)
    subject = Halt() if kind == "drained" else Channel.objects.get(token_type=GOOGLE.token_type)
    staffed(subject, f"It began. Why: {why}", minutes=begun)
    staffed(subject, f"It is over. Why: {over}", minutes=ended)


def test_the_beginning_and_the_end_of_a_halt_are_steps_of_a_timeline(admin_client: Client) -> None:
    notification = make_story(finished_at=timezone.now())
    app = rows.make_channel(GOOGLE)
    halted("paused", -90, -80, "it was over", "it was over")
    halted("drained", -60, 3, "gorush moves", "it moved")  # from before the notification was made
    halted("paused", 1, 2, "new key", "it works")
    staffed(app, "Undid the disabling of 3 addresses. Why: wrong key", minutes=2.5)
    text = timeline(admin_client, notification)
    steps = [
        *("Halted by ann: drained gorush moves", "Notification created", "Halted by ann: paused new key"),
        *("Halt ended by ann: it was paused: it works", "By ann: app: Undid the disabling of 3"),
        "Halt ended by ann: it was drained: it moved",
    ]
    assert_in_order(steps, text)
    assert [words for words in ("it was over", "It began", "It is over") if words in text] == []
    assert "Timeline: 5 min" in text  # without the time before it
    line = first_line(admin_client, path_of(notification))
    assert "delivery was stopped by ann" in line
    assert "its app was paused by ann" in line
    html = admin_client.get(path_of(notification)).content.decode().partition('id="timeline"')[2]
    assert len(set(re.findall(r'href="(/admin/admin/logentry/\d+/change/)"', html))) == 4


def trip(app: AppKey, reason: str, begun: float, ended: float, notification: Notification, **options: str) -> None:
    """Trip an app these seconds after the notification was made, and close its breaker."""
    at = notification.created_at
    halts.begin(halts.Kind.TRIPPED, app, reason=reason, now=at + timedelta(seconds=begun))
    halts.end(halts.Kind.TRIPPED, app, now=at + timedelta(seconds=ended), **options)


def lose_gateway(begun: timedelta, ended: timedelta, notification: Notification) -> None:
    halts.begin(halts.Kind.UNREACHABLE, "gorush", now=notification.created_at + begun)
    halts.end(halts.Kind.UNREACHABLE, "gorush", now=notification.created_at + ended)


def test_halts_that_the_server_began_and_ended_are_steps_between_beginning_and_end(admin_client: Client) -> None:
    notification = make_story()
    trip(GOOGLE, "it was over", -540, -480, notification)
    trip(GOOGLE, "41 of 50 refused", -120, 1, notification)
    lose_gateway(timedelta(seconds=2), timedelta(seconds=3), notification)
    trip(GOOGLE, "it lasted", 3.5, 60, notification)
    trip(GOOGLE, "much later", 100, 120, notification)
    text = timeline(admin_client, notification)
    steps = [
        *("Halted by the server: tripped 41 of 50 refused", "Notification created"),
        "Halt ended by the server: a probe was delivered",
        *("Halted by the server: unreachable gorush", "Halt ended by the server: a probe reached the gateway"),
        "Halted by the server: tripped it lasted",
    ]
    assert_in_order(steps, text)
    assert text.count("Halt ended") == 2
    assert [reason for reason in ("it was over", "much later") if reason in text] == []
    line = first_line(admin_client, path_of(notification))
    assert "its gateway was unreachable for 1.0 s" in line  # not for the time before


def test_the_first_line_adds_up_what_halts_of_a_kind_took_from_the_life_of_a_notification(
    admin_client: Client,
) -> None:
    notification = make_story(state="expired")
    lived, moment = notification.finished_at - notification.created_at, timedelta(milliseconds=100)
    lose_gateway(timedelta(hours=-3), moment, notification)
    lose_gateway(lived - moment, lived + timedelta(hours=4), notification)
    line = first_line(admin_client, path_of(notification))
    assert line.count("its gateway") == 1
    assert "its gateway was unreachable for 200 ms" in line


@pytest.mark.parametrize("has_attempt", [True, False])
def test_the_causes_of_a_delay_stay_when_the_recipient_has_unregistered(
    admin_client: Client, *, has_attempt: bool
) -> None:
    notification = make_story(state="withdrawn", finished_at=timezone.now())
    queue = Queue.objects.create(gateway="gorush", token_type=2, is_proven=False)
    EndedNotification.objects.filter(pk=notification.pk).update(queue_id=queue.pk)
    if not has_attempt:
        EndedAttempt.objects.all().delete()
    rows.make_channel(GOOGLE)
    halted("paused", 1, 2, "new key", "it works")
    trip(GOOGLE, "41 of 50 refused", 0, 1, notification)
    Registration.objects.update(route=None)
    Route.objects.all().delete()
    line = first_line(admin_client, path_of(notification))
    assert line.startswith(
        "Not sent. The recipient unregistered. Before: its app was paused by ann, its app was tripped"
    )
    assert "Halted by the server: tripped 41 of 50 refused" in timeline(admin_client, notification)


def test_a_breaker_that_staff_closed_is_begun_by_the_server_and_ended_by_them(admin_client: Client) -> None:
    notification, app = make_story(), rows.make_channel(GOOGLE)
    trip(GOOGLE, "41 of 50 refused", 0, 1, notification, by="ann")
    staffed(app, "Closed the breaker. Why: the key is new", minutes=0.05)
    text = timeline(admin_client, notification)
    assert "Halted by the server: tripped 41 of 50 refused" in text
    assert text.count("Halt ended by") == 1
    assert "Halt ended by ann: it was tripped: the key is new" in text


def test_staff_actions_stand_in_the_timeline_with_who_and_why_and_those_on_other_rows_do_not() -> None:
    dropped, disabled = (make_due(at=timezone.now()) for _ in range(2))
    registration = Registration.objects.get(route=disabled.route)
    OpenNotification.objects.filter(pk=disabled.pk).update(
        public_key_hash=registration.public_key_hash, installation_id=registration.installation_id
    )
    OpenNotification.objects.filter(pk=dropped.pk).update(due_at=timezone.now() + timedelta(hours=1))
    note(User.objects.create_user("ann"), rows.make_notification(), "Dropped 1 notification. Why: another")
    operator = staff("operator")
    operate(operator, dropped, "now", "gorush is back")
    operate(operator, dropped, "drop", "as she asked")
    operate(operator, registration, "disable", "too many complaints")

    shown, name = timeline(operator, dropped), User.objects.latest("pk").username
    assert f"By {name}: notification: 1 notification due now. Why: gorush is back" in shown
    assert f"Finished: withdrawn {name} withdrew it. Dropped 1 notification. Why: as she asked" in shown
    assert "Why: another" not in shown
    assert f"Finished: withdrawn {name} withdrew it. Disabled 1 registration." in timeline(operator, disabled)
    html = operator.get(path_of(disabled)).content.decode().partition('id="timeline"')[2]
    [entry] = set(re.findall(r'href="(/admin/admin/logentry/\d+/change/)"', html))
    assert "too many complaints" in words_of(operator, entry)
