"""A real browser in front of a real server: Debian's Chromium, since no other one may be installed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, Playwright, sync_playwright
from pytest_django.live_server_helper import LiveServer

from tests.console.alive import alive, gorush  # noqa: F401 - fixtures

# The first that is there. The one without windows starts faster and takes less of the processor.
CHROMIUMS = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
CHROMIUM = next((path for path in CHROMIUMS if path.exists()), CHROMIUMS[-1])
SWITCHES = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def chromium(require_or_skip: Callable[[bool, str], None]) -> Iterator[Browser]:
    """For one module only: while Playwright runs, this thread has an event loop, and other tests want their own."""
    require_or_skip(CHROMIUM.exists(), f"there is no {CHROMIUM}")
    # Django takes the loop for a sign of asynchronous code.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    os.environ |= {} if before is None else {"DJANGO_ALLOW_ASYNC_UNSAFE": before}


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)


@pytest.fixture
def visitor(chromium: Browser, live_server: LiveServer) -> Iterator[Page]:
    """A browser window that nobody has logged in with. Whatever it misses on the server, whatever is wrong in it, and
    whatever the security policy of the pages forbids fails the test.
    """
    context = chromium.new_context(base_url=live_server.url, viewport={"width": 1400, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    page.on("response", lambda response: faults.append(response.url) if response.status >= 400 else None)
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    context.close()
    assert not faults


@pytest.fixture
def operator(visitor: Page) -> Page:
    """Logged in, the way people do it."""
    User.objects.create_superuser("operator", password=PASSWORD)
    visitor.goto("/")
    visitor.get_by_label("Username").fill("operator")
    visitor.get_by_label("Password").fill(PASSWORD)
    visitor.get_by_role("button", name="Log in").click()
    return visitor
