"""Real browser in front of a real server. requirements/system.sh finds the browser."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import transaction
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from pytest_django import DjangoDbBlocker
from pytest_django.live_server_helper import LiveServer

from embedded.supervisor.processes import PROJECT
from pushserver.console.pages import overview
from pushserver.roles import seed_roles
from tests.console.alive import alive, gorush  # noqa: F401 - fixtures
from tests.console.browsing import PASSWORD, SOON_MS, begin_session
from tests.console.routes import make_one_of_everything
from tests.console.world import World, make_world, save_peers

SYSTEM = PROJECT / "requirements" / "system.sh"
NO_CHROMIUM = "there is no Chromium, or only a snap of it, which no test can drive: `make test` names what to install"
SWITCHES = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--process-per-site",
]
RUNNING = pytest.StashKey[tuple[ExitStack, Browser]]()
expect.set_options(timeout=SOON_MS)


@pytest.fixture(scope="module")
def everything(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Make one of everything for the tests of a module. Each test rolls its own changes back."""
    with django_db_blocker.unblock(), transaction.atomic():
        seed_roles()
        make_one_of_everything()
        yield
        transaction.set_rollback(True)


@pytest.fixture
def world(settings: LazySettings, transactional_db: None) -> World:
    """A server in the middle of its day, with the results of the config checks."""
    world = make_world()
    save_peers(settings)
    return world


@pytest.fixture(scope="module")
def chromium(pytestconfig: pytest.Config, require_or_skip: Callable[[bool, str], None]) -> Browser:
    """Start the browser, unless it still runs for the module before."""
    if RUNNING not in pytestconfig.stash:
        program = find_chromium()
        require_or_skip(bool(program), NO_CHROMIUM)
        running = ExitStack()
        pytestconfig.stash[RUNNING] = running, running.enter_context(_running(program))
    return pytestconfig.stash[RUNNING][1]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the browser before a module without one, as other tests need an event loop of their own in this thread."""
    ends = nextitem is None or (nextitem.path != item.path and "chromium" not in getattr(nextitem, "fixturenames", []))
    if ends and RUNNING in item.config.stash:
        running, _ = item.config.stash[RUNNING]
        del item.config.stash[RUNNING]
        running.close()


@contextmanager
def _running(program: str) -> Iterator[Browser]:
    # Django treats Playwright's event loop as a sign of asynchronous code.
    with pytest.MonkeyPatch.context() as patched, sync_playwright() as playwright:
        patched.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=program, args=SWITCHES, timeout=SOON_MS)
        yield browser
        browser.close()


def find_chromium() -> str:
    """Return the path of the browser, or an empty string without one."""
    found = subprocess.run([SYSTEM, "--chromium"], stdout=subprocess.PIPE, text=True, check=False)
    return found.stdout.strip()


@pytest.fixture(scope="module")
def shared_context(chromium: Browser, live_server: LiveServer) -> Iterator[BrowserContext]:
    """Share a cache and a process between the tests of a module, so that style sheets and scripts are loaded once.

    The process lives as long as a page of the site is open.
    """
    context = chromium.new_context(
        base_url=live_server.url, viewport={"width": 1400, "height": 900}, reduced_motion="reduce"
    )
    context.set_default_timeout(SOON_MS)
    context.new_page().goto("/healthz")
    yield context
    context.close()


@pytest.fixture
def visitor(shared_context: BrowserContext, live_server: LiveServer) -> Iterator[Page]:
    """A browser window without a login. The test fails on a missing resource, an error in a script, or a violation of
    the content security policy.
    """
    page = shared_context.new_page()
    faults: list[str] = []
    page.on("response", lambda response: faults.append(response.url) if response.status >= 400 else None)
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    _forget(shared_context, page, live_server.url)
    assert not faults


def _forget(context: BrowserContext, page: Page, url: str) -> None:
    """Remove everything but the cache before the next test."""
    kept = {"origin": url, "storageTypes": "cookies,local_storage"}
    context.new_cdp_session(page).send("Storage.clearDataForOrigin", kept)
    context.clear_cookies()
    context.clear_permissions()
    for window in context.pages[1:]:
        window.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh the dashboard every second, so that tests of its changes wait less."""
    monkeypatch.setattr(overview, "REFRESH_SECONDS", 1)


@pytest.fixture
def operator(visitor: Page) -> Page:
    begin_session(visitor, User.objects.create_superuser("operator", password=PASSWORD))
    return visitor
