"""Timelines in a real browser: why a notification did not arrive, who acted on it, and what the words mean."""

import re
from datetime import timedelta

import orjson
import pytest
from coincurve import PrivateKey
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from playwright.sync_api import Page, expect

from notifications.acceptance.tests.test_acceptance import accept, incoming, make_recipient, push
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.table import current_rules, load_seed
from notifications.gateways.gorush.sending.push_api import read_response
from notifications.messages import Effect, Outcome, PushLimit, Result
from notifications.models import Notification
from notifications.rules.policy import Verdict, Wish
from pushserver.console.labels import CLASSES, EFFECTS, ENDS, LIMITS, VERDICTS, WISHES
from registrations.messages import TokenType
from registrations.models import Registration
from tests import factories
from tests.console.test_browser import show
from tests.console.test_find import make_story, short_form, words_of
from tests.console.test_operations import staff
from tests.console.test_walk import PUBLIC_KEY, confirm, find, log_in
from tests.console.test_walk_reach import note
from tests.delivering import claimed, make_due, recorded
from waku_bridge.codec.keys import chat_key, key_hash

pytestmark = pytest.mark.django_db(transaction=True)
TOKEN = "f" * 40
APPLE = {"token_type": TokenType.APN, "app_topic": "im.status.ethereum", "device_token": TOKEN}


def steps(page: Page) -> str:
    return re.sub(r"\s+", " ", page.locator("#timeline").inner_text())


def fail(notification: Notification, error: str) -> None:
    """Make an attempt fail with an error text of gorush."""
    now = timezone.now()
    with transaction.atomic():
        [held] = claimed(notification, now=now)
    body = {"success": "ok", "counts": 1, "logs": [{"type": "failed-push", "token": TOKEN, "error": error}]}
    result: Result = read_response(200, orjson.dumps(body), held.push, current_rules().rules)
    with transaction.atomic():
        recorded([(held, result)], now=now)


def test_staff_actions_stand_in_the_timeline_with_who_and_why(visitor: Page) -> None:
    dropped, disabled = (make_due(at=timezone.now()) for _ in range(2))
    registration = Registration.objects.get(route=disabled.route)
    Notification.objects.filter(pk=disabled.pk).update(
        public_key_hash=registration.public_key_hash, installation_id=registration.installation_id
    )
    Notification.objects.filter(pk=dropped.pk).update(next_attempt_at=timezone.now() + timedelta(hours=1))
    log_in(visitor, "operator")
    visitor.goto(f"/admin/notifications/notification/{dropped.pk}/change/")
    for button, why in [("Try now", "gorush is back"), ("Drop", "as she asked")]:
        visitor.get_by_role("link", name=button, exact=True).click()
        confirm(visitor, button, why)
    visitor.get_by_role("link", name="Timeline").click()
    listed = steps(visitor)
    assert "By operator: notification: 1 notification due now. Why: gorush is back" in listed
    assert "Finished: withdrawn operator withdrew it. Dropped 1 notification. Why: as she asked" in listed
    show(visitor, "timeline-dropped")

    visitor.goto(f"/admin/registrations/registration/{registration.pk}/change/")
    visitor.get_by_role("link", name="Disable", exact=True).click()
    confirm(visitor, "Disable", "too many complaints")
    visitor.goto(f"/admin/timelines/{disabled.pk}/")
    assert "Finished: withdrawn operator withdrew it. Disabled 1 registration." in steps(visitor)
    visitor.locator("#timeline").get_by_role("link", name="registration: Disabled 1").click()
    expect(visitor.locator("#main")).to_contain_text("too many complaints")


def test_the_error_text_leads_to_its_rule_and_its_class_is_explained(visitor: Page) -> None:
    load_seed()
    notification = make_due(route=factories.make_registration(route=factories.make_route(**APPLE)).route)
    fail(notification, "Unregistered")
    unknown = make_due(route=factories.make_registration(route=factories.make_route(**APPLE)).route)
    fail(unknown, f"teapot 17 has no {TOKEN}")
    log_in(visitor, "support")

    visitor.goto("/admin/notifications/attempt/")
    visitor.locator("#result_list tbody tr").last.get_by_role("link").first.click()
    expect(visitor.locator("#main")).to_contain_text("unregistered")
    visitor.get_by_role("link", name="Timeline").click()
    assert "“unregistered”" in steps(visitor)
    assert CLASSES["dead"] in steps(visitor)
    show(visitor, "timeline-error")
    visitor.get_by_role("link", name="its rule").click()
    rule = GatewayErrorRule.objects.get(code="Unregistered", platform="ios")
    expect(visitor).to_have_url(re.compile(f"gatewayerrorrule/{rule.pk}/"))

    visitor.goto(f"/admin/timelines/{unknown.pk}/")
    assert "(unknown, “teapot <n> has no <token>”)" in steps(visitor)
    assert TOKEN not in visitor.content()


def test_a_suppressed_or_refused_notification_names_the_rule_or_check(visitor: Page) -> None:
    make_recipient(muted_chat_list=[b"chat"])
    message = b"\x0a" * 32
    pushes = [push(chat_id=b"chat"), push(access_token="wrong"), push(b"\xcc" * 64), push(chat_id=b"other")]
    accept([incoming(*pushes, message_id=message)], now=timezone.now())
    accept([incoming(push(chat_id=b"chat"), amm=b"\x02" * 32, message_id=b"\x0b" * 32)], now=timezone.now())
    log_in(visitor, "support")

    find(visitor, (b"\x0b" * 32).hex())
    expect(visitor.locator("h1")).to_contain_text("Timeline of request")
    assert "Decided at once: suppressed" in steps(visitor)
    assert "Suppressed by the recipient: its chat is muted." in steps(visitor)
    show(visitor, "timeline-suppressed")

    find(visitor, message.hex())
    reported = steps(visitor)
    for shown in ("its chat is muted", "Wrong access token", "Not registered"):
        assert shown in reported
    assert "Decided at once: wrong_token" in reported


def test_the_number_that_is_shown_and_a_link_to_a_profile_are_found(visitor: Page) -> None:
    key = PrivateKey(b"\x05" * 32).public_key.format()
    notification = make_story(key)
    addresses: list[str] = []
    visitor.on("request", lambda request: addresses.append(request.url))
    log_in(visitor, "support")

    find(visitor, str(notification.pk))
    expect(visitor).to_have_url(re.compile(f"/admin/timelines/{notification.pk}/"))
    short = short_form(key)
    for link in (
        f"https://status.app/u/CwSACgYKBEpvaG4D#{short}",
        f"status.app/u#{short}",
        f"https://join.status.im/u/{chat_key(key)}",
        f"https://status.app/u/{short}",
    ):
        find(visitor, link)
        expect(visitor).to_have_url(re.compile(f"/admin/users/{key_hash(key).hex()}/"))
    assert not [address for address in addresses if short[5:20] in address or chat_key(key)[5:20] in address]


def test_another_persons_actions_on_other_rows_are_no_part_of_the_story() -> None:
    notification = make_story(PUBLIC_KEY)
    note(User.objects.create_user("ann"), factories.make_notification(), "Dropped 1 notification. Why: another")
    assert "Why: another" not in words_of(staff("operator"), f"/admin/timelines/{notification.pk}/")


def test_every_word_has_a_meaning() -> None:
    assert set(ENDS) == {state for state in Notification.State if state.is_terminal}
    assert set(WISHES) == set(Wish)
    assert set(VERDICTS) == set(Verdict)
    assert set(LIMITS) == set(PushLimit)
    assert set(EFFECTS) == set(Effect)
    assert set(CLASSES) == set(Outcome)
