"""Pushes beyond each limit, from envelopes in the inbox to what staff read: overview, page of a user, and timelines."""

import re
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from kit.buckets.bucket import Limit
from kit.buckets.shared import SharedBuckets
from notifications import retention
from notifications.acceptance import acceptance
from notifications.acceptance.limits import Beyond, count_beyond
from notifications.messages import Effect, NotificationType, PushLimit
from notifications.models import BeyondLimit, Notification
from notifications.queues import halts
from notifications.queues.admission import Admission
from tests.console.test_find import words_of
from tests.rig.conversation import CLIENT, CONTACT, TOKEN, push, put, registration, request, say
from tests.rig.delivering import Process
from waku_bridge.codec.keys import Identity
from waku_bridge.removal import erasure
from xmpp_bridge.rules.limits import DeviceLimit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("alive")]
USER_PAGE = f"/admin/users/{CLIENT.key_hash.hex()}/"
CHAT, CIPHERTEXT = b"c" * 64, b"ciphertext of a message"
SHORT = (Limit(2, 10.0), Limit(100, 3600.0))
LONG = (Limit(100, 10.0), Limit(2, 7200.0))
ALLOWS_ALL = (Limit(10_000, 10.0),)


@pytest.fixture(autouse=True)
def unused_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the process buckets that no earlier test has spent from."""
    buckets, admission = SharedBuckets(), Admission()
    monkeypatch.setattr(acceptance, "own_buckets", lambda: buckets)
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


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"ROUTE_LIMITS": SHORT}, "more than 2 pushes in 10 s to one address"),
        ({"ROUTE_LIMITS": LONG}, "more than 2 pushes in 2 h to one address"),
        ({"SENDER_LIMITS": SHORT}, "more than 2 pushes in 10 s of one sender"),
        ({"SENDER_LIMITS": LONG}, "more than 2 pushes in 2 h of one sender"),
        ({"GLOBAL_LIMITS": SHORT}, "more than 2 pushes in 10 s of all senders"),
        ({"GLOBAL_LIMITS": LONG}, "more than 2 pushes in 2 h of all senders"),
    ],
)
def test_overview_and_page_of_a_user_show_what_became_of_pushes_beyond_a_limit_and_which(
    admin_client: Client, settings: LazySettings, limits: dict[str, Sequence[Limit]], words: str
) -> None:
    for name in ("ROUTE_LIMITS", "SENDER_LIMITS", "GLOBAL_LIMITS"):
        setattr(settings, name, limits.get(name, ALLOWS_ALL))
    flood(5)

    found = {row[0]: row[1:] for row in overview(admin_client)}
    assert found == {f"Merged{MERGED[6:]}: {words}": ["2"] * 3, f"Arrived{WAKE_UP[7:]}: {words}": ["1"] * 3}
    of_user = {row[0]: row[1] for row in beyond_on(admin_client, USER_PAGE, "Beyond limits</h2>")}
    assert of_user == {f"{MERGED}: {words}": "2", f"{WAKE_UP}: {words}": "1"}


def test_mentions_and_requests_are_beyond_a_limit_of_their_own(admin_client: Client, settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    flood(32, type=NotificationType.MENTION)
    assert [row[0] for row in overview(admin_client)] == [
        f"Merged{MERGED[6:]}: more than 30 pushes in 10 s to one address that are mentions or requests",
        f"Arrived{WAKE_UP[7:]}: more than 30 pushes in 10 s to one address that are mentions or requests",
    ]


def test_pushes_that_wait_for_one_address_are_merged(admin_client: Client, settings: LazySettings) -> None:
    settings.MAX_OPEN_PER_ROUTE = 2
    process = say(registration())
    halts.start_draining(by="ann", why="gorush moves", now=timezone.now())
    flood(4, process=process)
    put(*(request(push(), message_id=b"of one batch %d" % number) for number in range(4)))
    process.process_batch(now=timezone.now())
    assert overview(admin_client) == [[f"Merged{MERGED[6:]}: more than 2 waited for one address", "6", "6", "6"]]


def test_pushes_for_a_full_queue_are_refused(admin_client: Client, settings: LazySettings) -> None:
    settings.MAX_OPEN_NOTIFICATIONS = 1
    process = say(registration())
    halts.start_draining(by="ann", why="gorush moves", now=timezone.now())
    flood(2, process=process)
    assert overview(admin_client) == [["Refused with an error: the queue of its app was full", "1", "1", "1"]]
    assert "refused with an error: the queue of its app was full 1" in words_of(admin_client, USER_PAGE)


def test_the_timeline_of_each_push_beyond_a_limit_shows_what_became_of_it(
    admin_client: Client, settings: LazySettings
) -> None:
    settings.ROUTE_LIMITS = SHORT
    flood(4)
    wake_up = Notification.objects.get(is_wake_up=True)
    path = f"/admin/timelines/{wake_up.pk}/"
    words = "more than 2 pushes in 10 s to one address"
    assert f"Beyond a limit: shortened Arrived as a wake-up: {words}." in words_of(admin_client, path)
    Notification.objects.filter(pk=wake_up.pk).update(
        state="delivered", finished_at=wake_up.created_at + timedelta(seconds=4), ended_on=wake_up.created_at
    )
    assert f"Arrived as a wake-up: {words}. Delivered after 4.0 s." in words_of(admin_client, path)

    [merged] = re.findall(r"/admin/timelines/requests/\d+/", admin_client.get(USER_PAGE).content.decode())
    assert f"Nothing was sent: Merged{MERGED[6:]}: {words}." in words_of(admin_client, merged)


def test_periods_of_the_overview_hold_the_pushes_of_their_minutes(admin_client: Client) -> None:
    now = timezone.now()
    for ago in (timedelta(), timedelta(minutes=30), timedelta(hours=5), timedelta(days=2)):
        count_beyond([Beyond(CLIENT.key_hash, "phone", Effect.MERGED, PushLimit.ADDRESS)], now=now - ago)
    [[_, *numbers]] = overview(admin_client)
    assert numbers == ["1", "2", "3"]


def test_limits_of_a_bridge_are_shown_in_its_words(admin_client: Client) -> None:
    count_beyond([Beyond(b"", "device", Effect.REFUSED, DeviceLimit.CALLS)], now=timezone.now())
    [[words, *_]] = overview(admin_client)
    assert words == "Refused with an error: more than 6 calls a minute to one phone"


def test_a_limit_of_another_version_is_shown_by_its_name(admin_client: Client) -> None:
    """During an upgrade, and after a rollback."""
    count_beyond([Beyond(CLIENT.key_hash, "phone", Effect.MERGED, "moon_phase")], now=timezone.now())
    [[words, *_]] = overview(admin_client)
    assert words == f"Merged{MERGED[6:]}: moon_phase"
    assert f"{MERGED}: moon_phase 1 phone" in words_of(admin_client, USER_PAGE)


def test_only_people_who_may_view_notifications_see_the_limits_of_a_user(settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    flood(4)
    visitor = User.objects.create_user("vera", is_staff=True)
    visitor.user_permissions.add(Permission.objects.get(codename="view_registration"))
    client = Client()
    client.force_login(visitor)
    assert "Beyond limits" not in words_of(client, USER_PAGE)


# The counter ----------------------------------------------------------------------------------------------------------


def counted() -> dict[tuple[str, str], int]:
    rows = BeyondLimit.objects.exclude(installation_id="").values_list("effect", "push_limit", "count")
    return {(effect, limit): number for effect, limit, number in rows}


def test_a_flood_has_a_row_for_each_effect_and_day_and_a_repeat_counts_once(settings: LazySettings) -> None:
    settings.ROUTE_LIMITS = SHORT
    process = flood(40)
    repeated = request(push(chat_id=CHAT), message_id=b"message 41")
    say(repeated, repeated, process=process)
    say(repeated, process=process)
    assert counted() == {("shortened", "address"): 1, ("merged", "address"): 38}
    assert BeyondLimit.objects.exclude(installation_id="").count() == 2


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
    erasure.forget(CLIENT.key_hash, now=now)
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

    other = threading.Thread(target=work)
    with transaction.atomic():
        count_beyond(pushes, now=now)
        BeyondLimit.objects.exists()  # sends the statement
        other.start()
        assert is_counted.wait(20)
    other.join()
    assert sum(counted_by_day(now)) == 2


def counted_by_day(now: datetime) -> list[int]:
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return list(BeyondLimit.objects.filter(begin_at=day, installation_id="phone").values_list("count", flat=True))
