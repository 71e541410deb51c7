"""Operations of the console: which role may do what, and the effect of a second click, of two operators at once, and of
hand-made requests.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from notifications.models import Channel, Halt, Notification
from notifications.queues import halts
from pushserver.console.models import AccessRecord, ApiToken
from pushserver.console.notifications import operations
from pushserver.console.notifications.channels import RUNNING, with_halts
from pushserver.console.toolkit.operations import id_of
from registrations.models import Registration, Route
from spark_reports.models import RequestedRun
from spark_reports.nights.nights import last_closed_day
from tests.console.reading import HEROINE, USER_PAGE, WHY, staff
from tests.rig import rows
from tests.rig.budget import first_everyday
from tests.rig.statements import at_once
from waku_bridge.models import DeadLetter, InboundEnvelope
from xmpp_bridge.models import Device

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Case:
    """An operation on a row that ``make`` makes: the URL of its confirmation, and a check of whether it was done."""

    name: str
    make: Callable[[], Any]
    url: Callable[[Any], str]
    is_done: Callable[[], bool]


def disabled(reason: str = "operator") -> Route:
    return rows.make_route(state="disabled", disabled_reason=reason, disabled_at=timezone.now())


def make_waiting() -> Notification:
    later = timezone.now() + timedelta(hours=1)
    return rows.make_notification(state="retrying", due_at=later, route=rows.make_registration().route)


def make_user() -> Registration:
    return rows.make_registration(public_key_hash=HEROINE)


def make_channel(state: str = "running") -> Channel:
    if state != RUNNING:
        rows.make_halt(state, (2, ""))
    return rows.make_channel((2, ""))


def make_drain() -> None:
    halts.begin(halts.Kind.DRAINED, by="bob", reason="x", now=timezone.now())


def make_dead_route() -> Channel:
    rows.make_registration(route=disabled("device_gone"))
    return make_channel()


def operate(table: str, name: str) -> Callable[[Any], str]:
    return lambda _row: f"/admin/{table}/operate/{name}/"


def on_channel(name: str) -> Callable[[Any], str]:
    return lambda row: f"/admin/notifications/channel/{row.pk}/operate/{name}/"


def is_channel(state: str) -> Callable[[], bool]:
    return lambda: with_halts(Channel.objects.all()).get().state == state


REGISTRATION, NOTIFICATION = "registrations/registration", "notifications/notification"
ENVELOPE, LETTER = "waku_bridge/inboundenvelope", "waku_bridge/deadletter"
DEVICE = "xmpp_bridge/device"
FORGET = f"{USER_PAGE}forget/"
REPORTS = f"/admin/reports/run/?from={last_closed_day(timezone.now())}"


def make_failed() -> InboundEnvelope:
    return rows.make_envelope(state="failed")


def make_disabled() -> Registration:
    return rows.make_registration(route=disabled())


def make_disabled_device() -> Device:
    return rows.make_device(route=disabled())


def make_token() -> ApiToken:
    return ApiToken(name="test", scopes=["status"]).issue(by="ann", now=timezone.now())


def has(model: type[Model], **fields: object) -> Callable[[], bool]:
    """Return whether the only row of a table, or none, has these values."""
    return lambda: [*model._default_manager.values(*fields)] == [fields]


def has_none(model: type[Model]) -> Callable[[], bool]:
    return lambda: not model._default_manager.exists()


def is_due() -> bool:
    return Notification.objects.get().due_at <= timezone.now()


def is_removed() -> bool:
    return Device.objects.get().state == "unregistered" and not Route.objects.exists()


DISABLED, ACTIVE = has(Route, state="disabled"), has(Route, state="active")
AWAITED = has(Route, state="active", is_end_awaited=True)
CASES = [
    Case("disable", rows.make_registration, operate(REGISTRATION, "disable"), DISABLED),
    Case("enable", make_disabled, operate(REGISTRATION, "enable"), ACTIVE),
    Case("try now", make_waiting, operate(NOTIFICATION, "now"), is_due),
    Case("drop notification", make_waiting, operate(NOTIFICATION, "drop"), has(Notification, state="withdrawn")),
    Case("process again", make_failed, operate(ENVELOPE, "again"), has(InboundEnvelope, state="received")),
    Case("drop envelope", make_failed, operate(ENVELOPE, "drop"), has(InboundEnvelope, state="dropped")),
    Case("drop letter", rows.make_dead_letter, operate(LETTER, "drop"), has_none(DeadLetter)),
    Case("forget", make_user, lambda _row: FORGET, has_none(Registration)),
    Case("disable device", rows.make_device, operate(DEVICE, "disable"), DISABLED),
    Case("enable device", make_disabled_device, operate(DEVICE, "enable"), AWAITED),
    Case("remove device", rows.make_device, operate(DEVICE, "remove"), is_removed),
    Case("pause", make_channel, on_channel("pause"), is_channel("paused")),
    Case("trip", make_channel, on_channel("trip"), is_channel("tripped")),
    Case("resume", lambda: make_channel("paused"), on_channel("resume"), is_channel("running")),
    Case("close", lambda: make_channel("tripped"), on_channel("close"), is_channel("running")),
    Case("undo", make_dead_route, on_channel("undo"), ACTIVE),
    Case("stop delivery", lambda: None, lambda _row: "/admin/drain/start/", has(Halt, kind="drained")),
    Case("start delivery", make_drain, lambda _row: "/admin/drain/stop/", lambda: not Halt.objects.in_force().exists()),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def confirmed(case: Case, row: Any, **fields: str) -> dict[str, Any]:
    since = f"{timezone.now() - timedelta(hours=1):%Y-%m-%d %H:%M:%S}"
    return {"id": id_of(row) if row else "", "why": WHY, "since": since, "confirmed": "1"} | fields


@every_case
@pytest.mark.parametrize("role", first_everyday("support", ""))
def test_a_role_does_no_operation_without_the_permission(case: Case, role: str) -> None:
    row, client = case.make(), staff(role)
    asked = client.get(case.url(row), {"id": id_of(row) if row else ""})
    sent = client.post(case.url(row), confirmed(case, row))
    assert (asked.status_code, sent.status_code, case.is_done()) == (403, 403, False)


@every_case
@pytest.mark.parametrize("role", first_everyday("operator", "admin"))
def test_an_operation_is_done_after_confirming_with_a_reason(case: Case, role: str) -> None:
    row, client = case.make(), staff(role)

    page = client.get(case.url(row), {"id": id_of(row) if row else ""})
    without_reason = client.post(case.url(row), confirmed(case, row, why=""))
    assert (page.status_code, without_reason.status_code, case.is_done()) == (200, 200, False)
    assert 'id="touched"' in page.content.decode()

    client.post(case.url(row), confirmed(case, row))

    assert case.is_done()
    entry = LogEntry.objects.get()
    assert entry.user.groups.get().name == role
    assert WHY in entry.change_message


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
    html = staff("operator").get(f"/admin/{table}/{id_of(row)}/change/").content.decode()
    links = {text.strip() for text in re.findall(r'href="[^"]*/operate/[^"]*"[^>]*>([^<]*)<', html)}
    assert links & LABELS == offered
    page = staff("operator").get(f"/admin/{table}/").content.decode()
    chosen = page.partition('name="action"')[2]
    listed = set(re.findall(r'<option value="\w+">([^<]*)<', chosen.partition("</select>")[0]))
    assert listed & LABELS == (set() if table == "notifications/channel" else offered)  # channels are halted one by one
    assert bool(chosen) == bool(listed) == ('name="_selected_action"' in page)


# From the list --------------------------------------------------------------------------------------------------------


def choose(client: Client, table: str, rows: list[Any], action: str) -> Any:
    chosen = {"action": action, "_selected_action": list(map(id_of, rows)), "index": "0"}
    return client.post(f"/admin/{table}", chosen, follow=True)


def test_chosen_rows_of_a_filtered_list_are_confirmed_together_and_lead_back_to_it() -> None:
    client, narrowed = staff("operator"), f"{ENVELOPE}/?state__exact=failed"
    failed = [rows.make_envelope(state=state) for state in ("failed", "failed", "failed", "processed")][:2]
    page = choose(client, narrowed, failed, "drop").content.decode()
    [action] = re.findall(r'<form[^>]* action="([^"]*/operate/drop/[^"]*)"', page)

    listed = client.post(unescape(action), {"id": [id_of(row) for row in failed], "why": WHY, "confirmed": "1"})

    assert listed["Location"] == f"/admin/{narrowed}"
    assert sorted(InboundEnvelope.objects.values_list("state", flat=True)) == [*["dropped"] * 2, "failed", "processed"]
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("action", "message"),
    [("", "Choose an action."), ("explode", "Choose an action."), ("drop", "Items must be selected")],
)
def test_a_list_reports_a_missing_action_or_missing_rows(action: str, message: str) -> None:
    client, letter = staff("operator"), rows.make_dead_letter()
    response = choose(client, f"{LETTER}/", [letter] if action != "drop" else [], action)
    assert (response.status_code, DeadLetter.objects.count()) == (200, 1)
    [shown] = map(str, response.context["messages"])
    assert shown.startswith(message)


@pytest.mark.parametrize(("role", "is_offered"), [("support", False), ("operator", True)])
def test_operations_are_offered_to_operators_alone(role: str, is_offered: bool) -> None:
    client, letter, registration = staff(role), rows.make_dead_letter(), make_user()
    page = f"/admin/{REGISTRATION}/{registration.pk}/change/"
    html = "".join(client.get(each).content.decode() for each in (USER_PAGE, page, f"/admin/{LETTER}/"))
    links = (FORGET, f"/admin/{REGISTRATION}/operate/disable/?id={registration.pk}", 'name="action"')
    assert [link in html for link in links] == [is_offered] * 3
    assert is_offered or "/operate/" not in html
    assert choose(client, f"{LETTER}/", [letter], "drop").status_code in {200, 403}
    assert DeadLetter.objects.count() == 1


# Records of operations ------------------------------------------------------------------------------------------------


def test_neither_the_log_nor_the_access_record_names_a_forgotten_user() -> None:
    client = staff("operator")
    make_user()
    client.get(USER_PAGE)
    client.post(FORGET, {"why": "she asked for it", "confirmed": "1"})

    entry = LogEntry.objects.get()
    assert "1 registration, " in entry.change_message
    logged = f"{entry.object_id} {entry.object_repr} {entry.change_message}"
    assert HEROINE.hex()[:16] not in logged + AccessRecord.objects.get().object_id


@pytest.mark.parametrize("why", ["for zQ3shabcdefghijklmnopqrstuvwxyz0123456789", "ab" * 32, "0x" + "0" * 64])
def test_a_reason_holds_no_key(why: str) -> None:
    make_user()
    response = staff("operator").post(FORGET, {"why": why, "confirmed": "1"})
    assert "Remove the key or id from the reason." in response.content.decode()
    assert Registration.objects.exists()


def test_every_page_shows_to_logged_in_staff_that_delivery_is_stopped() -> None:
    make_drain()
    client = staff("support")
    for page in ("/admin/", "/admin/find/", f"/admin/{REGISTRATION}/"):
        assert "Delivery has been stopped since" in client.get(page).content.decode()
    assert "Delivery is stopped" not in Client().get("/admin/login/").content.decode()


# At once --------------------------------------------------------------------------------------------------------------


def revokes() -> bool:
    return ApiToken.objects.get().revoked_at is not None


OTHERS = [
    Case("revoke", make_token, operate("pushserver/apitoken", "revoke"), revokes),
    Case("make reports", lambda: None, lambda _row: REPORTS, lambda: RequestedRun.objects.count() == 1),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("case", [*CASES, *OTHERS], ids=lambda case: case.name)
def test_an_operation_that_two_operators_confirm_at_once_is_done_once(case: Case) -> None:
    row = case.make()
    sent = confirmed(case, row)
    clients = [staff("admin") for _ in range(2)]

    answers = at_once(*(partial(client.post, case.url(row), sent) for client in clients))

    shown = [client.get(page["Location"], follow=True) for client, page in zip(clients, answers, strict=True)]
    levels = [message.level_tag for page in shown for message in page.context["messages"]]
    assert case.is_done()
    assert sorted(levels) == ["success", "warning"]
    assert WHY in LogEntry.objects.get().change_message


@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_an_operation_that_meets_a_worker_is_tried_again(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registration, real, calls = rows.make_registration(), operations.disable_routes, []

    class Collision(Exception):  # noqa: N818 - stands for the driver's error
        sqlstate = code

    def collide_once(*arguments: Any, **named: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OperationalError from Collision()
        return real(*arguments, **named)

    monkeypatch.setattr(operations, "disable_routes", collide_once)
    staff("operator").post(
        f"/admin/{REGISTRATION}/operate/disable/", {"id": registration.pk, "why": WHY, "confirmed": "1"}
    )

    assert (len(calls), Route.objects.get().state, LogEntry.objects.count()) == (2, "disabled", 1)
