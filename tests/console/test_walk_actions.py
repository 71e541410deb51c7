"""Operations in a real browser: each is described first, confirmed with a reason, done and logged.

Everyday runs try the operations on an app, and nightly runs all of them. `test_operations` tries each of them every day
without a browser.
"""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from coincurve import PrivateKey
from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Page, expect

from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.table import load_seed
from notifications.models import Channel, Notification
from notifications.queues.halts import with_halts
from pushserver.models import ApiToken
from registrations.models import Registration, Route
from spark_reports.models import RequestedRun
from spark_reports.nights.closing import last_closed_day
from spark_reports.tests import rows as reports
from tests import factories
from tests.console.test_walk import confirm, log_in
from waku_bridge.models import DeadLetter, InboundEnvelope

PUBLIC_KEY = PrivateKey(b"\x05" * 32).public_key.format()
WHY = "as agreed with ann"
CHANNEL = "/admin/notifications/channel/"
RULES = "/admin/notifications/gatewayerrorrule/"
pytestmark = pytest.mark.django_db(transaction=True)


def do(page: Page, button: str, touched: str | re.Pattern[str], reported: str, *, by: str = "operator") -> None:
    """Press a button and confirm. The page describes the operation before it, does it once, reports it, and logs who
    and why.
    """
    before = LogEntry.objects.count()
    page.get_by_role("link", name=button, exact=True).click()
    expect(page.locator("#touched")).to_contain_text(touched)
    confirm(page, button, WHY)
    expect(page.locator("#main")).to_contain_text(reported)
    assert LogEntry.objects.count() == before + 1
    entry = LogEntry.objects.order_by("pk").last()
    assert (entry.user.username, entry.change_message) == (by, f"{reported} Why: {WHY}")


@pytest.mark.nightly
def test_registrations_notifications_and_letters(visitor: Page) -> None:
    dead = factories.make_route(state="disabled", disabled_reason="operator", disabled_at=timezone.now())
    registration = factories.make_registration(route=dead)
    later = timezone.now() + timedelta(hours=1)
    waiting = [
        factories.make_notification(state="retrying", next_attempt_at=later, route=factories.make_registration().route)
        for _ in range(2)
    ]
    letter = factories.make_dead_letter()
    failed = factories.make_envelope(state="failed", reason="KeyError")
    log_in(visitor, "operator")

    visitor.goto(f"/admin/registrations/registration/{registration.pk}/change/")
    do(visitor, "Enable", "would be sent to again", "Enabled 1 registration.")
    do(visitor, "Disable", "Nothing is sent there any more", "Disabled 1 registration.")
    assert Registration.objects.get(pk=registration.pk).route.state == Route.State.DISABLED

    visitor.goto(f"/admin/notifications/notification/{waiting[0].pk}/change/")
    do(
        visitor,
        "Try now",
        "Notifications that wait, and would be sent within seconds: 1 of 1.",
        "1 notification due now.",
    )
    assert Notification.objects.get(pk=waiting[0].pk).next_attempt_at < later
    visitor.goto(f"/admin/notifications/notification/{waiting[1].pk}/change/")
    do(visitor, "Drop", "would never be sent", "Dropped 1 notification.")
    assert Notification.objects.get(pk=waiting[1].pk).state == "withdrawn"

    visitor.goto(f"/admin/waku_bridge/deadletter/{letter.pk.hex()}/change/")
    do(visitor, "Drop", "removed for good: 1.", "Dropped dead letters: 1.")
    assert not DeadLetter.objects.exists()
    visitor.goto(f"/admin/waku_bridge/inboundenvelope/{failed.pk.hex()}/change/")
    do(visitor, "Drop", "Their messages are lost", "Dropped envelopes: 1.")
    assert InboundEnvelope.objects.get().state == "dropped"


def test_channels(visitor: Page) -> None:
    now = timezone.now()
    channel = factories.make_channel((2, ""))
    for _ in range(3):
        died = factories.make_route(state="disabled", disabled_reason="device_gone", disabled_at=now)
        factories.make_registration(route=died)
    log_in(visitor, "operator")
    visitor.goto(f"{CHANNEL}{channel.pk}/change/")

    for button, touched, reported, state in [
        ("Pause", "until somebody resumes it", "Paused.", "paused"),
        ("Resume", "Notifications that wait for", "Resumed.", "running"),
        ("Trip", "one push now and then", "Tripped.", "tripped"),
    ]:
        do(visitor, button, touched, reported)
        shown = with_halts(Channel.objects.all()).get()
        assert shown.state == state
    assert (shown.changed_by, shown.reason) == ("operator", WHY)

    visitor.get_by_role("link", name="Undo disabling", exact=True).click()
    visitor.get_by_role("button", name="Show how many").click()
    expect(visitor.locator("#touched")).to_contain_text(
        "Addresses of Firebase that died since then, and would be active again: 3."
    )
    assert Route.objects.filter(state="disabled").count() == 3
    confirm(visitor, "Undo disabling", WHY)
    expect(visitor.locator("#main")).to_contain_text("Undid the disabling of 3 addresses")
    assert not Route.objects.filter(state="disabled").exists()
    assert f"Why: {WHY}" in LogEntry.objects.order_by("pk").last().change_message


@pytest.mark.nightly
def test_error_rules(visitor: Page) -> None:
    load_seed()
    log_in(visitor, "operator")

    visitor.goto(f"{RULES}add/")
    visitor.get_by_label("Text").fill("a brand new error")
    visitor.get_by_label("Code").fill("brand_new")
    visitor.get_by_label("Remark").fill(WHY)
    visitor.get_by_role("button", name="Save", exact=True).click()
    confirm(visitor, "Save the rule", WHY)
    expect(visitor.locator("#main")).to_contain_text("was added successfully")
    own = GatewayErrorRule.objects.get(code="brand_new")
    assert (own.origin, entry_of(own, ADDITION)) == ("operator", "operator")

    visitor.goto(f"{RULES}{own.pk}/change/")
    visitor.get_by_label("Code").fill("renamed")
    visitor.get_by_role("button", name="Save", exact=True).click()
    expect(visitor.locator("#main")).to_contain_text("was changed successfully")
    assert "code: 'brand_new' → 'renamed'" in LogEntry.objects.order_by("pk").last().get_change_message()

    visitor.goto(f"{RULES}{own.pk}/delete/")
    visitor.get_by_role("button", name=re.compile("Yes")).click()
    expect(visitor.locator("#main")).to_contain_text("was deleted successfully")
    assert not GatewayErrorRule.objects.filter(pk=own.pk).exists()
    assert entry_of(own, DELETION) == "operator"


def entry_of(rule: GatewayErrorRule, flag: int) -> str:
    return str(LogEntry.objects.get(object_id=str(rule.pk), action_flag=flag).user.username)


@pytest.mark.nightly
def test_a_report_is_made_again(visitor: Page) -> None:
    day = last_closed_day(timezone.now())
    run = reports.make_run(day)
    log_in(visitor, "operator")

    visitor.goto(f"/admin/spark_reports/reportrun/{run.pk}/change/")
    visitor.get_by_role("link", name="Run again").click()
    expect(visitor.locator("#touched")).to_contain_text("The reports of 1 day are computed")
    confirm(visitor, "Make reports", WHY)
    expect(visitor.locator("#main")).to_contain_text(f"Requested the reports of {day} to {day}.")

    assert RequestedRun.objects.get().from_day == day
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.change_message.endswith(f"Why: {WHY}")) == ("operator", True)


@pytest.mark.nightly
def test_an_admin_makes_a_token_for_the_api_and_revokes_it(visitor: Page) -> None:
    log_in(visitor, "admin")
    visitor.goto("/admin/pushserver/apitoken/add/")
    visitor.get_by_label("Name").fill("status page")
    visitor.get_by_label("status: reads whether").check()
    visitor.get_by_role("button", name="Save", exact=True).click()
    expect(visitor.locator("body")).to_contain_text("The token, shown only now")
    (text,) = re.findall(r"psk_[\w-]{43}", visitor.content())
    works = caller(text)
    assert works()

    visitor.goto(f"/admin/pushserver/apitoken/{ApiToken.objects.get().pk}/change/")
    expect(visitor.get_by_role("link", name="Revoke", exact=True)).to_be_visible()
    assert text not in visitor.content()
    do(visitor, "Revoke", "This cannot be undone", "Revoked tokens: 1.", by="admin")
    assert not works()


def caller(token: str) -> Callable[[], bool]:
    client = Client(headers={"authorization": f"Bearer {token}"})
    return lambda: client.get("/api/v1/channels/").status_code == 200
