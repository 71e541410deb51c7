"""Tests of channel operations in the console: who may do them, the preview, and the log entry."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from notifications.messages import ChannelKey
from notifications.models import Channel, Queue
from notifications.queues import halts
from registrations.models import Route
from tests.rig.delivering import APP, prove
from tests.rig.rows import make_channel, make_halt, make_route

pytestmark = pytest.mark.django_db
PAGES = "/admin/notifications/channel/"


@pytest.fixture
def channel():
    return make_channel((1, APP))


def page(channel, operation):
    return f"{PAGES}{channel.pk}/operate/{operation}/"


def shown(channel):
    return halts.with_halts(Channel.objects.filter(pk=channel.pk)).get()


def state_of(channel):
    return shown(channel).state


def test_lists_channels_with_state_and_reason(admin_client, channel):
    halts.pause(ChannelKey(1, APP), by="ann", why="new key", now=timezone.now())
    html = admin_client.get(PAGES).content.decode()
    assert "APN im.status" in html
    assert "paused" in html
    assert "new key" in html


def test_pausing_and_resuming_are_confirmed_and_leave_an_entry(admin_client, admin_user, channel):
    assert "until somebody resumes it" in admin_client.get(page(channel, "pause")).content.decode()
    assert state_of(channel) == "running"
    admin_client.post(page(channel, "pause"), {"why": "new key", "confirmed": "1"})
    assert (state_of(channel), shown(channel).reason, shown(channel).changed_by) == ("paused", "new key", "admin")
    Queue.objects.filter(is_proven=True).update(waiting_count=1)
    assert f"Notifications that wait for {channel}: 1." in admin_client.get(page(channel, "resume")).content.decode()
    admin_client.post(page(channel, "resume"), {"why": "the key works", "confirmed": "1"})
    assert state_of(channel) == "running"
    entries = LogEntry.objects.filter(object_id=str(channel.pk), user=admin_user).order_by("pk")
    assert [entry.change_message for entry in entries] == [
        "Paused. Why: new key",
        "Resumed. Why: the key works",
    ]


@pytest.mark.parametrize("operation", ["pause", "trip"])
@pytest.mark.parametrize("why", ["", " ", "for zQ3shabcdefghijklmnopqrstuvwxyz0123456789", "x" * 201])
def test_nobody_operates_without_a_reason_that_may_be_kept(admin_client, channel, operation, why):
    response = admin_client.post(page(channel, operation), {"why": why, "confirmed": "1"})
    assert (response.status_code, state_of(channel)) == (200, "running")


def test_a_tripped_channel_says_who_tripped_it(admin_client, channel):
    admin_client.post(page(channel, "trip"), {"why": "tokens die", "confirmed": "1"})
    assert (state_of(channel), shown(channel).reason, shown(channel).changed_by) == ("tripped", "tokens die", "admin")
    assert shown(channel).next_probe_at


def test_undoing_shows_the_number_of_routes_before_and_after(admin_client, channel):
    now = timezone.now()
    route = make_route(token_type=1, app_topic=APP, state=Route.State.DISABLED, disabled_at=now)
    since = {"since": f"{now - timedelta(minutes=5):%Y-%m-%d %H:%M:%S}"}
    html = admin_client.post(page(channel, "undo"), since | {"preview": "1"}).content.decode()
    assert "and would be active again: 1." in html
    assert "formnovalidate" in html.split('name="preview"')[1].split(">")[0]
    assert "This field is required" not in html
    route.refresh_from_db()
    assert route.state == Route.State.DISABLED
    html = admin_client.post(
        page(channel, "undo"), since | {"why": "x", "confirmed": "1"}, follow=True
    ).content.decode()
    assert "Undid the disabling of 1 address " in html
    route.refresh_from_db()
    assert route.state == Route.State.ACTIVE
    assert LogEntry.objects.get().change_message.startswith("Undid the disabling of 1 address ")


def test_resuming_names_the_halts_that_stay(admin_client, channel):
    for operation in ("pause", "trip"):
        admin_client.post(page(channel, operation), {"why": "x", "confirmed": "1"})
    assert "It is also tripped" in admin_client.get(page(channel, "resume")).content.decode()
    assert "It is also paused" in admin_client.get(page(channel, "close")).content.decode()
    admin_client.post(page(channel, "resume"), {"why": "x", "confirmed": "1"})
    assert shown(channel).halts == ["tripped"]
    admin_client.post(page(channel, "close"), {"why": "x", "confirmed": "1"})
    assert state_of(channel) == "running"
    again = admin_client.post(page(channel, "close"), {"why": "x", "confirmed": "1"}, follow=True)
    assert "is not tripped" in again.content.decode()


@pytest.mark.parametrize(("halted", "count"), [("yes", 2), ("paused", 1), ("tripped", 1), ("", 3)])
def test_the_list_is_narrowed_down_to_what_is_halted(admin_client, channel, halted, count):
    make_channel((1, "paused.app"))
    make_channel((1, "tripped.app"))
    make_halt("paused", (1, "paused.app"))
    make_halt("tripped", (1, "tripped.app"))
    html = admin_client.get(PAGES, {"halted": halted} if halted else {}).content.decode()
    assert html.count("/change/") == count


def test_the_list_says_how_full_each_queue_is(admin_client, settings):
    settings.MAX_OPEN_NOTIFICATIONS = 1000
    prove(ChannelKey(1, APP), ChannelKey(2, ""))
    Queue.objects.filter(token_type=2, is_proven=True).update(waiting_count=1)
    html = admin_client.get(PAGES).content.decode()
    cells = re.findall(r"<td[^>]*field-\w*share_(waiting|limit)[^>]*>\s*(?:<[^>]*>\s*)*([0-9]+)", html)
    assert cells == [("waiting", "0"), ("limit", "450"), ("waiting", "1"), ("limit", "450")]
