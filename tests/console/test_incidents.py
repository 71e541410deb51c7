"""Incidents: one fault is one row of the list, and the page of an incident tells its story."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from kit.display import exact
from pushserver.console.checks.peers import Peer
from pushserver.console.health import stored
from pushserver.console.health.incidents import recall, remember
from pushserver.console.health.indicators import judge
from pushserver.console.health.judges import CanaryFacts, RoundTrip, Waiting
from pushserver.console.health.watch import Unnoted
from pushserver.console.models import Count, Incident, ServerStart
from pushserver.tests import test_indicators as given
from pushserver.tests.test_indicators import NOW, facts
from tests.rig import rows

pytestmark = pytest.mark.django_db
LIST = "/admin/pushserver/incident/"
BROKEN = {"canary": CanaryFacts(last=RoundTrip("gateway", words="no answer", total_ms=1))}
WAITS = {"delivery": Waiting(1, 20.0), "answers": Waiting(1, 20.0)}
REFUSED = given.tried("APN old", transient=60)
AWAY: Mapping[str, Any] = {"database": "PostgreSQL does not answer", **given.UNAVAILABLE}
# What is seen during each fault, every fifteen seconds: others notice it before its cause does, or after its end.
STAGED: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "Sending": [{"tries": REFUSED}, {"switches": [given.TRIPPED], "tries": REFUSED}, BROKEN],  # a gateway's breaker
    "Batches": [{"silent_seconds": [20.0, 20.0], "inbox": Waiting(9, 20.0)}, {"inbox": Waiting(9, 40.0), **WAITS}],
    "PostgreSQL": [{"is_slow": True}, AWAY, AWAY, {"is_slow": True}],
    "Failed envelopes": [BROKEN, {"failed": given.Failed(20, 20, "KeyError", 20, 20), **BROKEN}],
    "Node a:1": [
        {"nodes": [given.DOWN], **BROKEN},
        {"nodes": [given.DOWN], "stores": [given.Store(Peer("a:1"), NOW - timedelta(minutes=9))], **BROKEN},
        BROKEN,
    ],
    "gorush g:1": [
        {"delivery": Waiting(1, 20.0)},
        {"gorushes": [Peer("g:1", is_up=False)], **WAITS},
        {"unreached_since": NOW},
        BROKEN,
    ],
    "Redis": [
        {"broker": given.REDIS["channel"]},
        {"nodes": [given.DOWN], "queues": {"keys": False}, "canary": CanaryFacts(is_expected=True)},
    ],
    "Waku bridge": [{"bridge_seconds": 60.0, "nodes": [given.DOWN]}, {"nodes": [given.DOWN], **BROKEN}],
    "Server's key": [{"key": given.LostKey()}] * 2,
    "Disk space": [{"volumes": [given.Volume("PostgreSQL", 60, 300)]}],
}


def see(changes: Mapping[str, Any], now: datetime, memory: Unnoted) -> Unnoted:
    """Take one snapshot of these facts, as the watch does. While PostgreSQL is away, it is noted in memory."""
    found = judge(facts(**changes))
    if changes is AWAY:
        memory.look(found, now)
        return memory
    memory.note(found, now)
    remember(found, recall(now=now), now=now)
    return Unnoted.after(now)


def test_ten_staged_faults_are_ten_rows(admin_client: Client) -> None:
    now, memory = NOW, Unnoted()
    for snapshots in STAGED.values():
        for changes in (*snapshots, *[{}] * 20):
            memory = see(changes, now, memory)
            now += timedelta(seconds=15)

    assert Incident.objects.count() > 20
    page = admin_client.get(LIST)
    shown = page.context_data["cl"].result_list
    assert [row.name for row in reversed(shown)] == list(STAGED)
    assert [effect["name"] for effect in shown[-1].effects] == ["Results of pushes", "Apps", "Canary"]
    assert page.content.decode().count("data-row") == len(STAGED)
    everything = admin_client.get(f"{LIST}?effects=yes").context_data["cl"].result_list
    assert len(everything) == Incident.objects.count()


def names_of(client: Client) -> list[str]:
    return [row.name for row in client.get(LIST).context_data["cl"].result_list]


@pytest.mark.parametrize(
    ("cause", "rows_of_their_own"),
    [
        ({}, ["gorush"]),
        ({"red_until": -50}, ["Canary", "gorush"]),  # it goes on in yellow
        ({"red_until": -50, "ended_at": -50}, ["Canary", "gorush"]),
        ({"began_at": -59, "red_from": -20}, ["Canary", "gorush"]),  # it got red long after
    ],
)
def test_an_effect_has_a_row_of_its_own_while_its_cause_is_not_red(
    admin_client: Client, cause: Mapping[str, int], rows_of_their_own: Sequence[str]
) -> None:
    make_red(
        timedelta(minutes=55), indicator="gorush-g", name="gorush", **{n: minutes_ago(-m) for n, m in cause.items()}
    )
    make_red(timedelta(minutes=54), indicator="canary", name="Canary", cause="gorush-g")
    assert sorted(names_of(admin_client)) == rows_of_their_own


@pytest.mark.parametrize(("minutes", "rows_of_their_own"), [(12, ["gorush"]), (300, ["Canary", "gorush"])])
def test_what_outlasted_its_cause_by_hours_was_a_fault_of_its_own(
    admin_client: Client, minutes: int, rows_of_their_own: Sequence[str]
) -> None:
    over, ended = minutes_ago(400), minutes_ago(400 - minutes)
    make_red(timedelta(minutes=420), indicator="gorush-g", name="gorush", red_until=over, ended_at=over)
    make_red(
        timedelta(minutes=419), indicator="canary", name="Canary", cause="gorush-g", red_until=ended, ended_at=ended
    )
    assert sorted(names_of(admin_client)) == rows_of_their_own


def test_what_was_red_hours_ago_explains_no_other_fault() -> None:
    other = Peer("h:1")
    snapshots = [
        {"gorushes": [Peer("g:1", is_up=False)], "switches": [given.RUNNING]},
        *[{"gorushes": [Peer("g:1", is_up=False), other]}] * 20,
        {"gorushes": [Peer("g:1", is_up=False), other], **BROKEN},
    ]
    for number, changes in enumerate(snapshots):
        see(changes, NOW + timedelta(seconds=15 * number), Unnoted())
    assert Incident.objects.get(indicator="gorush-g:1").red_from
    assert Incident.objects.get(indicator="canary").cause == ""


def test_what_was_over_before_another_fault_does_not_follow_from_it() -> None:
    snapshots = [{"nodes": [given.DOWN, given.OTHER]}, {}, {"silent_seconds": [20.0, 20.0]}]
    for number, changes in enumerate(snapshots):
        see(changes, NOW + timedelta(seconds=15 * number), Unnoted())
    assert set(Incident.objects.values_list("indicator", "cause")) == {("node-a:1", ""), ("batches", "")}


def make_red(began: timedelta, **columns: Any) -> Incident:
    began_at = timezone.now() - began
    known = {
        "indicator": "channels",
        "name": "Apps",
        "state": "act now",
        "began_at": began_at,
        "red_from": began_at,
    }
    return rows.make(Incident, **known | columns)


def story_of(client: Client, incident: Incident) -> str:
    html = client.get(f"{LIST}{incident.pk}/change/").content.decode()
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


def test_the_story_of_an_incident_has_the_figures_of_this_moment_and_leads_to_what_it_touched(
    admin_client: Client,
) -> None:
    rows.make_channel(app_topic="im.running")
    app = rows.make_channel(app_topic="im.broken")
    rows.make_halt("tripped", (app.token_type, app.app_topic), reason="12 of 12 sends refused")
    incident = make_red(timedelta(minutes=20), sentence="as it began")
    Count.objects.create(figure="ends", begin_at=minutes_ago(5), outcome="delivered", count=4321)

    refreshed = admin_client.get(f"{LIST}{incident.pk}/change/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in refreshed
    story = story_of(admin_client, incident)
    for words in ("im.broken tripped by a breaker", "12 of 12 sends refused", "4,321", "Repair the set-up at Apple"):
        assert words in story
    assert "as it began" not in story
    assert "A breaker stopped an app" in story  # the runbook for red
    links = re.findall(r'id="touched-[^"]*" href="([^"]*)"', refreshed)
    assert any("/attempt/?failed=yes&amp;during=" in link for link in links)
    assert {admin_client.get(unescape(link)).status_code for link in links} == {200}

    sent = {"id": str(incident.pk), "why": "on its page", "confirmed": "1"}
    assert admin_client.post(f"{LIST}operate/acknowledge/", sent).status_code == 302
    assert "admin takes care of it from" in story_of(admin_client, incident)


def test_the_story_of_a_past_incident_keeps_its_sentence_its_course_and_its_hours(admin_client: Client) -> None:
    ended_at = minutes_ago(60 * 24 * 3)
    incident = make_red(timedelta(days=3, hours=1), sentence="as it got red", red_until=ended_at, ended_at=ended_at)
    hour = (ended_at - timedelta(hours=1)).replace(minute=0)
    for figure, subject in (("hour ends", ""), ("hour", "requests waku"), ("hour", "free PostgreSQL")):
        Count.objects.create(figure=figure, begin_at=hour, subject=subject, outcome="delivered", count=777)

    story = story_of(admin_client, incident)
    assert "as it got red" in story
    assert f"; fine from {exact(ended_at)}" in story
    assert "delivered 777" in story
    assert "requests 777" not in story  # they are no figure of apps
    paused = make_red(timedelta(days=3), red_from=None, state="look at it", ended_at=ended_at, sentence="paused")
    assert "An app has been paused for two hours" in story_of(admin_client, paused)


def test_the_chart_of_a_short_incident_of_days_ago_has_its_hour(admin_client: Client) -> None:
    hour = minutes_ago(60 * 24 * 3).replace(minute=0)
    began_at, ended_at = hour + timedelta(minutes=10), hour + timedelta(minutes=12)
    incident = make_red(timedelta(0), began_at=began_at, red_from=began_at, red_until=ended_at, ended_at=ended_at)
    Count.objects.create(figure="hour ends", begin_at=hour, outcome="delivered", count=777)
    assert "delivered 777" in story_of(admin_client, incident)


def test_the_story_of_what_is_not_known_now_says_so(admin_client: Client) -> None:
    incident = make_red(timedelta(minutes=9), indicator="beat", name="Beat", sentence="as it began")
    assert "has counted nothing yet" in story_of(admin_client, incident)


def test_the_story_names_the_settings_that_were_changed_before(admin_client: Client, settings: LazySettings) -> None:
    incident = make_red(timedelta(0))
    for minutes, urls in ((90, "http://a"), (9, "http://b")):
        env = {**settings.ENVIRONMENT.values, "GORUSH_URL": urls}
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, values=env)
        known = stored.present_settings()
        ServerStart.objects.create(version="1.2", started_at=minutes_ago(minutes), settings=known)

    assert "A worker of version 1.2 started, with other settings: GORUSH_URL." in story_of(admin_client, incident)
    assert not re.search("SECRET|KEY|TOKEN:|ALERTS_TO|DATABASE_URL|REDIS_URL|SPARK_MASTER|TRACE_PAGE|EMAIL_USER", known)


def minutes_ago(number: int) -> datetime:
    return timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=number)
