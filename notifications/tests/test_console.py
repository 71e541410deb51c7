"""Tests of the pages of requests, notifications, attempts and apps, and of operator actions on them."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from notifications.messages import AppKey, QueueKey
from notifications.models import Channel, Notification, Queue
from notifications.policy import Verdict
from notifications.queues import queues
from notifications.reports import Decided, pack
from pushserver.console.notifications import operations
from pushserver.console.notifications.channels import with_halts
from registrations.models import RegistrationEvent, Route
from tests.rig.delivering import APP, NOW, fresh, make_due, prove
from tests.rig.rows import (
    make_attempt,
    make_channel,
    make_halt,
    make_notification,
    make_registration,
    make_request,
    make_route,
)

pytestmark = pytest.mark.django_db
NOTIFICATIONS = "/admin/notifications/notification/"
REQUESTS = "/admin/notifications/notificationrequest/"
ATTEMPTS = "/admin/notifications/attempt/"
CHANNELS = "/admin/notifications/channel/"
State = Notification.State


def rows(client: Client, path: str, query: str = "") -> set[str]:
    html = client.get(f"{path}?{query}").content.decode()
    return set(re.findall(rf'href="{path}(\d+)/change/', html))


def test_finds_a_request_by_its_ids_and_shows_its_recipient_and_its_outcome(admin_client: Client) -> None:
    decided = pack([Decided(3, Verdict.SUPPRESSED, 1)])
    wanted, _ = make_request(decided=decided), make_request()
    for position in range(3):
        make_notification(request=wanted, position=position, public_key_hash=b"r" * 64)
    for term in (wanted.request_key.hex(), wanted.request_key.hex()[:11], wanted.message_id.hex()[:8]):
        assert rows(admin_client, REQUESTS, f"q={term}") == {str(wanted.pk)}
    html = admin_client.get(REQUESTS).content.decode()
    assert re.search(r'<td class="field-outcome[^>]*>.*pending</span> 3 .*suppressed</span></td>', html)
    assert f'<a href="/admin/users/{(b"r" * 64).hex()}/"><code>{b"r".hex() * 4}</code></a>' in html


def test_finds_the_notifications_of_a_key_and_of_one_installation(admin_client: Client) -> None:
    registration = make_registration()
    key_hash = bytes(registration.public_key_hash)
    of_key = make_notification(public_key_hash=key_hash)
    of_installation = make_notification(
        public_key_hash=key_hash, installation_id=registration.installation_id, dedup_key=None
    )
    make_notification()
    assert rows(admin_client, NOTIFICATIONS, f"q={key_hash.hex()}") == {str(of_key.pk), str(of_installation.pk)}
    for term in (registration.installation_id, registration.installation_id.upper()):
        assert rows(admin_client, NOTIFICATIONS, f"q={term}") == {str(of_installation.pk)}
    both = f"q={key_hash.hex()}+{registration.installation_id}"
    assert rows(admin_client, NOTIFICATIONS, both) == {str(of_installation.pk)}


@pytest.mark.parametrize("state", State)
def test_open_notifications_are_those_that_have_not_ended(admin_client: Client, state: Notification.State) -> None:
    make_notification(state=state)
    assert bool(rows(admin_client, NOTIFICATIONS, "progress=open")) is not state.is_terminal


OPEN_ALONE = ["notifications_opennotification"]


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        *[("progress=open", OPEN_ALONE), ("progress=stuck", OPEN_ALONE)],
        *[(f"state__exact={state}", OPEN_ALONE) for state in State if not state.is_terminal],
        (
            "during=2026-11-20T23:30:00%2B00:00..2026-11-20T23:59:00%2B00:00",
            ["notifications_endednotification_d20261120"],
        ),
    ],
)
def test_a_filter_reads_only_the_partitions_that_can_have_its_rows(
    admin_client: Client, query: str, tables: list[str]
) -> None:
    """A list of a month reads 30 partitions, of which the index of the list is no help for rows that do not exist."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS notifications_endednotification_d20261120"
            " PARTITION OF notifications_endednotification"
            " FOR VALUES FROM ('2026-11-20') TO ('2026-11-21')"
        )
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(f"{NOTIFICATIONS}?{query}")
    [asked] = [sql for each in queries if re.search('FROM "notifications_notification" .* LIMIT', sql := each["sql"])]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {asked}")
        plan = str(cursor.fetchone())
    assert sorted(set(re.findall("notifications_(?:opennotification|endednotification_d[0-9]+)", plan))) == tables


@pytest.mark.parametrize("path", [NOTIFICATIONS, ATTEMPTS])
@pytest.mark.parametrize("begin", ["0001-01-01T00:00:00%2B14:00", "0001-01-01T00:00:00%2B00:00", "2026-11-20", "x"])
def test_a_period_that_is_none_finds_nothing(admin_client: Client, path: str, begin: str) -> None:
    make_attempt()
    for during in (f"{begin}..9999-12-31T23:00:00-14:00", f"{begin}..{begin}"):
        assert admin_client.get(f"{path}?during={during}").status_code == 200
        assert rows(admin_client, path, f"during={during}") == set()


def test_stuck_notifications_were_due_a_minute_ago_or_lost_their_worker(admin_client: Client) -> None:
    now, late = timezone.now(), timezone.now() - timedelta(minutes=2)
    due = make_notification(due_at=late)
    lost = make_notification(state=State.IN_FLIGHT, due_at=late)
    make_notification(due_at=now)
    make_notification(state=State.IN_FLIGHT, due_at=now)
    make_notification(state=State.RETRYING, due_at=now + timedelta(minutes=5))
    assert rows(admin_client, NOTIFICATIONS, "progress=stuck") == {str(due.pk), str(lost.pk)}


def test_a_notification_behind_a_halt_is_not_stuck(admin_client: Client) -> None:
    make_channel((2, ""))
    make_halt("paused", (2, ""))
    paused = {row.key: row.id for row in queues.load().rows.values()}[QueueKey("gorush", 2, "", is_proven=False)]
    at = timezone.now() - timedelta(hours=1)
    make_notification(at=at, queue_id=paused)
    unsorted = make_notification(at=at)
    assert rows(admin_client, NOTIFICATIONS, "progress=stuck") == {str(unsorted.pk)}


def test_request_notification_and_attempt_lead_to_each_other(admin_client: Client) -> None:
    notification = make_notification()
    attempt = make_attempt(notification, code="device_gone", outcome="dead")
    make_attempt()
    request_page = admin_client.get(f"{REQUESTS}{notification.request_id}/change/").content.decode()
    page = admin_client.get(f"{NOTIFICATIONS}{notification.pk}/change/").content.decode()
    attempt_page = admin_client.get(f"{ATTEMPTS}{attempt.pk}/change/").content.decode()
    assert f"{NOTIFICATIONS}{notification.pk}/change/" in request_page
    assert f"{REQUESTS}{notification.request_id}/change/" in page
    assert "device_gone" in page
    assert f"{NOTIFICATIONS}{notification.pk}/change/" in attempt_page
    assert rows(admin_client, ATTEMPTS, f"notification__id__exact={notification.pk}") == {str(attempt.pk)}
    assert rows(admin_client, NOTIFICATIONS, f"request__id__exact={notification.request_id}") == {str(notification.pk)}


def test_an_unknown_type_is_shown_by_its_number(admin_client: Client) -> None:
    make_notification(type=77)
    assert ">type 77<" in admin_client.get(NOTIFICATIONS).content.decode()


# Apps -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def channel():
    return make_channel((1, APP))


def page(channel, operation):
    return f"{CHANNELS}{channel.pk}/operate/{operation}/"


def shown(channel):
    return with_halts(Channel.objects.filter(pk=channel.pk)).get()


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
    Queue.objects.filter(is_proven=True).update(waiting_count=1)
    html = admin_client.get(page(channel, "resume")).content.decode()
    assert [word for word in ("It is also tripped", f"that wait for {channel}: 1.") if word not in html] == []
    assert "It is also paused" in admin_client.get(page(channel, "close")).content.decode()
    admin_client.post(page(channel, "resume"), {"why": "x", "confirmed": "1"})
    assert shown(channel).halts == ["tripped"]
    admin_client.post(page(channel, "close"), {"why": "x", "confirmed": "1"})
    assert shown(channel).state == "running"
    again = admin_client.post(page(channel, "close"), {"why": "x", "confirmed": "1"}, follow=True)
    assert "is not tripped" in again.content.decode()


@pytest.mark.parametrize(("halted", "count"), [("yes", 2), ("paused", 1), ("tripped", 1), ("", 3)])
def test_the_list_is_narrowed_down_to_what_is_halted(admin_client, channel, halted, count):
    make_channel((1, "paused.app"))
    make_channel((1, "tripped.app"))
    make_halt("paused", (1, "paused.app"))
    make_halt("tripped", (1, "tripped.app"))
    html = admin_client.get(CHANNELS, {"halted": halted} if halted else {}).content.decode()
    assert html.count("/change/") == count


def test_the_list_says_how_full_each_queue_is(admin_client, settings):
    settings.MAX_OPEN_NOTIFICATIONS = 1000
    prove(AppKey(1, APP), AppKey(2, ""))
    Queue.objects.filter(token_type=2, is_proven=True).update(waiting_count=1)
    html = admin_client.get(CHANNELS).content.decode()
    cells = re.findall(r"<td[^>]*field-waits[^>]*>\s*(?:<[^>]*>\s*)*([0-9]+ of [0-9]+)", html)
    assert cells == ["0 of 450", "1 of 450"]


# Operator actions on addresses and notifications ----------------------------------------------------------------------


def test_a_disabled_route_says_why_and_what_waited_for_it_is_withdrawn():
    notification = make_due()
    in_flight = make_due(route=notification.route, state=State.IN_FLIGHT)
    assert operations.disable_routes([notification.route_id], now=NOW) == 1
    route = fresh(notification.route)
    assert (route.state, route.disabled_reason, route.disabled_at) == ("disabled", "operator", NOW)
    assert (fresh(notification).state, fresh(notification).message) == (State.WITHDRAWN, None)
    assert fresh(in_flight).state == State.IN_FLIGHT  # it is left to its worker


@pytest.mark.parametrize(
    ("reason", "events"), [("operator", []), ("device_gone", ["revived"]), ("failing", ["revived"])]
)
def test_reviving_a_dead_token_stores_an_event_for_reports(reason, events):
    fields = {"state": Route.State.DISABLED, "disabled_reason": reason, "disabled_at": NOW}
    route = make_registration(route=make_route(**fields)).route
    assert operations.enable_routes([route.pk], now=NOW) == 1
    assert (fresh(route).state, fresh(route).disabled_reason) == ("active", "")
    assert list(RegistrationEvent.objects.values_list("kind", flat=True)) == events


def test_a_dropped_notification_is_never_sent():
    waiting, held = make_due(state=State.RETRYING), make_due(state=State.IN_FLIGHT)
    drop = operations.DropNotifications()
    assert [drop.run([waiting, held], by="ann").is_change for _ in "12"] == [True, False]
    assert (fresh(waiting).state, fresh(held).state) == (State.WITHDRAWN, State.IN_FLIGHT)
    assert fresh(waiting).chat_id is None
