"""A real browser in front of a real server: the one that requirements/system.sh finds."""

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from pytest_django.live_server_helper import LiveServer

from pushserver.supervisor.processes import PROJECT
from tests.console.alive import alive, gorush  # noqa: F401 - fixtures

SYSTEM = PROJECT / "requirements" / "system.sh"
NO_CHROMIUM = "there is no Chromium, or only a snap of it, which no test can drive: `make test` names what to install"
SWITCHES = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def chromium(require_or_skip: Callable[[bool, str], None]) -> Iterator[Browser]:
    """For one module only: while Playwright runs, this thread has an event loop, and other tests want their own."""
    program = find_chromium()
    require_or_skip(bool(program), NO_CHROMIUM)
    # Django takes the loop for a sign of asynchronous code.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=SWITCHES)
        yield browser
        browser.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    os.environ |= {} if before is None else {"DJANGO_ALLOW_ASYNC_UNSAFE": before}


def find_chromium() -> str:
    """Return the path of the browser, empty without one."""
    found = subprocess.run([SYSTEM, "--chromium"], stdout=subprocess.PIPE, text=True, check=False)
    return found.stdout.strip()


@pytest.fixture(scope="module")
def context(chromium: Browser, live_server: LiveServer) -> Iterator[BrowserContext]:
    """Share one cache between the tests of a module: style sheets, scripts and fonts are fetched once."""
    context = chromium.new_context(base_url=live_server.url, viewport={"width": 1400, "height": 900})
    yield context
    context.close()


@pytest.fixture
def visitor(context: BrowserContext, live_server: LiveServer) -> Iterator[Page]:
    """A browser window that nobody has logged in with. Whatever it misses on the server, whatever is wrong in it, and
    whatever the security policy of the pages forbids fails the test.
    """
    page = context.new_page()
    faults: list[str] = []
    page.on("response", lambda response: faults.append(response.url) if response.status >= 400 else None)
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    _forget(context, page, live_server.url)
    assert not faults


def _forget(context: BrowserContext, page: Page, url: str) -> None:
    """Leave nothing but the cache to the next test."""
    kept = {"origin": url, "storageTypes": "cookies,local_storage"}
    context.new_cdp_session(page).send("Storage.clearDataForOrigin", kept)
    context.clear_cookies()
    context.clear_permissions()
    for window in context.pages:
        window.close()


@pytest.fixture
def operator(visitor: Page) -> Page:
    begin_session(visitor, User.objects.create_superuser("operator", password=PASSWORD))
    return visitor


def begin_session(page: Page, user: User) -> None:
    """Log somebody in without the form, on a page that costs little; ``test_browser`` fills in the form."""
    client = Client()
    client.force_login(user)
    cookie = {"name": settings.SESSION_COOKIE_NAME, "value": client.session.session_key, "path": "/"}
    page.context.add_cookies([{**cookie, "domain": "localhost"}])
    page.goto("/admin/find/")


def send_login(page: Page, name: str, password: str, code: str = "") -> None:
    page.goto("/admin/login/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_label("Code").fill(code)
    page.get_by_role("button", name="Log in").click()
