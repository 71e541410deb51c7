"""`/metrics`: access by token, answers while a server is away, and cheap queries with a large backlog."""

import re
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from embedded.servers.ports import free_port
from kit.batches.models import StepMark
from notifications.models import Notification
from pushserver import metrics
from pushserver.celery import HEARTBEAT_KEY
from pushserver.console.health import asking, stored
from pushserver.metrics import stored_gauges
from tests.rig.rows import make_channel, make_envelope, make_halt, make_notification
from tests.rig.statements import other_session

STATE = "pushserver_indicator_state"
TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(autouse=True)
def no_memory(monkeypatch):
    """Reuse no answer of an earlier test."""
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 0)
    stored.COUNTED.forget()
    asking.RECENT.forget()


@pytest.fixture
def reported(client, settings):
    """Return the samples of one page of metrics, by name and labels."""
    settings.METRICS_TOKEN = TOKEN

    def look():
        page = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).content.decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    return look


@pytest.mark.django_db
def test_without_a_token_there_is_a_page_on_a_developers_machine_only(client, settings):
    settings.METRICS_TOKEN = ""
    for debug, status in ((False, 404), (True, 200)):
        settings.DEBUG = debug
        for headers in ({}, {"Authorization": "Bearer "}):
            assert client.get("/metrics", headers=headers).status_code == status


@pytest.mark.django_db
@pytest.mark.parametrize("debug", [True, False])
def test_the_token_opens_the_page_for_reading_and_nothing_else_does(client, settings, debug):
    settings.METRICS_TOKEN, settings.DEBUG = TOKEN, debug
    known = {"Authorization": f"Bearer {TOKEN}"}
    assert b"pushserver_" in client.get("/metrics", headers=known).content
    assert client.post("/metrics", headers=known).status_code == 405
    for wrong in ("", "Bearer ", TOKEN, f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe4\xf6"):
        answer = client.get("/metrics", headers={"Authorization": wrong})
        assert (answer.status_code, b"pushserver_" in answer.content) == (401, False)


@pytest.mark.django_db(transaction=True)
def test_metrics_report_the_backlog_and_its_age(reported):
    now = timezone.now()
    make_notification(at=now - timedelta(seconds=90))
    make_notification(state=Notification.State.RETRYING, due_at=now + timedelta(hours=1))
    make_notification(state=Notification.State.DELIVERED)
    make_channel((1, "app"))
    make_halt("tripped", (1, "app"))

    found = reported()

    open_by_state = {name[1]: value for name, value in found.items() if name[0] == "pushserver_notifications_open"}
    assert open_by_state == {"pending": 1, "retrying": 1, "ambiguous": 0, "in_flight": 0}
    assert 90 <= found["pushserver_notifications_oldest_due_age_seconds",] < 150
    assert found["pushserver_channels", "tripped"] == 1
    assert found["pushserver_channels", "paused"] == 0
    assert (found[STATE, "database"], found[STATE, "broker"]) == (0, 0)
    assert found[STATE, "delivery"] == 2


@pytest.mark.django_db(transaction=True)
def test_nothing_is_read_of_what_was_processed_before_the_marks_of_the_steps(reported):
    """By rows that no leader would have passed over."""
    now = timezone.now()
    make_notification(at=now - timedelta(seconds=90))
    make_envelope(state="received", at=now - timedelta(seconds=90))
    StepMark.objects.bulk_create(StepMark(step=step, nothing_before=now) for step in ("Due", "Inbox"))
    found = reported()
    assert found["pushserver_notifications_open", "pending"] == found["pushserver_inbox_waiting",] == 0


@pytest.mark.django_db(transaction=True)
def test_an_idle_server_has_nothing_old_and_reports_which_queues_have_a_worker(reported):
    cache.delete(HEARTBEAT_KEY.format(queue="maintenance"))
    cache.set(HEARTBEAT_KEY.format(queue="keys"), "2026-11-21T12:00:00+00:00", 60)
    found = reported()
    assert [value for name, value in found.items() if name[0].endswith("_age_seconds")] == [0] * 4
    assert found[STATE, "workers"] == 2
    assert found["pushserver_queue_tasks", "batches"] == 0


@pytest.mark.django_db
@pytest.mark.parametrize("away", ["database", "broker"])
def test_metrics_report_that_the_database_or_the_broker_is_away_and_the_rest(reported, settings, monkeypatch, away):
    if away == "database":
        monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        monkeypatch.setitem(connection.settings_dict, "PORT", free_port())
    else:
        settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"

    found = reported()

    assert {name: found[STATE, name] for name in ("database", "broker")} == {"database": 0, "broker": 0} | {away: 2}
    assert ((STATE, "inbox") in found) is (("pushserver_replies_pending",) in found) is (away == "broker")


@pytest.mark.django_db(transaction=True)
def test_a_gauge_that_fails_is_missing_alone_and_the_database_is_up(reported):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE notifications_openrequest RENAME COLUMN reply_due_at TO away")
        found = reported()
        cursor.execute("ALTER TABLE notifications_openrequest RENAME COLUMN away TO reply_due_at")

    assert found[STATE, "database"] == 0
    assert ("pushserver_requests_overdue_age_seconds",) not in found
    assert {("pushserver_replies_pending",), ("pushserver_channels", "running")} <= found.keys()


@pytest.mark.django_db(transaction=True)
def test_a_gauge_that_hangs_ends_the_queries_and_the_database_counts_as_up(reported):
    late = ("pushserver_routes",)
    with other_session() as other, connection.cursor() as cursor:
        cursor.execute("ANALYZE registrations_route")
        assert late in reported()
        other.execute("LOCK TABLE notifications_channel")
        found = reported()

    assert found[STATE, "database"] == 0
    assert ("pushserver_replies_pending",) in found
    assert not {("pushserver_channels", "running"), late} & found.keys()


@pytest.mark.django_db
def test_servers_are_asked_at_most_every_few_seconds_and_the_registry_is_made_once(monkeypatch):
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 60)
    asked = metrics.Stock()
    assert asked.collect() is asked.collect()
    assert metrics._everything() is metrics._everything()


SMALL_TABLES = {"notifications_channel", "notifications_halt", "notifications_queue", "pg_class"}


@pytest.mark.django_db
@pytest.mark.parametrize("gauge", stored_gauges(), ids=lambda gauge: gauge.name)
def test_no_gauge_scans_a_table_that_grows(gauge):
    """With very expensive sequential scans, a plan has one only if no index can serve."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {gauge.sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert set(re.findall(r"Seq Scan on (\w+)", plan)) <= SMALL_TABLES
    assert "LIMIT" in gauge.sql or set(re.findall(r"FROM (\w+)", gauge.sql)) <= SMALL_TABLES
