"""Alerts: which incidents send them, how often, and how a refused one is repeated."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import psycopg
import pytest
from django.core import mail
from django.db import connection

from kit.db.sessions import Timeouts
from pushserver.console.health import alerts as alerting
from pushserver.console.health import asking, incidents, stored
from pushserver.console.health.alerts import targets
from pushserver.console.health.indicators import KINDS
from pushserver.console.health.verdicts import State, Verdict
from pushserver.console.health.watch import Watch
from pushserver.console.models import Alert, AlertLevel, Incident, ServerStart
from tests.rig.logs import capture_logs
from tests.rig.peers import serve
from tests.rig.rows import make_staff
from tests.rig.server import wait_until
from tests.rig.statements import other_session, read_only

[BATCHES] = [kind for kind in KINDS if kind.id == "batches"]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECRET = "T0-the-secret-of-the-webhook"
pytestmark = pytest.mark.django_db


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Hook(BaseHTTPRequestHandler):
    """A webhook: it stores each request, and answers with the next of ``answers``, then with 200."""

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def hook(settings):
    with serve(Hook) as server:
        hook: Any = server.RequestHandlerClass
        hook.bodies, hook.answers = [], []
        hook.url = f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
        settings.ALERTS_TO = [hook.url]
        yield hook


def events() -> list[str]:
    """Return the events of all planned alerts, in their order."""
    return list(Alert.objects.order_by("pk").values_list("event", flat=True))


def make_incident(
    state: State = State.RED, *, began: float = 0, ended: float | None = None, **columns: Any
) -> Incident:
    known = {"indicator": BATCHES.id, "name": BATCHES.name, "sentence": "no worker processes batches"} | columns
    times = {"began_at": at(began), "ended_at": None if ended is None else at(ended)}
    if state == State.RED:
        times |= {"red_from": times["began_at"], "red_until": times["ended_at"]}
    return Incident.objects.create(state=state.value, incident_at=at(began), **times, **known)


def send_planned() -> None:
    """Send the alerts of an incident."""
    make_incident()
    alerting.plan(now=at(30))
    alerting.send_due(now=at(30))


def planned(*seconds: float) -> list[tuple[str, int]]:
    """Plan at each of these moments, and return all planned alerts."""
    for moment in seconds:
        alerting.plan(now=at(moment))
    return list(Alert.objects.order_by("pk").values_list("event", "number"))


@pytest.mark.parametrize(
    ("level", "columns", "is_alerted"),
    [
        ("", {}, True),
        ("", {"state": State.YELLOW}, False),
        ("yellow", {"state": State.YELLOW}, True),
        ("red", {"state": State.YELLOW}, False),
        ("never", {}, False),
        ("", {"cause": "database"}, True),
        ("", {"acknowledged_at": NOW}, False),
        ("", {"snoozed_until": at(31)}, False),
        ("", {"snoozed_until": at(30)}, True),
        ("", {"began": 1}, False),
        ("", {"ended": 29}, False),
    ],
)
def test_an_alert_goes_out_when_an_indicator_reaches_its_level(hook, level, columns, is_alerted):
    if level:
        AlertLevel.objects.create(kind=BATCHES.id, level=level)
    make_incident(**columns)
    assert [event for event, _ in planned(30)] == ["began"] * is_alerted


def test_an_indicator_of_a_host_alerts_as_its_kind_does(hook):
    for kind in ("node", "xmpp"):
        AlertLevel.objects.create(kind=kind, level="never")
    for indicator in ("node-127.0.0.1:8645", "xmpp", "xmpp-canary", "store-127.0.0.1:8645"):
        make_incident(indicator=indicator)
    alerting.plan(now=at(30))
    assert {alert.incident.indicator for alert in Alert.objects.all()} == {"store-127.0.0.1:8645", "xmpp-canary"}


def test_a_red_incident_is_repeated_every_four_hours_and_its_end_is_sent(hook):
    incident = make_incident()
    assert planned(30, 4 * 3600 + 29, 4 * 3600 + 31, 4 * 3600 + 50) == [("began", 0), ("still", 1)]
    Incident.objects.filter(pk=incident.pk).update(ended_at=at(20_000))
    assert planned(20_059, 20_060, 20_100) == [("began", 0), ("still", 1), ("ended", 0)]


def see(state: State, seconds: float) -> None:
    """Note one indicator in this state, as a snapshot does."""
    memory = incidents.recall(now=at(seconds))
    incidents.remember([Verdict(state, f"is {state}", kind=BATCHES)], memory, now=at(seconds))


R, Y, G = State.RED, State.YELLOW, State.GREEN


@pytest.mark.parametrize(
    ("level", "flaps", "alerts"),
    [
        ("red", [(R, 45), (Y, 45)], ["began"]),
        ("red", [(R, 15), (Y, 15)], ["began"]),
        ("red", [(R, 15), (G, 15)], ["began"]),
        ("red", [(R, 90), (Y, 90)], ["began"]),
        ("red", [(R, 5), (G, 115)], []),
        ("red", [(R, 5), (Y, 115)], []),
        ("red", [(Y, 60)], []),
        ("never", [(R, 60)], []),
        ("yellow", [(Y, 15), (G, 15)], ["began"]),
        ("yellow", [(R, 90), (Y, 90)], ["began"]),
        ("yellow", [(Y, 90), (R, 90)], ["began", "began"]),  # once as yellow, once as red
    ],
)
def test_an_indicator_that_flaps_is_one_incident_and_alerts_once(level, flaps, alerts):
    """The rules alone, for an hour with a snapshot every five seconds."""
    rows: list[Incident] = []
    planned = []
    states = [state for state, seconds in flaps for _ in range(seconds // 5)]
    for number in range(720):
        now = at(5 * number)
        rows += incidents.follow(rows[-1:], [Verdict(states[number % len(states)], "hangs", kind=BATCHES)], now)
        for incident in (row for row in rows[-1:] if not row.ended_at):
            alerted_at = now if planned else None
            due = alerting.due(incident, AlertLevel.Level(level), now, (alerted_at, alerted_at, 0))
            planned += [event for event in due if event not in planned]
    assert [event for event, _ in planned] == alerts


def test_an_indicator_that_flaps_alerts_once_and_stays_acknowledged(hook):
    for moment in range(0, 600, 15):
        see((R, G)[moment // 15 % 2], moment)
        alerting.plan(now=at(moment))
        if moment == 150:
            Incident.objects.update(acknowledged_by="ann", acknowledged_at=at(moment))
    assert events() == ["began"]
    assert Incident.objects.get().acknowledged_by == "ann"
    see(G, 600)
    alerting.plan(now=at(700))
    assert events() == ["began", "ended"]


R_TO_Y = [((R, Y)[moment // 30 % 2], moment, moment) for moment in range(0, 300, 30)]


@pytest.mark.parametrize(
    ("seen", "alerts"),
    [
        # It is red half the time, and still so after four hours.
        ([*R_TO_Y, *((state, 4 * 3600 + at, 4 * 3600 + at) for state, at, _ in R_TO_Y)], ["began", "still"]),
        # A fault after the end was sent is a new incident, also for a process whose clock is behind.
        ([(R, 0, 30), (G, 40, 100), (R, 96, 101), (R, 106, 111), (R, 136, 141)], ["began", "ended", "began"]),
    ],
)
def test_an_incident_is_reminded_of_and_another_one_begins_after_its_end(hook, seen, alerts):
    for state, seen_at, planned_at in seen:
        see(state, seen_at)
        alerting.plan(now=at(planned_at))
    assert events() == alerts


def test_the_end_is_not_sent_before_the_beginning(hook):
    """A webhook that was away gets both in their order."""
    see(R, 0)
    hook.answers = [503] * 3
    for moment in range(30, 400, 5):
        see(R if moment < 60 else G, moment)
        alerting.plan(now=at(moment))
        alerting.send_due(now=at(moment))
    assert [body["event"] for body in hook.bodies] == ["began"] * 4 + ["ended"]


def test_snoozing_holds_when_the_indicator_gets_bad_again(hook):
    make_incident(ended=100, snoozed_until=at(3600))
    make_incident(began=200)
    assert planned(300) == []
    assert planned(3600) == [("began", 0)]


@pytest.mark.parametrize(
    ("state", "columns", "alerts_at"),
    [
        (State.RED, {"ended_at": at(40), "red_until": at(40)}, 70),
        (State.RED, {"ended_at": at(10)}, 30),  # the previous version knows no times in red, and leaves them open
        (State.YELLOW, {"red_from": at(-60), "red_until": at(0)}, 30),  # a yellow one silences nothing
    ],
)
def test_an_incident_alerts_half_a_minute_after_what_explained_it_has_been_put_right(hook, state, columns, alerts_at):
    cause, explained = make_incident(state, indicator="database"), make_incident(cause="database")
    AlertLevel.objects.create(kind="database", level="never")
    Incident.objects.filter(pk=cause.pk).update(**columns)
    for moment in (29, alerts_at - 1, alerts_at):
        alerting.plan(now=at(moment))
        assert explained.alerts.exists() is (moment == alerts_at)


def test_an_incident_keeps_its_cause_after_its_end():
    for cause, seconds in (("", 0), ("database", 5), ("", 10)):
        memory = incidents.recall(now=at(seconds))
        incidents.remember([Verdict(State.RED, "hangs", cause=cause, kind=BATCHES)], memory, now=at(seconds))
    assert Incident.objects.get().cause == "database"


def test_a_webhook_gets_the_facts_of_an_incident_and_its_url_is_shown_to_nobody(hook, settings):
    with capture_logs() as logs:
        send_planned()
        alerting.send_due(now=at(31))

    [body] = hook.bodies
    assert body["text"] == ("Push server: Batches: act now. Since 2026-11-21 12:00:00 UTC: no worker processes batches")
    assert (body["event"], body["indicator"], body["state"]) == ("began", "batches", "act now")
    alert = Alert.objects.get()
    assert (alert.sent_at, alert.error, alert.attempt_count) == (at(30), "", 1)
    assert SECRET not in f"{logs} {alert.target} {list(targets())}"
    assert [line["event"] for line in logs] == ["alert_sent"]
    settings.ALERTS_TO = ["https://hooks.example.org/a", "https://hooks.example.org/b"]
    assert [label[:19] for label in targets()] == ["hooks.example.org ("] * 2


def test_a_refused_alert_is_sent_again_with_growing_pauses(hook):
    hook.answers = [500, 302]
    send_planned()
    for moment in (44, 45, 74, 75):
        alerting.send_due(now=at(moment))
    alert = Alert.objects.get()
    assert (len(hook.bodies), len({body["id"] for body in hook.bodies})) == (3, 1)
    assert (alert.sent_at, alert.attempt_count) == (at(75), 3)


def test_a_target_that_hangs_keeps_the_watch_from_its_work_for_one_alert_and_others_from_none(
    hook, settings, monkeypatch
):
    monkeypatch.setattr(alerting, "IN_A_ROW_SECONDS", 0)
    settings.ALERTS_TO = ["http://127.0.0.1:1/closed", hook.url]
    make_incident()
    alerting.plan(now=at(30))
    sent = []
    for moment in (30, 45, 60):
        alerting.send_due(now=at(moment))
        sent.append(len(hook.bodies))
    assert sent == [0, 1, 1]
    assert Alert.objects.get(sent_at=None).attempt_count == 2


def test_a_target_for_which_nothing_can_be_made_keeps_no_other_from_its_alert(hook, settings, client):
    settings.ALERTS_TO = ["ann@example.org\nTo: bob", "http://127.0.0.1:x/hook", hook.url]
    send_planned()
    assert [body["event"] for body in hook.bodies] == ["began"]
    refused, unfit, taken = Alert.objects.order_by("pk").values_list("error", flat=True)
    assert (refused, bool(unfit), taken) == ("BadHeaderError", True, "")

    client.force_login(make_staff("operator"))
    page = client.post("/admin/alerts/test/", {"why": "new webhook", "confirmed": "1"}, follow=True).content.decode()
    assert "bob: BadHeaderError" in page
    assert "accepted" in page


def test_google_chat_gets_the_text_alone(hook, monkeypatch):
    """It answers 400 to a field that it does not know."""
    assert alerting.GOOGLE_CHAT == "chat.googleapis.com"
    monkeypatch.setattr("pushserver.console.health.alerts.GOOGLE_CHAT", "127.0.0.1")
    send_planned()
    assert [list(body) for body in hook.bodies] == [["text"]]


def test_an_alert_refused_for_a_day_is_given_up_and_a_target_that_was_taken_out_gets_nothing(hook, settings):
    settings.ALERTS_TO = ["http://127.0.0.1:1/closed"]
    with capture_logs() as logs:
        send_planned()
    assert (Alert.objects.get().error, logs[0]["reason"]) == ("ConnectError", "ConnectError")
    alerting.send_due(now=at(30) + timedelta(days=400))
    assert not Alert.objects.exists()

    settings.ALERTS_TO = [hook.url]
    alerting.plan(now=at(30))
    assert Alert.objects.exists()
    settings.ALERTS_TO = []
    alerting.send_due(now=at(30))
    assert (hook.bodies, Alert.objects.count()) == ([], 0)


def test_people_are_alerted_by_mail(settings):
    settings.ALERTS_TO = ["ann@example.org", "bob@example.org"]
    send_planned()
    assert [message.to for message in mail.outbox] == [["ann@example.org"], ["bob@example.org"]]
    assert mail.outbox[0].subject == "Push server: Batches: act now"
    assert "no worker processes batches" in mail.outbox[0].body


@pytest.mark.django_db(transaction=True)
def test_of_several_workers_one_alerts(hook):
    make_incident()
    alerting.plan(now=at(30))

    def send(_number: int) -> None:
        with closing(connection):
            alerting.send_due(now=at(30))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert len(hook.bodies) == 1


@contextmanager
def locked(table: str, mode: str) -> Iterator[None]:
    """Keep a table locked."""
    with closing(other_session()) as other:
        other.execute(psycopg.sql.SQL(f"LOCK TABLE {table} IN {mode} MODE"))
        yield


def look(watch: Watch, seconds: float) -> None:
    """Let the watch look with a new session, and past what was answered a moment ago."""
    connection.close()
    asking.RECENT.forget()
    watch.look(at(seconds))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("fault", "indicator", "words"),
    [
        (read_only, "database", "PostgreSQL cannot be written"),
        (partial(locked, "pushserver_incident", "ACCESS EXCLUSIVE"), "database-speed", "locked"),
        (partial(locked, "pushserver_incident", "SHARE"), "database-speed", "locked"),
        (partial(locked, "pushserver_alert", "ACCESS EXCLUSIVE"), "gorush", "no gorush"),
    ],
)
def test_postgresql_that_cannot_be_written_is_alerted_from_memory_and_noted_afterwards(
    hook, monkeypatch, fault, indicator, words
):
    monkeypatch.setattr(stored, "TIMEOUTS", Timeouts(statement_seconds=2, lock_seconds=0.2))
    watch = Watch()
    hook.answers = [503]  # the first attempt of the first alert
    with fault(), capture_logs() as logs:
        for moment in (0, 31, 60):
            look(watch, moment)
    alerts = [body for body in hook.bodies if body["indicator"].startswith(indicator)]
    assert {body["event"] for body in alerts} == {"began"}
    assert words in alerts[0]["sentence"]
    refusals = [line["event"] for line in logs if line["event"].endswith(("not_read", "not_noted"))]
    assert len(refusals) == (indicator != "database")  # logged once

    before = len(hook.bodies)
    look(watch, 100)
    look(watch, 165)
    ended = [body for body in hook.bodies[before:] if body["indicator"].startswith("database")]
    assert [body["event"] for body in ended] == ["ended"] * indicator.startswith("database")
    incident = Incident.objects.filter(indicator__startswith=indicator).earliest("pk")
    assert (incident.began_at, incident.ended_at) == (at(0), at(100) if indicator.startswith("database") else None)
    assert set(incident.alerts.filter(event="began").values_list("sent_at", flat=True)) <= {at(31), at(60)}
    assert not Alert.objects.filter(incident__began_at__lt=at(100), event="began", sent_at__gt=at(100)).exists()


@pytest.mark.django_db(transaction=True)
def test_postgresql_that_cannot_be_written_half_the_time_is_alerted_once(hook):
    watch = Watch()
    for moment in range(0, 300, 30):
        look(watch, moment)
        with read_only():
            look(watch, moment + 15)
    began = [body for body in hook.bodies if (body["indicator"], body["event"]) == ("database", "began")]
    assert len(began) == 1
    look(watch, 300)
    look(watch, 365)
    assert [body["event"] for body in hook.bodies if body["indicator"] == "database"] == ["began", "ended"]
    incident = Incident.objects.get(indicator="database")
    assert (incident.began_at, incident.ended_at) == (at(15), at(300))


@pytest.mark.django_db(transaction=True)
def test_a_fault_from_before_postgresql_failed_is_alerted_all_the_same_unless_somebody_takes_care(hook):
    watch = Watch()
    look(watch, 0)  # there is no gorush in this test
    Incident.objects.filter(indicator="node").update(acknowledged_by="ann", acknowledged_at=at(1))
    make_incident(indicator="database", ended=-9, began=-99, snoozed_until=at(3600))
    look(watch, 10)
    with read_only():
        for moment in (20, 31, 60):
            look(watch, moment)
    gorush = [body["id"] for body in hook.bodies if body["indicator"] == "gorush"]
    assert len(gorush) == 1
    assert not {"node", "database"} & {body["indicator"] for body in hook.bodies}

    look(watch, 70)
    look(watch, 100)
    assert [body["id"] for body in hook.bodies if body["indicator"] == "gorush"] == gorush


@pytest.mark.django_db(transaction=True)
def test_a_target_that_answers_late_keeps_its_result_and_holds_up_no_other(hook, settings, monkeypatch):
    """PostgreSQL ends a transaction that waits, as for a mail server that takes half a minute for each line."""
    monkeypatch.setattr(stored, "TIMEOUTS", Timeouts(statement_seconds=2, lock_seconds=2, idle_seconds=1.0))
    make_incident()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(alerting, "TIMEOUT_SECONDS", 1.5)
        settings.ALERTS_TO = [f"http://127.0.0.1:{silent.getsockname()[1]}/", hook.url]
        look(Watch(), 31)
    assert "batches" in {body["indicator"] for body in hook.bodies}
    late = Alert.objects.get(target=next(iter(targets())), incident__indicator="batches")
    assert (late.attempt_count, late.next_attempt_at, bool(late.error)) == (1, at(46), True)


@pytest.mark.django_db(transaction=True)
def test_the_watch_notes_alerts_keeps_when_it_started_and_notices_a_fault_between_two_snapshots_at_a_glance(
    hook, monkeypatch
):
    watch = Watch()
    assert watch.look(at(0))  # there is no gorush in this test
    assert watch.look(at(31))
    assert {body["event"] for body in hook.bodies} == {"began"}
    assert {body["indicator"].partition("-")[0] for body in hook.bodies} >= {"gorush"}
    assert ServerStart.objects.count() == 1

    looks: list[datetime] = []  # at snapshots, which are all good
    monkeypatch.setattr(Watch, "look", lambda _watch, now: looks.append(now))
    for name, seconds in (("START", 0.0), ("GLANCE", 0.05), ("SNAPSHOT", 3600.0)):
        monkeypatch.setattr(f"pushserver.console.health.watch.{name}_SECONDS", seconds)
    watch = Watch()
    watch.start()
    try:
        wait_until(lambda: len(looks) > 2, what="a third look")
    finally:
        watch.stop()
        watch.join(10)


@pytest.mark.parametrize(("role", "may"), [("support", False), ("operator", True)])
def test_the_page_shows_who_is_alerted_and_lets_operators_change_and_test_it(hook, client, role, may):
    client.force_login(make_staff(role))
    page = client.get("/admin/alerts/").content.decode()
    assert ("Send a test" in page, SECRET in page) == (may, False)
    assert "when somebody has to act now" in page

    changed = client.post("/admin/alerts/level/batches/", {"level": "never", "why": "maintenance", "confirmed": "1"})
    tested = client.post("/admin/alerts/test/", {"why": "new webhook", "confirmed": "1"})
    assert (changed.status_code, tested.status_code) == ((302, 302) if may else (403, 403))
    assert [body["event"] for body in hook.bodies] == ["test"] * may
    assert dict(AlertLevel.objects.values_list("kind", "level")) == ({"batches": "never"} if may else {})


@pytest.mark.parametrize(
    ("operation", "sent", "acknowledged_by"),
    [("acknowledge", {}, "operator"), ("snooze", {"hours": "4"}, ""), ("note", {}, "")],
)
def test_operators_take_care_of_incidents(client, operation, sent, acknowledged_by):
    client.force_login(make_staff("operator"))
    incident = make_incident()
    ServerStart.objects.create(version="0.2.0", started_at=at(-60))
    answer = client.post(
        f"/admin/pushserver/incident/operate/{operation}/",
        {"id": str(incident.pk), "why": "looking at it", "confirmed": "1", **sent},
    )
    assert answer.status_code == 302
    incident.refresh_from_db()
    assert (incident.acknowledged_by, incident.snoozed_until is not None) == (acknowledged_by, operation == "snooze")
    page = client.get(f"/admin/pushserver/incident/{incident.pk}/change/").content.decode()
    for words in ("Why: looking at it", "A worker of version 0.2.0 started.", "act now from"):
        assert words in page
