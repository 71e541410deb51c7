"""Pushes beyond each limit, from envelopes in the inbox to what staff read: overview, page of a user, and timelines."""

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from kit.buckets.bucket import Limit
from notifications import retention
from notifications.acceptance import acceptance
from notifications.acceptance.storing import Beyond, count_beyond
from notifications.messages import Effect, NotificationType, PushLimit
from notifications.models import BeyondLimit, Notification
from notifications.queues import halts
from notifications.queues.capacity import Admission
from pushserver.console.waku.erasure import forget
from tests.console.reading import allowed_to, words_of
from tests.rig.conversation import CLIENT, CONTACT, TOKEN, push, put, registration, request, say
from tests.rig.delivering import Process
from tests.rig.rows import end_open
from waku_bridge.codec.keys import Identity
from xmpp_bridge.limits import DeviceLimit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("alive")]
USER_PAGE = f"/admin/users/{CLIENT.key_hash.hex()}/"
CHAT, CIPHERTEXT = b"c" * 64, b"ciphertext of a message"
SHORT = (Limit(2, 10.0), Limit(100, 3600.0))
LONG = (Limit(100, 10.0), Limit(2, 7200.0))
ALLOWS_ALL = (Limit(10_000, 10.0),)


@pytest.fixture(autouse=True)
def unused_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission()
    monkeypatch.setattr(acceptance, "own_admission", lambda: admission)


def flood(count: int, *, process: Process | None = None, **fields: object) -> Process:
    """Have one sender ask for pushes about messages of their own, one request after another at the same moment."""
    now = timezone.now()
    process = process or say(registration(allowed_mentions_chat_list=(CHAT,)))
    for number in range(count):
        message = {"chat_id": CHAT, "message": CIPHERTEXT} | fields
        say(request(push(**message), message_id=b"message %d" % number), now=now, process=process)
    return process


def beyond_on(client: Client, path: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows below a heading or caption of a page. Nothing secret may be on the page."""
    html = client.get(path).content.decode()
    for secret in (TOKEN, CIPHERTEXT.hex(), CIPHERTEXT.decode(), CHAT.hex(), "device-token"):
        assert secret not in html
    table = html.partition(heading)[2].partition("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", table)]
    return [[re.sub("<[^>]+>", "", cell) for cell in row] for row in rows[1:]]


def overview(client: Client) -> list[list[str]]:
    return beyond_on(client, "/admin/", 'id="beyond"')


MERGED, WAKE_UP = "merged into another push to the same address", "arrived as a wake-up"
IN_10_S, IN_2_H, MENTIONS = "more than 2 pushes in 10 s", "more than 2 pushes in 2 h", "more than 30 pushes in 10 s"


@pytest.mark.parametrize(
    ("limits", "count", "words", "merged"),
    [
        ({"ROUTE_LIMITS": SHORT}, 5, f"{IN_10_S} to one address", 2),
        ({"ROUTE_LIMITS": LONG}, 5, f"{IN_2_H} to one address", 2),
        ({"SENDER_LIMITS": SHORT}, 5, f"{IN_10_S} of one sender", 2),
        ({"SENDER_LIMITS": LONG}, 5, f"{IN_2_H} of one sender", 2),
        ({"GLOBAL_LIMITS": SHORT}, 5, f"{IN_10_S} of all senders", 2),
        ({"GLOBAL_LIMITS": LONG}, 5, f"{IN_2_H} of all senders", 2),
        # with a limit of their own
        ({"ROUTE_LIMITS": SHORT}, 32, f"{MENTIONS} to one address that are mentions or requests", 1),
    ],
)
def test_overview_and_page_of_a_user_show_what_became_of_pushes_beyond_a_limit_and_which(
    admin_client: Client, settings: LazySettings, limits: dict[str, Any], count: int, words: str, merged: int
) -> None:
    for name in ("ROUTE_LIMITS", "SENDER_LIMITS", "GLOBAL_LIMITS"):
        setattr(settings, name, limits.get(name, ALLOWS_ALL))
    flood(count, type=NotificationType.MESSAGE if count == 5 else NotificationType.MENTION)

    found = {row[0]: row[1:] for row in overview(admin_client)}
    assert found == {f"Merged{MERGED[6:]}: {words}": [str(merged)] * 3, f"Arrived{WAKE_UP[7:]}: {words}": ["1"] * 3}
    details = [row[2] for row in beyond_on(admin_client, f"{USER_PAGE}?show=merged", "What happened</h2>")]
    pushes = "1 push" if merged == 1 else f"{merged} pushes"
    assert [detail for detail in details if detail.startswith(f"{MERGED}: {words}: {pushes}")]
    details = [row[2] for row in beyond_on(admin_client, f"{USER_PAGE}?show=delivered", "What happened</h2>")]
    assert [detail for detail in details if detail.startswith(f"{WAKE_UP}: {words}: 1 push")]


def test_pushes_that_wait_for_one_address_are_merged_and_those_for_a_full_queue_refused(
    admin_client: Client, settings: LazySettings
) -> None:
    settings.MAX_OPEN_PER_ROUTE = 2
    process = say(registration())
    halts.begin(halts.Kind.DRAINED, by="ann", reason="gorush moves", now=timezone.now())
    flood(4, process=process)
    put(*(request(push(), message_id=b"of one batch %d" % number) for number in range(4)))
    process.process_batch(now=timezone.now())
    assert overview(admin_client) == [[f"Merged{MERGED[6:]}: more than 2 waited for one address", "6", "6", "6"]]

    settings.MAX_OPEN_PER_ROUTE, settings.MAX_OPEN_NOTIFICATIONS = 10_000, 1
    say(request(push(), message_id=b"another"), process=process)
    assert ["Refused with an error: the queue of its app was full", "1", "1", "1"] in overview(admin_client)
    assert "refused with an error: the queue of its app was full: 1 push " in words_of(admin_client, USER_PAGE)


def test_the_timeline_of_each_push_beyond_a_limit_shows_what_became_of_it(
    admin_client: Client, settings: LazySettings
) -> None:
    settings.ROUTE_LIMITS = SHORT
    flood(4)
    wake_up = Notification.objects.get(is_wake_up=True)
    path = f"/admin/timelines/{wake_up.pk}/"
    words = "more than 2 pushes in 10 s to one address"
    assert f"Beyond a limit: shortened Arrived as a wake-up: {words}." in words_of(admin_client, path)
    end_open("delivered", at=wake_up.created_at + timedelta(seconds=4))
    assert f"Arrived as a wake-up: {words}. Delivered after 4.0 s." in words_of(admin_client, path)

    [merged] = re.findall(r"/admin/timelines/requests/\d+/", admin_client.get(USER_PAGE).content.decode())
    assert f"Nothing was sent: Merged{MERGED[6:]}: {words}." in words_of(admin_client, merged)


def test_periods_of_the_overview_hold_the_pushes_of_their_minutes(admin_client: Client) -> None:
    now = timezone.now()
    for ago in (timedelta(), timedelta(minutes=30), timedelta(hours=5), timedelta(days=2)):
        count_beyond([Beyond(CLIENT.key_hash, "phone", Effect.MERGED, PushLimit.ADDRESS)], now=now - ago)
    [[_, *numbers]] = overview(admin_client)
    assert numbers == ["1", "2", "3"]


def test_limits_of_a_bridge_are_shown_in_its_words_and_those_of_another_version_by_their_names(
    admin_client: Client,
) -> None:
    """Another version runs during an upgrade, and after a rollback."""
    now = timezone.now()
    count_beyond([Beyond(b"", "device", Effect.REFUSED, DeviceLimit.CALLS)], now=now)
    count_beyond([Beyond(CLIENT.key_hash, "phone", Effect.MERGED, "moon_phase")], now=now)
    BeyondLimit.objects.filter(push_limit="moon_phase").update(effect="eclipsed")
    assert {words for words, *_ in overview(admin_client)} == {
        "Refused with an error: more than 6 calls a minute to one phone",
        "Eclipsed: moon_phase",
    }
    assert "eclipsed: moon_phase: 1 push " in words_of(admin_client, USER_PAGE)


def test_only_people_who_may_view_notifications_see_the_limits_of_a_user(settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    flood(4)
    assert "one address" in words_of(allowed_to("view_registration", "view_notification"), USER_PAGE)
    User.objects.all().delete()
    assert "one address" not in words_of(allowed_to("view_registration"), USER_PAGE)


# The counter ----------------------------------------------------------------------------------------------------------


def test_a_flood_has_a_row_for_each_effect_and_day_and_a_repeat_counts_once(settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    process = flood(40)
    repeated = request(push(chat_id=CHAT), message_id=b"message 41")
    say(repeated, repeated, process=process)
    say(repeated, process=process)
    counted = BeyondLimit.objects.exclude(installation_id="").values_list("effect", "push_limit", "count")
    assert sorted(counted) == [("merged", "address", 38), ("shortened", "address", 1)]


def test_pushes_to_nobody_leave_no_row(settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    process = say(registration())
    for number in range(5):
        say(request(*[push(Identity(CONTACT.private_key))] * 3, message_id=b"%d" % number), process=process)
    assert not BeyondLimit.objects.exists()


def test_the_counts_of_a_user_are_forgotten_with_the_user_and_after_the_retention(settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    flood(4)
    now = timezone.now()
    count_beyond([Beyond(CONTACT.key_hash, "phone", Effect.MERGED, PushLimit.ADDRESS)], now=now)
    forget(CLIENT.key_hash, now=now)
    names = BeyondLimit.objects.exclude(installation_id="").values_list("installation_id", flat=True)
    assert list(names) == ["phone"]
    list(retention.purge(now=now + timedelta(days=31), keep=timedelta(days=30)))
    assert not BeyondLimit.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_no_batch_waits_for_the_count_of_another_one() -> None:
    """Two workers count pushes to the same installation, and the first one does not commit."""
    now, is_counted = timezone.now(), threading.Event()
    pushes = [Beyond(CLIENT.key_hash, "phone", Effect.MERGED, PushLimit.ADDRESS)]

    def work() -> None:
        with transaction.atomic():
            count_beyond(pushes, now=now)
        connection.close()
        is_counted.set()

    with transaction.atomic():
        count_beyond(pushes, now=now)
        BeyondLimit.objects.exists()  # sends the statement
        threading.Thread(target=work).start()
        assert is_counted.wait(20)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    counts = BeyondLimit.objects.filter(begin_at=day, installation_id="phone").values_list("count", flat=True)
    assert sum(counts) == 2
