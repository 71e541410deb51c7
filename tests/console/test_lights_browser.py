"""What a person reads at 3 a.m.: each fault is staged for real, and read from the page on."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests import factories
from tests.console.test_browser import show
from tests.console.test_look import axe

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("alive")]
# Twice as long as the page takes to refresh itself, and some more for a busy machine.
SOON = 20_000


def confirm(page: Page, button: str, why: str) -> None:
    page.get_by_label("Why").fill(why)
    page.get_by_role("button", name=button).click()


def warned(page: Page) -> list[str]:
    """What `/readyz` says of delivery."""
    warnings = page.request.get("/readyz").json()["warnings"]
    return [warning["what"] for warning in warnings if warning.get("server") == "delivery"]


# No pushes ------------------------------------------------------------------------------------------------------------
def test_drained_delivery_is_the_first_thing_that_is_read(operator: Page) -> None:
    operator.goto("/admin/drain/")
    confirm(operator, "Stop delivery", "gorush moves")

    operator.goto("/admin/")

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: stopped by operator since 20")
    expect(operator.locator(".verdict")).to_have_class(re.compile("bad"))
    expect(operator.locator("#light-delivery")).to_contain_text("act now")
    expect(operator.locator("#light-delivery")).to_contain_text("gorush moves")
    assert [what.partition(":")[0] for what in warned(operator)] == ["no pushes are sent"]
    assert not list(axe(operator))
    show(operator, "no-pushes-drained")

    operator.locator("#worst-delivery").click()
    confirm(operator, "Start delivery", "it has moved")
    operator.goto("/admin/")
    expect(operator.locator("#verdict")).to_have_text("Messages get through, and nothing needs you")
    assert warned(operator) == []


def test_when_every_channel_is_paused_each_is_named_and_the_canary_says_what_it_does_not_show(operator: Page) -> None:
    factories.make_channel((2, ""))
    for app in ("APN", "Firebase"):
        operator.goto("/admin/notifications/channel/")
        operator.locator("#result_list tbody th a", has_text=app).click()
        operator.get_by_role("link", name="Pause").click()
        confirm(operator, "Pause", f"{app} certificates change")

    operator.goto("/admin/")

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: stopped by operator since 20")
    for light in ("#light-delivery", "#light-channels"):
        expect(operator.locator(light)).to_contain_text("APN certificates change")
        expect(operator.locator(light)).to_contain_text("Firebase certificates change")
    expect(operator.locator("#light-canary")).to_contain_text("nothing is shown about Apple, Google and the halted")
    [what] = warned(operator)
    assert "Firebase paused since" in what
    show(operator, "no-pushes-paused")

    operator.locator("#worst-delivery").click()
    expect(operator.locator("#result_list tbody tr")).to_have_count(2)
