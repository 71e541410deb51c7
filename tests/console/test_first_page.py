"""The first page in a browser: what is seen without scrolling, what is folded, a click that acknowledges a fault."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from notifications.models import Channel
from pushserver.console.models import Incident
from tests.console.browsing import axe, too_wide
from tests.rig import rows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("alive", "eager")]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_verdict_and_the_charts_of_pushes_are_seen_without_scrolling(operator: Page, size: dict[str, int]) -> None:
    operator.set_viewport_size({"width": size["width"], "height": size["height"]})
    operator.goto("/admin/")
    expect(operator.locator("#indicator-inbox")).to_be_hidden()
    for seen in (operator.locator("#verdict"), operator.locator(".plot").nth(0), operator.locator(".plot").nth(1)):
        box = seen.bounding_box()
        assert box
        assert box["y"] + box["height"] <= size["height"]
    assert [*axe(operator), *too_wide(operator)] == []


def test_a_period_and_what_was_unfolded_stay_when_the_page_refreshes(operator: Page) -> None:
    operator.goto("/admin/")
    operator.get_by_role("link", name="7 d").click()
    expect(operator.locator("figcaption").first).to_contain_text("Notifications in 7 d")
    operator.locator("#fine-2 summary").click()
    for _ in "12":
        with operator.expect_response("**/admin/?last=*"):
            pass
    expect(operator.locator("figcaption").first).to_contain_text("Notifications in 7 d")
    expect(operator.locator("#indicator-inbox")).to_be_visible()
    assert list(axe(operator)) == []


def test_a_fault_is_acknowledged_by_one_click_and_its_day_has_a_bar(operator: Page) -> None:
    for app in Channel.objects.all():
        rows.make_halt("tripped", (app.token_type, app.app_topic), reason="12 of 12 sends refused: bad_certificate")
    now = timezone.now()
    past = {"began_at": now - timedelta(hours=5), "ended_at": now - timedelta(hours=4), "state": "look at it"}
    rows.make(Incident, indicator="inbox", name="Inbox", **past)
    operator.goto("/admin/")
    expect(operator.locator("#indicator-inbox svg")).to_have_attribute("aria-label", "1 incident in 24 hours")
    assert list(axe(operator)) == []
    with operator.expect_navigation():
        operator.locator("#acknowledge-sending").click()
    assert Incident.objects.get(indicator="sending").acknowledged_by == "operator"
    operator.goto("/admin/")
    expect(operator.locator(".worst")).to_contain_text("operator takes care of it")
    expect(operator.locator("#acknowledge-sending")).to_have_count(0)
