"""Pages of the indicators as an operator reads them at 3 a.m.: each fault is staged for real and then read from the
page.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import httpx
import pytest
from coincurve import PrivateKey
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Page, expect

from embedded.servers.ports import free_port
from notifications.gateways.gorush.config_check.saved import NOTICES as GORUSH_NOTICES
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.table import load_seed
from pushserver.history import traffic
from pushserver.models import AttemptMinute, Incident, NotificationMinute, TrafficMinute
from pushserver.tasks import count_traffic
from registrations.models import Registration
from tests import factories
from tests.batches import Process
from tests.console.alive import look_at
from tests.console.conftest import SOON_MS
from tests.console.test_browser import show
from tests.console.test_dashboard import stop_reading
from tests.console.test_look import axe
from tests.console.test_walk import confirm
from tests.conversation import put, registration
from waku_bridge.codec.keys import Identity

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("alive", "eager")]


# No pushes ------------------------------------------------------------------------------------------------------------
def test_drained_delivery_is_the_first_thing_that_is_read(operator: Page) -> None:
    operator.goto("/admin/drain/")
    confirm(operator, "Stop delivery", "gorush moves")

    operator.goto("/admin/")

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: stopped by operator since 20")
    expect(operator.locator(".verdict")).to_have_class(re.compile("bad"))
    expect(operator.locator("#indicator-sending")).to_contain_text("act now")
    expect(operator.locator("#indicator-sending")).to_contain_text("gorush moves")
    assert not list(axe(operator))
    show(operator, "no-pushes-drained")

    operator.locator("#worst-sending").click()
    confirm(operator, "Start delivery", "it has moved")
    operator.goto("/admin/")
    expect(operator.locator("#verdict")).to_have_text("Messages get through, and nothing needs you")


def test_every_paused_channel_is_named_and_the_canary_shows_its_limits(operator: Page) -> None:
    factories.make_channel((2, ""))
    for app in ("APN", "Firebase"):
        operator.goto("/admin/notifications/channel/")
        operator.locator("#result_list tbody th a", has_text=app).click()
        operator.get_by_role("link", name="Pause").click()
        confirm(operator, "Pause", f"{app} certificates change")

    operator.goto("/admin/")

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: stopped by operator since 20")
    for indicator in ("#indicator-sending", "#indicator-channels"):
        expect(operator.locator(indicator)).to_contain_text("APN certificates change")
        expect(operator.locator(indicator)).to_contain_text("Firebase certificates change")
    limits = "Apple, Google and halted apps are not tested"
    expect(operator.locator("#indicator-canary")).to_contain_text(limits)
    show(operator, "no-pushes-paused")

    operator.locator("#worst-sending").click()
    expect(operator.locator("#result_list tbody tr")).to_have_count(2)


# Whether gorush answers ----------------------------------------------------------------------------------------------
@pytest.fixture
def gorush_process(settings: LazySettings) -> Iterator[subprocess.Popen[bytes]]:
    """A gorush in a process of its own, which can be stopped so that it hangs."""
    port = free_port()
    settings.GORUSH_URLS = [f"http://127.0.0.1:{port}"]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        with httpx.HTTPTransport(retries=10) as transport:
            httpx.Client(transport=transport).get(settings.GORUSH_URLS[0])
        look_at(GORUSH_NOTICES, settings.GORUSH_URLS[0], timezone.now())
        yield process
        process.send_signal(signal.SIGCONT)
        process.terminate()


def test_a_hanging_gorush_is_reported_on_its_page_and_on_the_dashboard(
    operator: Page, gorush_process: subprocess.Popen[bytes], settings: LazySettings
) -> None:
    indicator = f"#indicator-gorush-{settings.GORUSH_URLS[0].removeprefix('http://')}".replace(".", "\\.").replace(
        ":", "\\:"
    )
    operator.goto("/admin/")
    expect(operator.locator(indicator)).to_contain_text("fine")

    os.kill(gorush_process.pid, signal.SIGSTOP)

    expect(operator.locator("#verdict")).to_contain_text("No pushes are sent: no gorush answers")
    expect(operator.locator(indicator)).to_contain_text("does not answer")
    expect(operator).to_have_title(re.compile("^act now: "))
    expect(operator.locator("link[rel=icon]")).to_have_attribute("data-family", "bad")
    operator.locator(indicator).get_by_role("link", name="gorush").click()
    expect(operator.locator(indicator)).to_contain_text(re.compile(r"act now\s+does not answer, since \d+ s ago"))
    expect(operator.locator("main")).to_contain_text("Start gorush, or correct GORUSH_URL")
    assert not list(axe(operator))
    show(operator, "gorush-hangs")

    os.kill(gorush_process.pid, signal.SIGCONT)
    operator.goto("/admin/")
    expect(operator.locator("#verdict")).to_have_text("Messages get through, and nothing needs you")
    expect(operator).to_have_title(re.compile("^Overview"))
    operator.locator("#incidents").click()
    rows = operator.locator("#result_list tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="does not answer")).to_contain_text("act now")
    expect(rows.filter(has_text="no pushes are sent")).to_contain_text("gorush-")  # the incident that it follows from
    show(operator, "incidents")


@pytest.mark.nightly
def test_the_page_of_a_node_reports_that_it_is_not_read(operator: Page) -> None:
    stop_reading()
    operator.goto("/admin/nodes/")

    expect(operator.locator("#indicator-node-node-01\\.example\\.org\\:8645")).to_contain_text(
        "was not read for 3 seconds"
    )
    assert not list(axe(operator))
    show(operator, "node-not-read")


# Results of pushes ---------------------------------------------------------------------------------------------------
def try_pushes(at: datetime, number: int, **fields: str) -> None:
    attempt = factories.make_attempt(token_type=1, app_topic="im.status.ethereum", started_at=at, **fields)
    rows = [attempt.__class__(**{**values_of(attempt), "number": 2 + n}) for n in range(number - 1)]
    attempt.__class__.objects.bulk_create(rows)


def values_of(row: object) -> dict[str, object]:
    fields = row._meta.concrete_fields  # type: ignore[attr-defined]
    return {field.attname: getattr(row, field.attname) for field in fields if not field.primary_key}


def wait_while_a_minute_ends() -> None:
    """Wait for the next minute if this one ends soon. A minute without any push would otherwise be among the last
    three.
    """
    left = 60 - time.time() % 60
    if left < SOON_MS / 1000:
        time.sleep(left)


def test_results_turn_red_with_the_advice_for_their_code_and_green_within_two_minutes(operator: Page) -> None:
    """The beat's task counts minutes from attempts in the table."""
    wait_while_a_minute_ends()
    TrafficMinute.objects.all().delete()
    AttemptMinute.objects.all().delete()
    minute = traffic.MINUTE
    newest = traffic.minutes(timezone.now())[-1]
    factories.make_channel((2, ""))
    factories.make_request(at=newest - traffic.SHOWN)  # the beginning of the counted time
    for ago in (4, 3, 2, 1):
        try_pushes(newest - ago * minute, 30, outcome="transient", code="unreachable")
    count_traffic()
    TrafficMinute.objects.filter(begin_at=newest).delete()
    operator.goto("/admin/")

    indicator = operator.locator("#indicator-results")
    expect(indicator).to_contain_text("act now")
    expect(indicator).to_contain_text("APN im.status.ethereum: 90 of 90 attempts failed in the last 3 minutes")
    expect(operator.locator(".worst")).to_contain_text("Our own gorush: check that it runs")
    expect(operator.locator(".worst")).not_to_contain_text("timeouts")
    show(operator, "results-red")

    try_pushes(newest, 30, outcome="delivered", code="")
    count_traffic()

    expect(indicator).to_contain_text("fine")
    [incident] = Incident.objects.filter(indicator="results")
    assert incident.ended_at is not None
    assert incident.ended_at - newest < timedelta(minutes=2)


# Faults of ours ------------------------------------------------------------------------------------------------------
def batches() -> None:
    process = Process()
    while process.process_batch(now=timezone.now()):
        pass


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_envelopes_that_failed_lead_to_their_fault_and_are_processed_again_in_two_clicks(operator: Page) -> None:
    """A constraint that no registration meets stands for a bug of the server. Dropping it is the repair."""
    sql("ALTER TABLE registrations_registration ADD CONSTRAINT nobody CHECK (version < 0) NOT VALID")
    for key in (1, 2, 3):
        put(registration(Identity(PrivateKey(key.to_bytes(32)))), now=timezone.now())
    try:
        batches()
        operator.goto("/admin/")
        indicator = operator.locator("#indicator-failed")
        expect(indicator).to_contain_text("look at it")
        expect(indicator).to_contain_text("3 failed because of a bug in this server")
        expect(indicator).to_contain_text(
            re.compile(r"IntegrityError \(nobody\) at registrations/\S+:\d+ in \w+ \(3 times\)")
        )
        show(operator, "envelopes-failed")
        operator.locator("#go-failed").click()
        row = operator.locator("#result_list tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("IntegrityError (nobody)")
        assert not list(axe(operator))
        show(operator, "faults")
        row.get_by_role("link", name="3", exact=True).click()
        expect(operator.locator("#result_list tbody tr")).to_have_count(3)
        operator.go_back()
    finally:
        sql("ALTER TABLE registrations_registration DROP CONSTRAINT nobody")

    row.get_by_role("link", name="Process again").click()
    expect(operator.locator("#touched")).to_contain_text(
        "Envelopes that failed by this fault, and would be processed again: 3."
    )
    confirm(operator, "Process again", "the constraint is gone")
    batches()

    assert Registration.objects.count() == 3
    operator.goto("/admin/")
    expect(operator.locator("#indicator-failed")).to_contain_text("fine")


# Ends of notifications -----------------------------------------------------------------------------------------------
def end_all(state: str, number: int, at: datetime) -> None:
    for _ in range(number):
        factories.make_notification(state=state, finished_at=at, at=at - timedelta(seconds=9), report="success")


def rows_listed(page: Page, link: str) -> int:
    """Follow a link of the dashboard, and count the listed rows."""
    page.goto("/admin/")
    page.locator(link).click()
    expect(page.locator("main")).to_be_visible()
    return page.locator("#result_list tbody tr").count()


def test_ends_of_pushes_are_compared_with_yesterday_and_each_figure_lists_its_rows(operator: Page) -> None:
    for model in (TrafficMinute, AttemptMinute, NotificationMinute):
        model.objects.all().delete()
    newest = traffic.minutes(timezone.now())[-1]
    within, before = newest - 5 * traffic.MINUTE, newest - 2 * timedelta(hours=1)
    for at in (within, before):  # older rows are not counted, and must not be listed
        end_all("expired", 3, at)
        end_all("delivered", 4, at)
        try_pushes(at, 6, outcome="transient", code="unavailable")
        try_pushes(at, 4, outcome="delivered", code="")
    count_traffic()
    for number, state in ((70, "expired"), (2, "dead_token")):
        NotificationMinute.objects.create(begin_at=within - traffic.DAY, state=state, count=number)
    TrafficMinute.objects.create(begin_at=within - traffic.DAY, counted_at=newest, request_count=1, reply_count=1)
    factories.make_unknown_error(last_seen_at=timezone.now())
    factories.make_unknown_error(last_seen_at=before)
    operator.goto("/admin/")

    ended = operator.locator("#ended tbody")
    assert [row.split() for row in ended.locator("tr").all_inner_texts()] == [
        ["delivered", "4", "0"],
        ["dead_token", "0", "2"],
        ["expired", "3", "70"],
    ]
    assert operator.locator("#tried tbody tr").inner_text().split() == [
        "transient",
        "unavailable",
        "6",
        "60.0",
        "%",
        "0",
    ]
    assert not list(axe(operator))
    show(operator, "ended")
    assert rows_listed(operator, "#ended-expired") == 3
    assert rows_listed(operator, "#ended-delivered") == 4
    assert rows_listed(operator, "#error-1") == 6
    assert rows_listed(operator, "#go-unknown-errors") == 1


# Rules of errors -----------------------------------------------------------------------------------------------------
@pytest.mark.nightly
def test_a_rule_that_kills_tokens_shows_their_number_before_it_is_saved_with_a_reason(operator: Page) -> None:
    load_seed()
    error = "device left the building"
    for _ in range(3):
        notification = factories.make_notification(at=timezone.now(), route=factories.make_route())
        factories.make_attempt(notification, token_type=1, outcome="transient", code="unknown", error=error)
    factories.make_unknown_error(platform="ios", signature=error)

    operator.goto("/admin/")
    operator.locator("#go-unknown-errors").click()
    operator.get_by_role("link", name="add a rule for it").click()
    operator.get_by_label("Class").select_option("dead")
    operator.get_by_label("Code").fill("left")
    operator.get_by_role("button", name="Save", exact=True).click()

    expect(operator.locator("#touched")).to_contain_text(
        "It would have matched 3 attempts and 3 routes in the last 24 h."
    )
    assert not list(axe(operator))
    show(operator, "rule-confirmed")
    assert not GatewayErrorRule.objects.filter(code="left").exists()
    confirm(operator, "Save the rule", "Apple wrote to us")
    assert GatewayErrorRule.objects.get(code="left").outcome == "dead"
    operator.goto("/admin/notifications/gatewayerrorrule/try/")
    operator.get_by_label("Error text").fill("The device left the building again")
    operator.get_by_role("button", name="Try").click()
    operator.locator("#main").get_by_role("link", name="left the building").click()
    expect(operator.get_by_label("Code")).to_have_value("left")
