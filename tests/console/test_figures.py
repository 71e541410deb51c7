"""Dashboard from rows to figures and links: halts, results of attempts, ends of notifications, and their lists."""

import re
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from notifications.models import EndedAttempt
from pushserver.console.health import stored, traffic
from pushserver.console.models import Count, Incident, TrafficMinute
from pushserver.console.tasks import count_traffic
from tests.console.reading import TRENDS, words
from tests.console.test_dashboard import indicators
from tests.rig import rows

pytestmark = pytest.mark.django_db
WELL = "Messages get through, and nothing needs you"
alive = pytest.mark.usefixtures("alive")


def board(client: Client, start: str = "", end: str = "</li>") -> str:
    """Return the words of the dashboard, or of its part from an id to an end."""
    html = client.get("/admin/").content.decode()
    return words(html.partition(f'id="{start}"')[2].partition(end)[0] if start else html).strip(" >")


def link(client: Client, name: str) -> str:
    """Return the URL of a link of the dashboard by its id."""
    [url] = re.findall(rf'<a id="{name}" href="([^"]*)"', client.get("/admin/").content.decode())
    return unescape(url)


def rows_listed(client: Client, name: str) -> int:
    return client.get(link(client, name)).content.decode().count('class="data-row')


@alive
def test_drained_delivery_is_the_first_thing_that_is_read_and_leads_to_its_end(admin_client: Client) -> None:
    admin_client.post("/admin/drain/start/", {"why": "gorush moves", "confirmed": "1"})
    assert "No pushes are sent: stopped by admin since 20" in board(admin_client, "verdict", "</h2>")
    assert re.search(
        "act now stopped by admin since [-0-9: ]+ UTC: gorush moves", board(admin_client, "indicator-sending")
    )
    assert WELL not in board(admin_client)

    page = admin_client.get(link(admin_client, "worst-sending"), follow=True)
    assert "Start delivery" in page.content.decode()
    admin_client.post(page.redirect_chain[-1][0], {"why": "it has moved", "confirmed": "1"})
    assert board(admin_client, "verdict", "</h2>") == WELL


def test_a_chart_begins_when_the_server_does(admin_client: Client) -> None:
    for kept in TRENDS.values():
        kept.forget()
    count_traffic()
    assert TrafficMinute.objects.count() == 1
    charts = re.findall(r"<canvas.*?</div>", admin_client.get("/admin/").content.decode(), re.DOTALL)
    counted = [re.findall(r'<tr>(?:(?!</tr>).)*data-value="\d', chart) for chart in charts]
    assert [len(minutes) for minutes in counted] == [1, 1, 1]


# Results of pushes ----------------------------------------------------------------------------------------------------
def try_pushes(at: datetime, number: int, **fields: str) -> None:
    attempt = rows.make_attempt(token_type=1, app_topic="im.status.ethereum", started_at=at, **fields)
    columns = {field.attname: getattr(attempt, field.attname) for field in EndedAttempt._meta.concrete_fields}
    del columns["id"]
    EndedAttempt.objects.bulk_create(EndedAttempt(**columns | {"number": 2 + n}) for n in range(number - 1))


@alive
def test_results_turn_red_with_the_advice_for_their_code_and_green_within_two_minutes() -> None:
    TrafficMinute.objects.all().delete()
    Count.objects.all().delete()
    minute, now = traffic.MINUTE, timezone.now()
    newest = traffic.minutes(now)[-1]
    rows.make_channel((2, ""))
    rows.make_request(at=newest - traffic.SHOWN)  # the beginning of the counted time
    for ago in (4, 3, 2, 1):
        try_pushes(newest - ago * minute, 30, outcome="transient", code="unreachable")
    list(traffic.count_owed(now=now))
    TrafficMinute.objects.filter(begin_at=newest).delete()

    found = indicators(now)["results"]
    assert found.state == "act now"
    assert "APN im.status.ethereum: 90 of 90 attempts failed in the last 3 minutes" in found.sentence
    assert "Our own gorush: check that it runs" in found.first_step
    assert "timeouts" not in found.first_step

    try_pushes(newest, 30, outcome="delivered", code="")
    list(traffic.count_owed(now=now))
    stored.COUNTED.forget()

    assert indicators(now)["results"].state == "fine"
    [incident] = Incident.objects.filter(indicator="results")
    assert incident.ended_at is not None
    assert incident.ended_at - newest < timedelta(minutes=2)


# Ends of notifications ------------------------------------------------------------------------------------------------
def end_all(state: str, number: int, at: datetime) -> None:
    for _ in range(number):
        rows.make_notification(state=state, finished_at=at, at=at - timedelta(seconds=9), report="success")


def table(client: Client, name: str) -> list[list[str]]:
    html = client.get("/admin/").content.decode().partition(f'id="{name}"')[2].partition("</table>")[0]
    return [words(row).split() for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)[1:]]


@alive
def test_ends_of_pushes_are_compared_with_yesterday_and_each_figure_lists_its_rows(admin_client: Client) -> None:
    for model in (TrafficMinute, Count):
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
        Count.objects.create(figure="ends", begin_at=within - traffic.DAY, outcome=state, count=number)
    TrafficMinute.objects.create(begin_at=within - traffic.DAY, counted_at=newest, request_count=1, reply_count=1)
    rows.make_unknown_error(last_seen_at=timezone.now())
    rows.make_unknown_error(last_seen_at=before)

    assert table(admin_client, "ended") == [["delivered", "4", "0"], ["dead_token", "0", "2"], ["expired", "3", "70"]]
    assert table(admin_client, "tried") == [["transient", "unavailable", "6", "60.0", "%", "0"]]
    links = ("ended-expired", "ended-delivered", "error-1", "go-unknown-errors")
    assert [rows_listed(admin_client, name) for name in links] == [3, 4, 6, 1]
