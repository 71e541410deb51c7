"""Operations of the console: which role may do what, and the effect of a second click, of two operators at once, and of
hand-made requests.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from threading import Barrier
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone

from notifications.console import operator_actions
from notifications.models import Channel, Notification
from notifications.queues import halts
from pushserver.api import tokens
from pushserver.models import AccessRecord, ApiToken
from pushserver.roles import seed_roles
from registrations.models import Registration, Route
from spark_reports.models import RequestedRun
from spark_reports.nights.closing import last_closed_day
from tests.rig import rows
from tests.rig.budget import combinations, first_everyday
from waku_bridge.models import DeadLetter, InboundEnvelope
from xmpp_bridge.models import Device

pytestmark = pytest.mark.django_db
KEY_HASH = b"\x07" * 64
WHY = "as agreed with ann"


@dataclass(frozen=True)
class Case:
    """An operation on a row that ``make`` makes: the URL of its confirmation, and a check of whether it was done."""

    name: str
    make: Callable[[], Any]
    url: Callable[[Any], str]
    is_done: Callable[[], bool]
    id: Callable[[Any], str] = lambda row: str(row.pk)


def _hex(row: Any) -> str:
    return bytes(row.pk).hex()


def make_disabled() -> Registration:
    return rows.make_registration(route=rows.make_route(state="disabled", disabled_reason="operator"))


def make_waiting() -> Notification:
    later = timezone.now() + timedelta(hours=1)
    return rows.make_notification(state="retrying", next_attempt_at=later, route=rows.make_registration().route)


def make_user() -> Registration:
    return rows.make_registration(public_key_hash=KEY_HASH)


def make_channel(state: str = "running") -> Channel:
    if state != halts.RUNNING:
        rows.make_halt(state, (2, ""))
    return rows.make_channel((2, ""))


def make_drain() -> None:
    halts.start_draining(by="bob", why="x", now=timezone.now())


def make_dead_route() -> Channel:
    rows.make_registration(
        route=rows.make_route(state="disabled", disabled_reason="device_gone", disabled_at=timezone.now())
    )
    return make_channel()


def operate(table: str, name: str) -> Callable[[Any], str]:
    return lambda _row: f"/admin/{table}/operate/{name}/"


def on_channel(name: str) -> Callable[[Any], str]:
    return lambda row: f"/admin/notifications/channel/{row.pk}/operate/{name}/"


def is_channel(state: str) -> Callable[[], bool]:
    return lambda: halts.with_halts(Channel.objects.all()).get().state == state


REGISTRATION, NOTIFICATION = "registrations/registration", "notifications/notification"
ENVELOPE, LETTER = "waku_bridge/inboundenvelope", "waku_bridge/deadletter"
DEVICE = "xmpp_bridge/device"
CASES = [
    Case(
        "disable",
        rows.make_registration,
        operate(REGISTRATION, "disable"),
        lambda: Route.objects.get().state == "disabled",
    ),
    Case("enable", make_disabled, operate(REGISTRATION, "enable"), lambda: Route.objects.get().state == "active"),
    Case(
        "try now",
        make_waiting,
        operate(NOTIFICATION, "now"),
        lambda: Notification.objects.filter(next_attempt_at__lte=timezone.now()).exists(),
    ),
    Case(
        "drop notification",
        make_waiting,
        operate(NOTIFICATION, "drop"),
        lambda: Notification.objects.get().state == "withdrawn",
    ),
    Case(
        "process again",
        lambda: rows.make_envelope(state="failed"),
        operate(ENVELOPE, "again"),
        lambda: InboundEnvelope.objects.get().state == "received",
        _hex,
    ),
    Case(
        "drop envelope",
        lambda: rows.make_envelope(state="failed"),
        operate(ENVELOPE, "drop"),
        lambda: InboundEnvelope.objects.get().state == "dropped",
        _hex,
    ),
    Case(
        "drop letter",
        rows.make_dead_letter,
        operate(LETTER, "drop"),
        lambda: not DeadLetter.objects.exists(),
        _hex,
    ),
    Case(
        "forget",
        make_user,
        lambda _row: f"/admin/users/{KEY_HASH.hex()}/forget/",
        lambda: not Registration.objects.exists(),
    ),
    Case(
        "disable device",
        rows.make_device,
        operate(DEVICE, "disable"),
        lambda: Route.objects.get().state == "disabled",
    ),
    Case(
        "enable device",
        lambda: rows.make_device(route=rows.make_route(state="disabled", disabled_reason="operator")),
        operate(DEVICE, "enable"),
        lambda: Route.objects.filter(state="active", is_end_awaited=True).exists(),
    ),
    Case(
        "remove device",
        rows.make_device,
        operate(DEVICE, "remove"),
        lambda: Device.objects.get().state == "unregistered" and not Route.objects.exists(),
    ),
    Case("pause", make_channel, on_channel("pause"), is_channel("paused")),
    Case("trip", make_channel, on_channel("trip"), is_channel("tripped")),
    Case("resume", lambda: make_channel("paused"), on_channel("resume"), is_channel("running")),
    Case("close", lambda: make_channel("tripped"), on_channel("close"), is_channel("running")),
    Case("undo", make_dead_route, on_channel("undo"), lambda: Route.objects.get().state == "active"),
    Case("stop delivery", lambda: None, lambda _row: "/admin/drain/start/", lambda: halts.drain() is not None),
    Case("start delivery", make_drain, lambda _row: "/admin/drain/stop/", lambda: halts.drain() is None),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def staff(role: str) -> Client:
    user = User.objects.create_user(f"{role or 'nobody'}{User.objects.count()}", is_staff=True)
    if role:
        seed_roles()
        user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


def confirmed(case: Case, row: Any, **fields: str) -> dict[str, Any]:
    since = f"{timezone.now() - timedelta(hours=1):%Y-%m-%d %H:%M:%S}"
    return {"id": case.id(row) if row else "", "why": WHY, "since": since, "confirmed": "1"} | fields


@every_case
@pytest.mark.parametrize("role", first_everyday("support", ""))
def test_a_role_does_no_operation_without_the_permission(case: Case, role: str) -> None:
    row, client = case.make(), staff(role)
    asked = client.get(case.url(row), {"id": case.id(row) if row else ""})
    sent = client.post(case.url(row), confirmed(case, row))
    assert (asked.status_code, sent.status_code, case.is_done()) == (403, 403, False)


@every_case
@pytest.mark.parametrize("role", first_everyday("operator", "admin"))
def test_an_operation_is_done_after_confirming_with_a_reason(case: Case, role: str) -> None:
    row, client = case.make(), staff(role)

    page = client.get(case.url(row), {"id": case.id(row) if row else ""})
    without_reason = client.post(case.url(row), confirmed(case, row, why=""))
    assert (page.status_code, without_reason.status_code, case.is_done()) == (200, 200, False)
    assert 'id="touched"' in page.content.decode()

    client.post(case.url(row), confirmed(case, row))

    assert case.is_done()
    entry = LogEntry.objects.get()
    assert entry.user.groups.get().name == role
    assert WHY in entry.change_message


@every_case
def test_a_single_row_is_named_in_the_singular(case: Case) -> None:
    row = case.make()
    html = staff("operator").get(case.url(row), {"id": case.id(row) if row else ""}).content.decode()
    touched = html.partition('id="touched"')[2].partition("</ul>")[0]
    assert re.findall(r"\b1 (?:of 1 )?[a-z]+(?: [a-z]+)?s\b", touched) == []


@every_case
def test_a_second_click_and_a_second_operator_change_nothing(case: Case) -> None:
    row, first, second = case.make(), staff("operator"), staff("operator")
    first.post(case.url(row), confirmed(case, row))

    for client in (first, second):
        response = client.post(case.url(row), confirmed(case, row, why="me too"), follow=True)
        assert response.status_code == 200
        levels = [message.level_tag for message in response.context["messages"]]
        assert levels[-1] == "warning"
    assert case.is_done()
    assert LogEntry.objects.count() == 1


@every_case
def test_an_expired_session_leads_to_the_login_and_does_nothing(case: Case) -> None:
    row = case.make()
    response = Client().post(case.url(row), confirmed(case, row))
    assert (response.status_code, response.url.split("?")[0], case.is_done()) == (302, "/admin/login/", False)


@pytest.mark.parametrize(
    ("table", "row_id"),
    combinations(
        [REGISTRATION, NOTIFICATION, ENVELOPE, LETTER, DEVICE],
        ["", "x", "-1", "9" * 40, "ab" * 32, "zz", "%00", "1.5", "٣"],
    ),
)
def test_hand_made_ids_are_reported_and_no_fault(table: str, row_id: str) -> None:
    client, name = staff("operator"), "disable" if table in {REGISTRATION, DEVICE} else "drop"
    for response in (
        client.get(f"/admin/{table}/operate/{name}/", {"id": row_id}, follow=True),
        client.post(f"/admin/{table}/operate/{name}/", {"id": row_id, "why": "x", "confirmed": "1"}, follow=True),
    ):
        assert response.status_code == 200
        assert "None of these rows exists any more" in response.content.decode()


@pytest.mark.parametrize(
    "path",
    [
        *(f"{table}/operate/explode/" for table in (REGISTRATION, NOTIFICATION, ENVELOPE, LETTER, DEVICE)),
        *("drain/explode/", "notifications/channel/987654/operate/pause/"),
    ],
)
def test_the_operation_of_a_missing_row_is_not_found(path: str) -> None:
    assert staff("admin").get(f"/admin/{path}").status_code == 404


OFFERED = [
    (REGISTRATION, rows.make_registration, {"Disable"}),
    (REGISTRATION, make_disabled, {"Enable"}),
    (REGISTRATION, lambda: rows.make_registration(state="unregistered", route=None), set()),
    (NOTIFICATION, make_waiting, {"Try now", "Drop"}),
    (NOTIFICATION, lambda: rows.make_notification(state="delivered", finished_at=timezone.now()), set()),
    (ENVELOPE, lambda: rows.make_envelope(state="failed"), {"Process again", "Drop"}),
    (ENVELOPE, lambda: rows.make_envelope(state="processed"), set()),
    (DEVICE, rows.make_device, {"Disable", "Remove"}),
    (DEVICE, lambda: rows.make_device(state="unregistered", route=None, ended_at=timezone.now()), set()),
    ("notifications/channel", make_channel, {"Pause", "Trip", "Undo disabling"}),
    ("notifications/channel", lambda: make_channel("paused"), {"Resume", "Trip", "Undo disabling"}),
    ("notifications/channel", lambda: make_channel("tripped"), {"Pause", "Close the breaker", "Undo disabling"}),
]
LABELS = {label for _, _, labels in OFFERED for label in labels}


@pytest.mark.parametrize(("table", "make", "offered"), OFFERED)
def test_a_page_and_a_list_offer_only_what_fits_the_state_of_a_row(
    table: str, make: Callable[[], Any], offered: set[str]
) -> None:
    row = make()
    row_id = _hex(row) if table == ENVELOPE else row.pk
    html = staff("operator").get(f"/admin/{table}/{row_id}/change/").content.decode()
    links = {text.strip() for text in re.findall(r'href="[^"]*/operate/[^"]*"[^>]*>([^<]*)<', html)}
    assert links & LABELS == offered
    page = staff("operator").get(f"/admin/{table}/").content.decode()
    chosen = page.partition('name="action"')[2]
    listed = set(re.findall(r'<option value="\w+">([^<]*)<', chosen.partition("</select>")[0]))
    assert listed & LABELS == (set() if table == "notifications/channel" else offered)  # channels are halted one by one
    assert bool(chosen) == bool(listed) == ('name="_selected_action"' in page)


# From the list --------------------------------------------------------------------------------------------------------


def choose(client: Client, table: str, rows: list[Any], action: str) -> Any:
    ids = [_hex(row) if isinstance(row.pk, bytes) else str(row.pk) for row in rows]
    return client.post(f"/admin/{table}/", {"action": action, "_selected_action": ids, "index": "0"}, follow=True)


def test_several_rows_of_a_list_are_confirmed_together() -> None:
    client, letters = staff("operator"), [rows.make_dead_letter() for _ in range(3)]

    page = choose(client, LETTER, letters[:2], "drop").content.decode()
    assert "Dead letters that are removed for good: 2." in page
    client.post(
        f"/admin/{LETTER}/operate/drop/", {"id": [_hex(row) for row in letters[:2]], "why": WHY, "confirmed": 1}
    )

    assert DeadLetter.objects.get().pk == letters[2].pk
    assert LogEntry.objects.count() == 2


def test_a_filter_is_kept_when_rows_that_it_chose_are_dropped() -> None:
    client = staff("operator")
    failed = [rows.make_envelope(state=state) for state in ("failed", "failed", "failed", "processed")][:2]
    narrowed = f"{ENVELOPE}/?state__exact=failed"
    page = client.post(
        f"/admin/{narrowed}", {"action": "drop", "_selected_action": [_hex(row) for row in failed], "index": "0"}
    ).content.decode()
    [action] = re.findall(r'<form[^>]* action="([^"]*/operate/drop/[^"]*)"', page)

    sent = {"id": [_hex(row) for row in failed], "why": WHY, "confirmed": "1"}
    listed = client.post(unescape(action), sent)
    assert listed["Location"] == f"/admin/{narrowed}"
    assert sorted(InboundEnvelope.objects.values_list("state", flat=True)) == [*["dropped"] * 2, "failed", "processed"]


@pytest.mark.parametrize(
    ("action", "message"),
    [("", "Choose an action."), ("explode", "Choose an action."), ("drop", "Items must be selected")],
)
def test_a_list_reports_a_missing_action_or_missing_rows(action: str, message: str) -> None:
    client, letter = staff("operator"), rows.make_dead_letter()
    response = choose(client, LETTER, [letter] if action != "drop" else [], action)
    assert (response.status_code, DeadLetter.objects.count()) == (200, 1)
    [shown] = map(str, response.context["messages"])
    assert shown.startswith(message)


def test_support_is_offered_no_operation() -> None:
    client, letter = staff("support"), rows.make_dead_letter()
    lists = client.get(f"/admin/{LETTER}/").content.decode() + client.get(f"/admin/{REGISTRATION}/").content.decode()
    assert 'name="action"' not in lists
    assert choose(client, LETTER, [letter], "drop").status_code in {200, 403}
    assert DeadLetter.objects.count() == 1
    registration = rows.make_registration(public_key_hash=KEY_HASH)
    pages = (f"/admin/users/{KEY_HASH.hex()}/", f"/admin/{REGISTRATION}/{registration.pk}/change/")
    for page in pages:
        html = client.get(page).content.decode()
        assert not [word for word in ("operate", "forget", "/admin/drain/") if word in html]


def test_an_operator_is_offered_the_operations() -> None:
    client, registration = staff("operator"), rows.make_registration(public_key_hash=KEY_HASH)
    page = client.get(f"/admin/{REGISTRATION}/{registration.pk}/change/").content.decode()
    assert f"/admin/{REGISTRATION}/operate/disable/?id={registration.pk}" in page
    assert f"/admin/users/{KEY_HASH.hex()}/forget/" in client.get(f"/admin/users/{KEY_HASH.hex()}/").content.decode()


# Records of operations ------------------------------------------------------------------------------------------------


def test_neither_the_log_nor_the_access_record_names_a_forgotten_user() -> None:
    client = staff("operator")
    make_user()
    client.get(f"/admin/users/{KEY_HASH.hex()}/")
    client.post(f"/admin/users/{KEY_HASH.hex()}/forget/", {"why": "she asked for it", "confirmed": "1"})

    entry = LogEntry.objects.get()
    assert "1 registration, " in entry.change_message
    logged = f"{entry.object_id} {entry.object_repr} {entry.change_message}"
    assert KEY_HASH.hex()[:16] not in logged + AccessRecord.objects.get().object_id


@pytest.mark.parametrize("why", ["for zQ3shabcdefghijklmnopqrstuvwxyz0123456789", "ab" * 32, "0x" + "0" * 64])
def test_a_reason_holds_no_key(why: str) -> None:
    make_user()
    response = staff("operator").post(f"/admin/users/{KEY_HASH.hex()}/forget/", {"why": why, "confirmed": "1"})
    assert "Remove the key or id from the reason." in response.content.decode()
    assert Registration.objects.exists()


def test_every_page_shows_to_logged_in_staff_that_delivery_is_stopped() -> None:
    make_drain()
    client = staff("support")
    for page in ("/admin/", "/admin/find/", f"/admin/{REGISTRATION}/"):
        assert "Delivery has been stopped since" in client.get(page).content.decode()
    assert "Delivery is stopped" not in Client().get("/admin/login/").content.decode()


# At once --------------------------------------------------------------------------------------------------------------


def make_token() -> ApiToken:
    return tokens.issue("test", ["status"], by="ann", now=timezone.now())[0]


OTHERS = [
    Case(
        "revoke",
        make_token,
        lambda _row: "/admin/pushserver/apitoken/operate/revoke/",
        lambda: ApiToken.objects.get().revoked_at is not None,
    ),
    Case(
        "make reports",
        lambda: None,
        lambda _row: f"/admin/reports/run/?from={last_closed_day(timezone.now())}",
        lambda: RequestedRun.objects.count() == 1,
    ),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("case", [*CASES, *OTHERS], ids=lambda case: case.name)
def test_an_operation_that_two_operators_confirm_at_once_is_done_once(case: Case) -> None:
    row = case.make()
    sent = confirmed(case, row)
    clients = [staff("admin") for _ in range(2)]

    levels = post_at_once(clients, case.url(row), sent)

    assert case.is_done()
    assert sorted(levels) == ["success", "warning"]
    assert LogEntry.objects.count() == 1
    assert WHY in LogEntry.objects.get().change_message


def post_at_once(clients: list[Client], url: str, sent: dict[str, Any]) -> list[str]:
    """Post at once over separate connections. Return the levels of the messages on the pages that come next."""
    start = Barrier(len(clients))

    def post(client: Client) -> str:
        start.wait()
        try:
            return str(client.post(url, sent)["Location"])
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as pool:
        pages = list(pool.map(post, clients))
    shown = [client.get(page, follow=True) for client, page in zip(clients, pages, strict=True)]
    return [message.level_tag for page in shown for message in page.context["messages"]]


@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_an_operation_that_meets_a_worker_is_tried_again(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registration, real, calls = rows.make_registration(), operator_actions.disable_routes, []

    class Collision(Exception):  # noqa: N818 - stands for the driver's error
        sqlstate = code

    def collide_once(*arguments: Any, **named: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OperationalError from Collision()
        return real(*arguments, **named)

    monkeypatch.setattr(operator_actions, "disable_routes", collide_once)
    staff("operator").post(
        f"/admin/{REGISTRATION}/operate/disable/", {"id": registration.pk, "why": WHY, "confirmed": "1"}
    )

    assert (len(calls), Route.objects.get().state, LogEntry.objects.count()) == (2, "disabled", 1)
