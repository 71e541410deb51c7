"""Landing page of the console, from real servers to the text that each role reads. The rules of the indicators have
tables of their own.
"""

import re
import socket
import time
from collections.abc import Callable
from contextlib import closing
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from kit.db.sessions import Timeouts
from notifications.queues import halts
from pushserver.api.tests.test_api import caller
from pushserver.celery import HEARTBEAT_KEY
from pushserver.console.canary.waku import canary
from pushserver.console.checks.gorush import NOTICES as GORUSH_NOTICES
from pushserver.console.checks.nodes import NOTICES as NODE_NOTICES
from pushserver.console.checks.peers import Complaint
from pushserver.console.health import history, stored
from pushserver.console.health import indicators as judged
from pushserver.console.health.indicators import kinds_of
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.traffic import minutes
from pushserver.console.health.verdicts import VALUES, Page, State, Verdict, without_hosts
from pushserver.console.models import ApiToken, Count, Incident, TrafficMinute
from pushserver.console.pages import overview
from pushserver.console.pages.overview import url_of
from pushserver.console.parts import parts
from pushserver.console.toolkit.times import exact
from pushserver.console.waku import part
from pushserver.console.waku.indicators import many_lost_replies
from spark_reports.nights.nights import last_closed_day
from tests.console.alive import NODES, look_at
from tests.console.reading import staff, words, words_of
from tests.rig import reports, rows
from tests.rig.statements import other_session
from waku_bridge.models import EndedReply
from waku_bridge.reading.live import LAST_READ
from xmpp_bridge.component import END as COMPONENT_END

SOON_SECONDS = 15
REFRESH = {"HX-Request": "true"}
COMPLAINT = Complaint("wrong", "this is off", "why", "Do that.")
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("alive")]
Shown = tuple[State, str]


def indicators(now: datetime | None = None) -> dict[str, Verdict]:
    return {found.id: found for found in take_snapshot(now=now or timezone.now()).indicators}


def test_a_system_that_works_is_green() -> None:
    look_at(GORUSH_NOTICES, "http://elsewhere.test", timezone.now(), COMPLAINT)  # about a gorush that is gone
    found = indicators()

    assert {name: one.sentence for name, one in found.items() if one.state != State.GREEN} == {
        "reports": "Nightly reports are switched off (REPORTS_NIGHTLY).",
        "anomalies": "none in the newest night",
        "traffic": "not known yet: 0 of 5 days to compare with",
    }


def test_page_api_and_metrics_show_every_indicator_and_readyz_those_that_decide_readiness(
    component: None, admin_client: Client, settings: LazySettings
) -> None:
    left = 60 - time.time() % 60
    time.sleep(left if left < SOON_SECONDS else 0)  # all answers must be about the same minutes
    settings.METRICS_TOKEN = "a-token-of-the-tests-0123456789"
    COMPONENT_END.save("connected")
    stop_reading()
    found = indicators()
    assert {one.kind for one in found.values()} == set(kinds_of(parts()))

    page = admin_client.get("/admin/").content.decode()
    status = caller(ApiToken.Scope.STATUS)("status/").json()
    metrics = Client().get("/metrics", headers={"Authorization": f"Bearer {settings.METRICS_TOKEN}"}).content.decode()
    readyz = Client().get("/readyz").json()

    assert sorted(re.findall(r'<li id="indicator-([^"]*)"', page)) == sorted(found)
    assert all(one.sentence in words(page) and one.state in words(page) for one in found.values())
    assert [one["id"] for one in status["indicators"]] == list(found)
    deciding = [one for one in found.values() if one.kind.decides_readiness]
    assert [one["id"] for one in readyz["indicators"]] == [one.id for one in without_hosts(deciding)]
    for one in status["indicators"]:
        of_list = found[one["id"]]
        assert (one["sentence"], one["first_step"]) == (of_list.sentence, of_list.first_step)
        assert (one["state"], bool(one["since"])) == (of_list.state, bool(of_list.since))
        assert (PROJECT / "docs" / "runbooks" / f"{one['runbook']}.md").exists()
    shown = dict(re.findall(r'pushserver_indicator_state\{indicator="([^"]*)"\} (\d)', metrics))
    assert shown == {one.id: str(VALUES[one.state]) for one in found.values() if one.state in VALUES}


def stop_reading() -> None:
    cache.delete_many([LAST_READ.key(url) for url in NODES])


def stop_worker() -> None:
    cache.delete(HEARTBEAT_KEY.format(queue="keys"))


def note_node() -> None:
    look_at(NODE_NOTICES, NODES[0], timezone.now(), COMPLAINT)


def break_canary() -> None:
    canary.save(rows.make_canary_run(state="broken", broken_link="register_answer", cause="bridge"))


def trip() -> None:
    rows.make_channel((1, "im.other"))
    rows.make_halt("tripped", (1, "im.other"), reason="3 of 3 sends refused: bad_topic")


def old() -> dict[str, datetime]:
    return {"at": timezone.now() - timedelta(minutes=3)}


def make_old_envelope() -> None:
    rows.make_envelope(**old())


def make_old_notification() -> None:
    rows.make_notification(**old())


def make_old_reply() -> None:
    rows.make_reply(**old())


BREAKAGES: list[tuple[Callable[[], Any], str, Shown]] = [
    (stop_reading, "node-node-01.example.org:8645", (State.RED, "was not read for 3 seconds")),
    (stop_worker, "workers", (State.RED, "no worker for keys")),
    (note_node, "node-node-01.example.org:8645", (State.YELLOW, "this is off")),
    (break_canary, "canary", (State.RED, "broken: the bridge does not read what a node took")),
    (trip, "channels", (State.RED, "APN im.other tripped by a breaker since {now}: 3 of 3 sends refused: bad_topic")),
    (make_old_envelope, "inbox", (State.RED, "1 waiting, the oldest for 3 min")),
    (make_old_notification, "delivery", (State.RED, "the longest waiting notification has been due for 3 min")),
    (make_old_reply, "replies", (State.RED, "1 waiting, the oldest for 3 min")),
]


@pytest.mark.parametrize(
    ("break_it", "indicator", "expected"), BREAKAGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_fault_changes_the_state_of_its_indicator_and_readyz_if_that_decides_readiness(
    client: Client, break_it: Callable[[], Any], indicator: str, expected: Shown
) -> None:
    assert client.get("/readyz").json()["status"] == "ready"
    break_it()

    answer, every = client.get("/readyz").json(), indicators()

    found, (state, words) = every[indicator], expected
    assert (found.state, found.sentence) == (state, words.format(now=exact(found.since) if found.since else ""))
    deciding = [found for found in every.values() if found.kind.decides_readiness]
    assert shown(answer) == [
        (found.id, found.state, found.sentence, found.first_step) for found in without_hosts(deciding)
    ]
    assert (answer["status"] == "ready") == (State.RED not in {found.state for found in deciding})


def shown(answer: dict[str, Any]) -> list[tuple[str, ...]]:
    return [tuple(found[name] for name in ("id", "state", "sentence", "first_step")) for found in answer["indicators"]]


@pytest.fixture
def component(settings: LazySettings) -> None:
    settings.XMPP_COMPONENT_JID, settings.XMPP_COMPONENT_SECRET = "push.example.org", "s"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("connected", (State.GREEN, "connected")),
        ("not-authorized", (State.RED, "the XMPP server does not accept XMPP_COMPONENT_SECRET")),
        ("", (State.RED, "no component is running")),
    ],
)
def test_the_indicator_of_xmpp_shows_how_the_connection_ended(component: None, end: str, expected: Shown) -> None:
    if end:
        COMPONENT_END.save(end)
    found = indicators()["xmpp"]
    assert (found.state, found.sentence) == expected


def come_by(bridge: str, number: int, *, replies: int = 0) -> None:
    """Make a bridge receive ``number`` requests and send ``replies`` in the last counted minute."""
    begin_at = minutes(timezone.now())[-1]
    Count.objects.create(figure="requests", begin_at=begin_at, subject=bridge, count=number)
    Count.objects.create(figure="replies", begin_at=begin_at, subject=bridge, count=replies)


def test_a_component_without_an_app_is_yellow(component: None) -> None:
    rows.make_xmpp_app(is_retired=True)
    assert indicators()["xmpp-apps"].state == State.YELLOW
    rows.make_xmpp_app()
    come_by("xmpp", 300)
    assert indicators()["xmpp-apps"].sentence == "serves 1; 300 pushes in the last hour"


def test_pushes_of_xmpp_are_in_the_chart_where_there_is_a_component(
    admin_client: Client, settings: LazySettings
) -> None:
    come_by("xmpp", 5)
    assert "of these by XMPP" not in words(admin_client.get("/admin/").content.decode())

    settings.XMPP_COMPONENT_JID = "push.example.org"

    assert "of these by XMPP 5" in words(admin_client.get("/admin/").content.decode())


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_gorush_that_is_away_or_hangs_is_red_with_its_remedy(
    admin_client: Client, settings: LazySettings, is_listening: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        port = hanging.getsockname()[1] if is_listening else free_port()
        settings.GORUSH_URLS = [f"http://127.0.0.1:{port}"]
        found = indicators()[f"gorush-127.0.0.1:{port}"]
        assert (found.state, found.sentence) == (State.RED, "does not answer")
        assert "Start gorush, or correct GORUSH_URL" in words_of(admin_client, "/admin/gorush/")


def test_no_secret_of_a_url_is_on_the_page_also_while_redis_is_away(
    admin_client: Client, settings: LazySettings
) -> None:
    stop_reading()
    html = admin_client.get("/admin/").content.decode()
    assert "node-01.example.org:8645" in html
    assert [secret for secret in ("secret-of-node-1", "reader:") if secret in html] == []

    settings.REDIS_URL = f"redis://:secret-of-redis@127.0.0.1:{free_port()}/0"
    html = admin_client.get("/admin/").content.decode()
    assert "Redis does not answer" in html
    assert "not known while Redis is away" in html
    assert "secret-of-redis" not in html


def test_an_indicator_without_a_beginning_keeps_the_time_when_it_was_first_seen() -> None:
    stop_worker()
    first = take_snapshot(now=timezone.now() - timedelta(minutes=9)).facts["now"]

    assert indicators()["workers"].since == first


def lose(number: int, *, at: datetime | None = None, **fields: Any) -> None:
    made = rows.make_reply(at=at, **{"state": "unconfirmed", "repeat_count": 1, **fields})
    one = EndedReply.objects.get(pk=made.pk)
    others = [copy(one) for _ in range(number - 1)]
    for other in others:
        other.pk, other.envelope_hash = None, token_bytes(32)
    EndedReply.objects.bulk_create(others)


def test_one_lost_reply_in_twenty_shows_at_any_number_of_replies() -> None:
    """A reply without an answer of a store is not lost, and neither is an older one."""
    come_by("waku", 0, replies=36_000)
    now, needed = timezone.now(), many_lost_replies(36_000)
    assert needed > part.MAX_COUNTED
    lose(10, repeat_count=0)
    lose(10, at=now - timedelta(minutes=61))
    lose(needed - 1)
    assert indicators(now)["lost-replies"].state == State.GREEN
    lose(1, state="abandoned", repeat_count=0)
    found = indicators(now)["lost-replies"]
    assert (found.state, found.sentence) == (
        State.YELLOW,
        f"{needed:,} of the last hour may not have reached anybody",
    )


def test_waiting_rows_are_counted_once_for_all_views_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    indicators()
    monkeypatch.setattr(stored, "KEPT_SECONDS", 60)
    make_old_envelope()

    assert indicators()["inbox"].sentence == "empty"
    stored.COUNTED.forget()
    assert indicators()["inbox"].sentence == "1 waiting, the oldest for 3 min"


def test_the_page_reports_a_database_that_takes_too_long_to_count(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = stored.gauges()
    slow = replace(first, sql="SELECT 1 FROM pg_sleep(5)", labelnames=())
    monkeypatch.setattr(stored, "gauges", lambda: [slow, *others])
    monkeypatch.setattr(stored, "TIMEOUTS", Timeouts(statement_seconds=0.5, lock_seconds=0.5))

    board = words(admin_client.get("/admin/").content.decode())

    assert "takes too long to count the backlog" in board
    assert board.count("not known while PostgreSQL does not answer in time") == 4
    assert "none waiting" not in board


@pytest.mark.django_db(transaction=True)
def test_the_page_does_not_wait_for_incidents_that_are_locked_and_calls_no_day_fine(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "TIMEOUTS", Timeouts(statement_seconds=2, lock_seconds=0.2))
    assert "no incident in 24 hours" in admin_client.get("/admin/").content.decode()

    with closing(other_session()) as other:
        other.execute("LOCK TABLE pushserver_incident IN ACCESS EXCLUSIVE MODE")
        board = admin_client.get("/admin/").content.decode()

    assert "Messages may be late" in words(board)
    assert "in 24 hours" not in board


def test_a_day_of_pushes_is_read_once_for_all_pages_within_seconds(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charts() -> str:
        html = admin_client.get("/admin/?last=24 h").content.decode()
        return html.partition('aria-labelledby="trend"')[2].partition("</section>")[0]

    for kept in history.RECENT.values():
        kept.forget()
    monkeypatch.setattr(history, "KEPT_SECONDS", 60)
    before = charts()
    Count.objects.filter(figure="waits").update(count=70_001)
    assert charts() == before
    monkeypatch.setattr(history, "KEPT_SECONDS", 0)
    assert charts() != before


def test_stores_of_one_host_share_an_indicator_that_shows_the_one_that_is_behind(settings: LazySettings) -> None:
    now = timezone.now()
    another = NODES[0].replace("reader:", "another:")
    settings.WAKU_STORE_NODES = [NODES[0], another]
    never = [found for found in take_snapshot(now=now).indicators if found.id.startswith("store-")]
    behind = rows.make_watermark(node=another, at=now - timedelta(hours=1))

    stores = take_snapshot(now=timezone.now()).facts["stores"]

    assert ["never read" in found.sentence for found in never] == [True]
    assert [store.read_up_to for store in stores] == [behind.watermark_at]


def test_the_three_worst_indicators_have_a_remedy_and_a_link(admin_client: Client) -> None:
    for break_it in (make_old_reply, trip, note_node, stop_worker):
        break_it()

    html = admin_client.get("/admin/").content.decode()

    worst = re.search(r'<ol class="worst">(.*?)</ol>', html, re.DOTALL).group(1)
    assert re.findall(r"<strong>(.*?)</strong>", worst) == ["Workers:", "Apps:", "Replies:"]
    assert 'href="/admin/notifications/channel/?halted=tripped"' in worst
    assert "Start <code>celery -A pushserver.worker worker -Q keys</code>" in worst
    steps = re.findall(r'href="([^"]*)">Step by step<', worst)
    assert all("Verification" in words_of(admin_client, step) for step in steps)


def test_figures_of_the_last_hour_are_charts_with_words(admin_client: Client) -> None:
    html = admin_client.get("/admin/").content.decode()

    charts = re.findall(r"<canvas.*?</div>", html, re.DOTALL)
    assert len(charts) == 5
    assert all("<caption>" in chart and chart.count('<th scope="row">') == 60 for chart in charts)
    assert re.search(r"UTC: requests \d+, replies sent \d+", html)
    assert re.search(r"UTC: median \d+ ms, 95th percentile \d+ ms", html)
    assert re.search(r"delivered 2\d,000, failed \d{3}, merged 0, waiting \d", html)
    assert re.search(r"median 4\d ms, 95th percentile 4\d ms, 99th percentile 1\d\d ms", html)


def test_without_counted_minutes_charts_say_so(admin_client: Client) -> None:
    TrafficMinute.objects.all().delete()
    Count.objects.all().delete()
    html = admin_client.get("/admin/").content.decode()
    assert html.count("No minute of the last hour was counted.") == 3
    assert "delivered -, failed -, merged -, waiting -" in html
    assert "No push was attempted." in html


# Roles ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("role", ["support", "operator", "admin"])
def test_every_role_sees_the_indicators_and_only_links_that_it_may_follow(role: str) -> None:
    client = staff(role)
    halts.begin(halts.Kind.DRAINED, by="ann", reason="gorush moves", now=timezone.now())
    trip()

    html = client.get("/admin/").content.decode()

    board_html = html.partition('id="board"')[2]
    links = set(re.findall(r'<a id="[^"]*" href="([^"]*)"', board_html))
    assert len(links) > 5
    assert {client.get(link.replace("&amp;", "&"), follow=True).status_code for link in links} == {200}
    assert ("/admin/drain/" in links) == (role != "support")


def test_every_page_has_an_address_that_exists(admin_user: User) -> None:
    own = {page for page in vars(judged).values() if isinstance(page, Page)}
    every = own | {kind.page for kind in kinds_of(parts()) if kind.page}
    assert all(url_of(page, admin_user).startswith("/admin/") for page in every)


def test_staff_without_a_role_see_indicators_and_no_links_into_tables() -> None:
    html = staff("").get("/admin/").content.decode()
    assert "Every link of the chain" in html
    assert not re.findall(r'href="/admin/(?:notifications|waku_bridge|registrations)/', html.partition('id="board"')[2])


def test_what_was_done_to_an_account_is_shown_to_admins_alone(admin_user: User) -> None:
    Incident.objects.create(indicator="inbox", name="Inbox", state=State.YELLOW, sentence="", **_since(timezone.now()))
    for row, change in ((admin_user, "Reset the password of ann"), (rows.make_halt("drained"), "Stopped it")):
        kind = ContentType.objects.get_for_model(row)
        earlier = timezone.now() - timedelta(minutes=20)
        entry = {"content_type": kind, "object_id": row.pk, "object_repr": "x", "action_flag": CHANGE}
        LogEntry.objects.create(user=admin_user, change_message=change, action_time=earlier, **entry)

    for page in ("/admin/", f"/admin/pushserver/incident/{Incident.objects.get(indicator='inbox').pk}/change/"):
        for role, expected in (("support", [False, False]), ("operator", [False, True]), ("admin", [True, True])):
            text = words_of(staff(role), page)
            assert [change in text for change in ("Reset the password of ann", "Stopped it")] == expected


def _since(now: datetime) -> dict[str, datetime]:
    return {"incident_at": now, "began_at": now}


def test_only_who_may_view_incidents_sees_those_of_the_day(admin_client: Client) -> None:
    now = timezone.now()
    past = {"began_at": now - timedelta(minutes=30), "ended_at": now - timedelta(minutes=20), "state": State.YELLOW}
    rows.make(Incident, indicator="inbox", name="Inbox of that day", **past)

    assert "Inbox of that day" in words_of(admin_client, "/admin/")
    html = staff("").get("/admin/").content.decode()
    assert "Inbox of that day" not in html
    assert "in 24 hours" not in html


def test_an_incident_that_goes_on_is_shown_however_many_began_and_ended_since(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MAX_INCIDENTS", 1)
    trip()
    take_snapshot(now=timezone.now() - timedelta(hours=2))
    past = {"began_at": timezone.now() - timedelta(minutes=9), "ended_at": timezone.now(), "state": State.YELLOW}
    rows.make(Incident, indicator="inbox", name="Inbox", **past)

    assert 'id="acknowledge-channels"' in admin_client.get("/admin/").content.decode()


def test_an_event_of_a_week_has_its_day(admin_client: Client) -> None:
    began_at = timezone.now() - timedelta(days=3)
    rows.make(Incident, indicator="inbox", name="Inbox", state=State.YELLOW, began_at=began_at, ended_at=began_at)
    Count.objects.create(figure="hour ends", begin_at=began_at, outcome="delivered", count=1)

    assert f"{began_at:%a %-d, %H:%M} Inbox: look at it" in words_of(admin_client, "/admin/?last=7 d")


def test_the_page_of_an_incident_says_nothing_about_staff_to_who_may_not_read_changes() -> None:
    incident = rows.make(Incident, indicator="inbox", name="Inbox", state=State.YELLOW, at=timezone.now())
    page = f"/admin/pushserver/incident/{incident.pk}/change/"
    assert "Staff changed nothing, and no worker started." in words_of(staff("operator"), page)
    assert "Staff changed nothing" not in words_of(staff("support"), page)


# Refreshing -----------------------------------------------------------------------------------------------------------
def test_a_refresh_returns_the_indicators_without_the_page_around_them(admin_client: Client) -> None:
    html = admin_client.get("/admin/", headers=REFRESH).content.decode()

    assert 'id="verdict"' in html
    assert "<html" not in html
    assert 'id="board"' not in html


def test_a_refresh_keeps_no_session_alive(admin_client: Client) -> None:
    admin_client.get("/admin/")
    Session.objects.update(expire_date=timezone.now() + timedelta(minutes=1))
    before = Session.objects.get().expire_date

    admin_client.get("/admin/", headers=REFRESH)
    assert Session.objects.get().expire_date == before
    admin_client.get("/admin/")
    assert Session.objects.get().expire_date > before


def test_a_refresh_sends_an_operator_without_a_second_factor_to_its_page(
    admin_client: Client, settings: LazySettings
) -> None:
    settings.REQUIRE_SECOND_FACTOR = True

    response = admin_client.get("/admin/", headers=REFRESH)

    assert (response.status_code, response["HX-Redirect"]) == (204, "/admin/second-factor/")


def test_the_reports_indicator_names_unusual_figures(settings: LazySettings) -> None:
    settings.REPORTS_NIGHTLY = True
    day = last_closed_day(timezone.now())
    reports.publish(day)
    reports.make_anomaly(day)
    found = indicators()["anomalies"]
    assert found.state == State.YELLOW
    assert "error rate of dispatch ios" in found.sentence
    assert "30.0 %, usually 0.0 % to 12.0 %" in found.sentence
