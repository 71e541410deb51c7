"""Logins and roles in a real browser: who gets in, and which pages and actions each role finds."""

import time
from base64 import b32decode

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice
from playwright.sync_api import Page, expect

from notifications.models import Channel
from notifications.queues.halts import with_halts
from registrations.models import Registration, Route
from tests import factories
from tests.budget import first_everyday
from tests.console.conftest import PASSWORD, fill_in_login, send_login
from tests.console.test_browser import show
from tests.console.test_walk import confirm, log_in

pytestmark = pytest.mark.django_db(transaction=True)
EVERYBODY = {"Overview", "Find", "gorush configuration", "Waku nodes", "Registrations", "Dead letters", "Canary runs"}
OPERATORS = {"Drain", "Changes"}
ADMINS = {"Accounts", "Roles", "Second factors", "Failed logins", "API tokens", "Access log"}
MENUS = {"support": EVERYBODY, "operator": EVERYBODY | OPERATORS, "admin": EVERYBODY | OPERATORS | ADMINS}
ACTIONS = {"Disable", "Enable"}


@pytest.fixture
def outsider(visitor: Page) -> Page:
    """A window in which refusals do not fail the test."""
    return visitor.context.new_page()


@pytest.mark.parametrize("role", first_everyday(*MENUS))
def test_the_menu_and_the_pages_offer_what_a_role_may_do(outsider: Page, role: str) -> None:
    registration = factories.make_registration()
    log_in(outsider, role)
    show(outsider, f"role-{role}")
    menu = {text.strip() for text in outsider.locator("#nav-sidebar li a > span:last-child").all_text_contents()}
    assert menu & (EVERYBODY | OPERATORS | ADMINS) == MENUS[role]

    outsider.goto(f"/admin/registrations/registration/{registration.pk}/change/")
    offered = {link for link in ACTIONS if outsider.get_by_role("link", name=link, exact=True).count()}
    assert offered == (set() if role == "support" else {"Disable"})

    operate = f"/admin/registrations/registration/operate/disable/?id={registration.pk}"
    for path, roles in [(operate, ["operator", "admin"]), ("/admin/auth/user/", ["admin"])]:
        answer = outsider.goto(path)
        assert answer
        assert answer.status == (200 if role in roles else 403)
        refused = outsider.locator("#refused")
        expect(refused).to_have_count(0 if role in roles else 1)
    if role == "support":
        expect(outsider.locator("#refused")).to_contain_text("Your role does not allow this")
        assert Route.objects.get().state == Route.State.ACTIVE


def test_a_second_factor_is_set_up_and_asked_for_from_then_on(visitor: Page) -> None:
    log_in(visitor, "support")
    visitor.get_by_role("link", name="My second factor").click()
    expect(visitor.locator("#qr-code")).to_be_visible()
    assert not TOTPDevice.objects.exists()
    visitor.get_by_label("Code").fill(code(shown_key(visitor)))
    visitor.get_by_role("button", name="Set up").click()
    expect(visitor.locator("#main")).to_contain_text("Your second factor is set up")

    visitor.context.clear_cookies()
    send_login(visitor, "support", PASSWORD)
    expect(visitor.locator("body")).to_contain_text("Please enter the correct")
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None, last_t=-1)
    send_login(visitor, "support", PASSWORD, code())
    expect(visitor.get_by_role("textbox", name="Find a user").first).to_be_visible()


def shown_key(page: Page) -> str:
    """Return the key on the page in hexadecimal digits, as an authenticator keeps it."""
    typed = page.locator("main code").inner_text()
    return b32decode(typed + "=" * (-len(typed) % 8)).hex()


def code(key: str = "") -> str:
    device = TOTPDevice(key=key) if key else TOTPDevice.objects.get()
    totp = TOTP(device.bin_key, device.step, device.t0, device.digits, device.drift)
    totp.time = time.time()
    return f"{totp.token():06}"


def test_guessing_passwords_leads_to_a_wait(outsider: Page) -> None:
    User.objects.create_superuser("ann", password=PASSWORD)
    for _ in range(settings.AXES_FAILURE_LIMIT):
        send_login(outsider, "ann", "wrong")
    expect(outsider.locator("#refused")).to_contain_text("Too many wrong logins. Wait 15 minutes")
    show(outsider, "locked-out")

    send_login(outsider, "ann", PASSWORD)
    expect(outsider.locator("#refused")).to_be_visible()


def test_a_form_sent_after_the_session_ended_does_nothing_and_comes_back_after_the_login(visitor: Page) -> None:
    registration = factories.make_registration()
    log_in(visitor, "operator")
    visitor.goto(f"/admin/registrations/registration/operate/disable/?id={registration.pk}")
    visitor.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)

    confirm(visitor, "Disable")
    expect(visitor.get_by_label("Password")).to_be_visible()
    fill_in_login(visitor, "operator", PASSWORD)

    expect(visitor.locator("#touched")).to_contain_text("Registrations with an active route: 1 of 1.")
    assert Registration.objects.get().route.state == Route.State.ACTIVE


def test_the_second_of_two_operators_reads_that_the_operation_is_done(visitor: Page) -> None:
    channel = factories.make_channel((2, ""))
    page = f"/admin/notifications/channel/{channel.pk}/operate/pause/"
    log_in(visitor, "operator")
    other = visitor.context.new_page()
    for window in (visitor, other):
        window.goto(page)

    confirm(visitor, "Pause", "the first")
    expect(visitor.locator("#main")).to_contain_text("Paused.")
    confirm(other, "Pause", "the second")

    expect(other.locator("#main")).to_contain_text("Nothing was changed: Firebase is paused already.")
    assert with_halts(Channel.objects.all()).get().reason == "the first"
