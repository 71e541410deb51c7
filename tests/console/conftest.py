"""A real browser in front of a real server: the one that requirements/system.sh finds."""

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, sync_playwright
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
