import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from notifications.messages import QueueKey
from notifications.models import Notification
from notifications.queues import queues
from tests.rig.rows import make_attempt, make_channel, make_halt, make_notification, make_registration, make_request

pytestmark = pytest.mark.django_db
NOTIFICATIONS = "/admin/notifications/notification/"
REQUESTS = "/admin/notifications/notificationrequest/"
ATTEMPTS = "/admin/notifications/attempt/"
State = Notification.State


def rows(client: Client, path: str, query: str = "") -> set[str]:
    html = client.get(f"{path}?{query}").content.decode()
    return set(re.findall(rf'href="{path}(\d+)/change/', html))


@pytest.mark.parametrize("field", ["request_key", "message_id"])
@pytest.mark.parametrize("digits", [64, 8, 11])
def test_finds_a_request_by_its_ids(admin_client: Client, field: str, digits: int) -> None:
    wanted = make_request()
    make_request()

    assert rows(admin_client, REQUESTS, f"q={getattr(wanted, field).hex()[:digits]}") == {str(wanted.pk)}


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


UNDER_WAY_ALONE = ["notifications_notification_under_way"]


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        *[("progress=open", UNDER_WAY_ALONE), ("progress=stuck", UNDER_WAY_ALONE)],
        *[(f"state__exact={state}", UNDER_WAY_ALONE) for state in State if not state.is_terminal],
        ("during=2026-11-20T23:30:00%2B00:00..2026-11-20T23:59:00%2B00:00", ["notifications_notification_d20261120"]),
    ],
)
def test_a_filter_reads_only_the_partitions_that_can_have_its_rows(
    admin_client: Client, query: str, tables: list[str]
) -> None:
    """A list of a month reads 30 partitions, of which the index of the list is no help for rows that do not exist."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS notifications_notification_d20261120 PARTITION OF notifications_notification"
            " FOR VALUES FROM ('2026-11-20') TO ('2026-11-21')"
        )
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(f"{NOTIFICATIONS}?{query}")
    [asked] = [sql for each in queries if re.search('FROM "notifications_notification" .* LIMIT', sql := each["sql"])]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {asked}")
        plan = str(cursor.fetchone())
    assert sorted(set(re.findall("notifications_notification_(?:under_way|d[0-9]+|default)", plan))) == tables


@pytest.mark.parametrize("path", [NOTIFICATIONS, ATTEMPTS])
@pytest.mark.parametrize("begin", ["0001-01-01T00:00:00%2B14:00", "0001-01-01T00:00:00%2B00:00", "2026-11-20", "x"])
def test_a_period_that_is_none_finds_nothing(admin_client: Client, path: str, begin: str) -> None:
    make_attempt()
    for during in (f"{begin}..9999-12-31T23:00:00-14:00", f"{begin}..{begin}"):
        assert admin_client.get(f"{path}?during={during}").status_code == 200
        assert rows(admin_client, path, f"during={during}") == set()


def test_stuck_notifications_were_due_a_minute_ago_or_lost_their_worker(admin_client: Client) -> None:
    now, late = timezone.now(), timezone.now() - timedelta(minutes=2)
    due = make_notification(next_attempt_at=late)
    lost = make_notification(state=State.IN_FLIGHT, next_attempt_at=None, lease_until=late)
    make_notification(next_attempt_at=now)
    make_notification(state=State.IN_FLIGHT, next_attempt_at=None, lease_until=now)
    make_notification(state=State.RETRYING, next_attempt_at=now + timedelta(minutes=5))

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


def test_a_link_with_an_invalid_number_causes_no_error(admin_client: Client) -> None:
    assert admin_client.get(f"{ATTEMPTS}?notification__id__exact=x").status_code == 302


def test_a_request_shows_how_many_notifications_it_holds(admin_client: Client) -> None:
    request = make_request()
    for position in range(3):
        make_notification(request=request, position=position)

    assert re.search(
        r'<td class="field-notification_count[^>]*>\s*3\s*</td>', admin_client.get(REQUESTS).content.decode()
    )
