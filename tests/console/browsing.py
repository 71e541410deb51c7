"""Steps in the browser that several tests take, and checks of what it shows."""

from collections.abc import Iterator

from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page

from pushserver.roles import seed_roles
from tests.rig.rows import make_staff

PASSWORD = "correct horse battery staple"
# How long a page is waited for: a busy machine takes its time.
SOON_MS = 120_000
NOTICED = {"moderate", "serious", "critical"}
# Preloading style sheets and media serves only two rules: one is off, and the other one is about sound.
AXE = {"resultTypes": ["violations"], "preload": False}


def begin_session(page: Page, user: User) -> None:
    """Log in without the form, on a cheap page; ``test_journeys`` fills in the form."""
    client = Client()
    client.force_login(user)
    cookie = {"name": settings.SESSION_COOKIE_NAME, "value": client.session.session_key, "path": "/"}
    page.context.add_cookies([{**cookie, "domain": "localhost"}])
    page.goto("/admin/find/")


def log_in(page: Page, role: str) -> None:
    seed_roles()
    user = make_staff(role)
    user.set_password(PASSWORD)
    user.save()
    begin_session(page, user)


def send_login(page: Page, name: str, password: str) -> None:
    page.goto("/admin/login/")
    fill_in_login(page, name, password)


def fill_in_login(page: Page, name: str, password: str) -> None:
    """Log in on the page that a session's end led to."""
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def find(page: Page, term: str) -> None:
    box = page.get_by_role("textbox", name="Find a user").first
    box.fill(term)
    box.press("Enter")


def confirm(page: Page, button: str, why: str = "as agreed with ann") -> None:
    """Confirm an operation, and wait until the server has done it: a click alone returns before."""
    page.get_by_label("Why").fill(why)
    with page.expect_navigation():
        page.get_by_role("button", name=button, exact=True).click()


def axe(page: Page, **options: object) -> Iterator[str]:
    """Yield the faults that keep people from reading the page with a screen reader, or at all."""
    found = Axe().run(page, options={**AXE, **options})
    for violation in found.response["violations"]:
        if violation["impact"] in NOTICED:
            yield f"{violation['id']}: {violation['nodes'][0]['html'][:200]}"


def too_wide(page: Page) -> Iterator[str]:
    pixels = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if pixels > 0:
        yield f"{pixels} px too wide"
