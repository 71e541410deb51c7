"""Query counts of pages and API answers: they do not grow with the number of rows, and no query counts a table."""

import re
from collections.abc import Sequence

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from notifications.gateways.gorush.models import current_rules
from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.console.models import ApiToken
from pushserver.console.toolkit.operations import id_of
from registrations.models import Registration
from tests.console.reading import queries_of
from tests.console.routes import console_pages, ids_of
from tests.rig import rows
from tests.rig.budget import first_everyday
from waku_bridge.models import DeadLetter, InboundEnvelope, OutboundReply
from xmpp_bridge.models import Device

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("everything")]
MORE = 30
OPERATED = {
    Registration: ("disable", "enable"),
    Notification: ("now", "drop"),
    InboundEnvelope: ("again", "drop"),
    DeadLetter: ("again", "drop"),
    Device: ("disable", "enable", "remove"),
}


def make_more() -> None:
    """Make rows about the same user, request and notification, and rows of all other kinds."""
    registration, request = Registration.objects.earliest("pk"), NotificationRequest.objects.earliest("pk")
    notification = Notification.objects.earliest("pk")
    user = {"public_key_hash": registration.public_key_hash}
    device = Device.objects.earliest("registered_at")
    for number in range(2, 2 + MORE):
        another = rows.make_registration(**user)
        rows.make_grant(registration)
        rows.make_event(pseudonym=registration.pseudonym)
        rows.make_event(pseudonym=another.pseudonym)
        rows.make_topic_key()
        rows.make_notification(request=request, position=number, route=another.route, **user)
        elsewhere = rows.make_notification(route=another.route, **user)
        rows.make_attempt(notification, number=number, outcome="transient", code=f"code_{number}")
        rows.make_attempt(elsewhere)
        rows.make_reply(envelope_hash=request.source_key, part=number)
        rows.make_envelope(hash=elsewhere.request.source_key, state="failed", reason=f"Error{number}")
        rows.make_watermark()
        rows.make_dead_letter(reason=f"reason_{number}")
        rows.make_unknown_error()
        rows.make_canary_run()
        rows.make_xmpp_canary_run()
        pushed = rows.make_device()
        rows.make_device(app=device.app, state="unregistered", route=None)
        push = {"public_key_hash": b"", "installation_id": str(pushed.pk), "grade": "normal"}
        rows.make_notification(request=rows.make_request(bridge="xmpp"), route=pushed.route, **push)


def grown(client: Client, urls: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the URLs that take more queries for many rows than for one, with both numbers.

    An incident that begins meanwhile is noted by one page, and by none that is opened again.
    """
    before = {url: len(queries_of(client, url)) for url in urls}
    make_more()
    after = {url: len(queries_of(client, url)) for url in urls}
    again = {url: len(queries_of(client, url)) for url in urls if after[url] > before[url]}
    return {url: (before[url], count) for url, count in again.items() if count > before[url]}


@pytest.mark.parametrize("names", first_everyday("admin:index|user|timeline", ".*"))
def test_no_page_of_the_console_takes_more_queries_for_more_rows(admin_client: Client, names: str) -> None:
    assert not grown(admin_client, [page.url for page in console_pages() if re.fullmatch(names, page.name)])


def test_a_confirmation_takes_as_many_queries_for_many_rows_as_for_one(admin_client: Client) -> None:
    one = {operation: len(queries_of(admin_client, operation_url(*operation, 1))) for operation in operations()}
    make_more()

    for operation, number in one.items():
        assert len(queries_of(admin_client, operation_url(*operation, MORE))) <= number, operation


def operations() -> list[tuple[type[Model], str]]:
    return [(model, name) for model, names in OPERATED.items() for name in names]


def operation_url(model: type[Model], name: str, count: int) -> str:
    rows = model._default_manager.all()[:count]
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_operate", args=[name])
    assert len(rows) == count
    return f"{url}?{'&'.join(f'id={id_of(row)}' for row in rows)}"


def test_no_answer_of_the_api_takes_more_queries_for_more_rows() -> None:
    token = ApiToken(name="counting", scopes=ApiToken.Scope.values).issue(by="ann", now=timezone.now()).text
    api = Client(headers={"authorization": f"Bearer {token}"})

    assert not grown(api, api_urls())


def api_urls() -> list[str]:
    registration, request = Registration.objects.get(), NotificationRequest.objects.get()
    key_hash = bytes(registration.public_key_hash).hex()
    notifications = reverse("notification-list")
    return [
        f"{reverse('registration-list')}?key_hash={key_hash}",
        f"{reverse('registration-list')}?installation_id={registration.installation_id}",
        f"{notifications}?key_hash={key_hash}",
        f"{notifications}?message_id={bytes(request.message_id).hex()}",
        f"{notifications}?amm_message_id={bytes(request.request_key).hex()}",
        reverse("notification-detail", args=ids_of(Notification)),
        *(reverse(f"{name}-list") for name in ("channel", "canary", "error-rate", "token-churn", "anomaly")),
        reverse("status"),
    ]


# Conditions on one row's own key: of a user, a request, a notification, or chosen rows.
KEYS = "public_key_hash|request_id|notification_id|route_id|id|hash|content_topic"
BOUNDED = re.compile(rf"\blimit \d|\b({KEYS}) (=|in) ")


def test_no_page_counts_a_large_table(admin_client: Client) -> None:
    large = (Registration, Notification, NotificationRequest, Attempt, InboundEnvelope, OutboundReply, Device)
    current_rules().refresh()
    from_large = re.compile(rf"from ({'|'.join(model._meta.db_table for model in large)})\b")

    for page in console_pages():
        with CaptureQueriesContext(connection) as queries:  # loads what each process loads once
            admin_client.get(page.url)
        asked = [query["sql"].replace('"', "").lower() for query in queries.captured_queries]
        counts = [sql for sql in asked if "count(" in sql and from_large.search(sql)]
        assert [sql for sql in counts if not BOUNDED.search(sql)] == [], page
