import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import psutil
import pytest
import redis
from celery.exceptions import Ignore
from django.core.cache import cache
from django.core.checks import run_checks
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from embedded.servers.ports import free_port
from embedded.servers.postgres import SOCKET_NAME, EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from kit.processes.starting import OWN_FAULT
from notifications.gateways import CUT_OFF
from notifications.queues import halts
from pushserver.celery import HEARTBEAT_KEY, begin_when_fit
from pushserver.console.canary.waku import canary
from pushserver.console.canary.xmpp import canary as xmpp_canary
from pushserver.console.checks.engine import Notice
from pushserver.console.checks.gorush import NOTICES as GORUSH_NOTICES
from pushserver.console.checks.nodes import NOTICES as NODE_NOTICES
from pushserver.console.checks.peers import UNREACHABLE, Complaint
from pushserver.console.health import asking, incidents
from pushserver.console.health import indicators as server
from pushserver.console.health.asking import NEEDED_QUEUES, RECENT
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import State, Verdict
from pushserver.console.health.watch import Watch
from pushserver.console.models import Incident, ServerStart
from pushserver.console.tasks import count_traffic
from pushserver.console.waku import indicators as waku
from tests.rig import rows
from tests.rig.logs import capture_logs
from tests.rig.peers import serve_gorush
from tests.rig.postgres import SilentProxy
from tests.rig.statements import a_batch_worker, a_bridge
from waku_bridge.query_topics import server_identities, server_identity
from waku_bridge.reading.live import LAST_READ, LastRead
from xmpp_bridge import component

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NO_CHANNELS = "the account of REDIS_URL may not use Celery's channels"
NODE_URL = "http://reader:secret-of-the-node@127.0.0.1:8645/path-key"


@pytest.fixture
def gorush():
    with serve_gorush() as server:
        yield server


@pytest.fixture
def all_well(db, settings, gorush, monkeypatch):
    settings.WAKU_NODES = [NODE_URL]
    settings.REPORTS_NIGHTLY = False
    settings.GORUSH_URLS = [f"http://127.0.0.1:{gorush.server_port}"]
    LAST_READ.save(LastRead(NOW), NODE_URL)
    for queue in NEEDED_QUEUES:
        cache.set(HEARTBEAT_KEY.format(queue=queue), "2026-01-01T00:00:00+00:00", 60)
    monkeypatch.setattr(server, "HANGS_SECONDS", 600.0)  # this probe checks no server
    monkeypatch.setattr(waku, "BRIDGE_RED", 600.0)
    monkeypatch.setattr(waku, "BRIDGE_QUIET", 600.0)
    with a_batch_worker(), a_bridge():
        yield
    cache.clear()


def test_healthz_touches_nothing_and_tells_browsers_that_came_by_https_to_come_by_nothing_else(client, settings):
    settings.SECURE_HSTS_SECONDS = 31_536_000
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    plain, secured = client.get("/healthz"), client.get("/healthz", headers={"x-forwarded-proto": "https"})

    assert (plain.status_code, plain.json()) == (200, {"status": "ok"})
    assert secured["Strict-Transport-Security"] == "max-age=31536000"
    assert "Strict-Transport-Security" not in plain


@pytest.mark.usefixtures("all_well")
def test_the_server_is_ready_when_every_part_is_and_concurrent_probes_ask_the_servers_behind_once(
    client, monkeypatch, gorush
):
    response = client.get("/readyz")
    assert (response.status_code, response.json()["status"]) == (200, "ready"), response.content
    kinds = {found["id"].partition("-")[0] for found in response.json()["indicators"]}
    assert kinds == {"database", "broker", "batches", "workers", "bridge", "node", "gorush"}

    monkeypatch.setattr("pushserver.console.health.asking.KEPT_SECONDS", 60.0)
    assert {client.get("/readyz").status_code for _ in range(100)} == {200}
    assert gorush.RequestHandlerClass.asked == 1


@pytest.mark.django_db
@pytest.mark.parametrize("host", ["web:8000", "10.1.2.3:8000", "push.elsewhere.example", "no_name/of any"])
def test_probes_and_metrics_answer_under_any_host_name(client, settings, host):
    """Probes call a pod by its address, and a container by the name of its service."""
    settings.METRICS_TOKEN = "0123456789abcdef"
    paths = ("/healthz", "/readyz", "/metrics", "/admin/login/")
    statuses = [client.get(path, headers={"host": host}).status_code for path in paths]
    assert statuses == [200, 503, 401, 400]


@pytest.mark.usefixtures("all_well")
def test_a_table_that_fills_makes_its_indicator_yellow(settings):
    settings.XMPP_COMPONENT_JID = "push.montague.test"
    for _ in range(4):
        rows.make_registration()
    rows.make_device()
    for registrations, devices, filling in ((6, 2, set()), (5, 2, {"registrations"}), (6, 1, {"xmpp-devices"})):
        settings.MAX_REGISTRATIONS, settings.XMPP_MAX_DEVICES = registrations, devices
        found = indicators()
        tables = ("registrations", "xmpp-devices")
        assert {name for name in tables if found[name].state == State.YELLOW} == filling


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"REDIS_URL": "redis://:secret-of-redis@127.0.0.1:1/0"}, "Redis does not answer"),
        ({"WAKU_NODES": ["http://127.0.0.2:8645"]}, "was not read for 3 seconds"),
        ({"WAKU_NODES": []}, "no node is configured"),
        ({"GORUSH_URLS": ["http://user:secret-of-gorush@127.0.0.1:1/path-key?key=secret"]}, "does not answer"),
    ],
)
def test_readyz_names_a_server_that_does_not_answer_without_a_credential_and_without_an_error_in_the_log(
    client, settings, caplog, changes, sentence
):
    for name, value in changes.items():
        setattr(settings, name, value)
    with caplog.at_level(logging.DEBUG):
        assert list(failing(client).values()) == [sentence]
        answer = client.get("/readyz").content.decode()
    assert not [word for word in ("secret", "user", "reader", "path-key") if word in answer]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("all_well")
def test_readyz_names_a_database_that_does_not_answer(client, monkeypatch):
    take_away_database(monkeypatch)
    assert failing(client) == {"database": "PostgreSQL does not answer"}


def take_away_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", free_port())


@pytest.mark.django_db(transaction=True)
def test_readyz_names_migrations_that_are_missing(client, all_well):
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("registrations", "0001_initial")
    try:
        assert failing(client) == {"database": "migrations not applied: 1"}
    finally:
        recorder.record_applied("registrations", "0001_initial")


@pytest.mark.usefixtures("all_well")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("then", ["it answers", "it is away"])
def test_a_full_disk_that_a_task_met_is_the_reason_also_when_postgresql_has_ended(client, monkeypatch, then):
    """Reading goes on while PostgreSQL refuses to write, and PostgreSQL ends when it cannot write its log."""
    assert client.get("/readyz").status_code == 200
    with connection.cursor() as cursor, full_disk("pushserver_trafficminute"):
        cursor.execute("DELETE FROM pushserver_trafficminute")
        rows.make_request()
        with pytest.raises(Ignore):
            count_traffic()
        if then == "it is away":
            monkeypatch.setattr(asking, "OVER_SECONDS", 0.0)
            take_away_database(monkeypatch)
        assert failing(client) == {"database": "the disk of PostgreSQL is full"}

    monkeypatch.undo()
    monkeypatch.setattr(asking, "OVER_SECONDS", 0.0)
    assert asking.ask_database()["database"] == ""
    take_away_database(monkeypatch)
    assert asking.ask_database()["database"] == "PostgreSQL does not answer"  # the full disk was repaired before


@pytest.mark.usefixtures("all_well")
@pytest.mark.django_db(transaction=True)
def test_a_broken_metric_file_and_a_clock_set_back_keep_no_probe_from_its_answer(client, settings, tmp_path):
    """A full disk leaves files that are cut off. A fault of the future was noted before the clock was set back."""
    settings.METRICS_DIR = tmp_path
    for number, content in enumerate((b"\x00\x01", b"\xff\xff\xff\x7f, cut off", b"\x00\x01" + bytes(200))):
        (tmp_path / f"gauge_livemax_{number}.db").write_bytes(content)
    assert client.get("/readyz").status_code == 200

    noted = MmapedDict(str(tmp_path / "gauge_livemax_9.db"))
    name = OWN_FAULT._name
    noted.write_value(mmap_key(name, name, ["fault"], ["53100"], ""), time.time() + 3600, 0.0)
    noted.close()
    asking.RECENT.forget()
    assert client.get("/readyz").status_code == 200


@contextmanager
def full_disk(table: str) -> Iterator[None]:
    """Have PostgreSQL refuse each new row of a table as if its disk were full."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$"
        )
        cursor.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse() CASCADE")


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory):
    """A Valkey that a test may spoil."""
    valkey = EmbeddedValkey(tmp_path_factory.mktemp("valkey"), free_port())
    spec = valkey.spec()
    spec.prepare()
    with subprocess.Popen(spec.command, stdout=subprocess.DEVNULL) as process:
        client = redis.Redis.from_url(valkey.url)
        assert becomes_true(lambda: answers(client))
        yield client
        process.terminate()


@pytest.mark.django_db(transaction=True)
def test_a_worker_waits_for_a_right_that_it_lacks_at_redis_and_names_it(own_valkey, settings, monkeypatch):
    """An account that Redis makes has no channels, without which a worker would end again and again."""
    given = own_valkey.connection_pool.connection_kwargs
    settings.REDIS_URL = f"redis://push:pw@127.0.0.1:{given['port']}/0"
    own_valkey.execute_command("ACL", "SETUSER", "push", "on", ">pw", "~*", "+@all", "resetchannels")
    line = f"{NO_CHANNELS}. Give the account its channels: `ACL SETUSER name allchannels`."
    assert line in {found.msg for found in run_checks(databases=["default"])}
    grant = lambda _seconds: own_valkey.execute_command("ACL", "SETUSER", "push", "allchannels")  # noqa: E731
    monkeypatch.setattr("kit.processes.starting.sleep", grant)
    with capture_logs() as logs:
        begin_when_fit()
    own_valkey.execute_command("ACL", "DELUSER", "push")
    assert [entry["reason"] for entry in logs if entry["event"] == "start_waits"] == [line]


def answers(client: redis.Redis) -> bool:
    with suppress(redis.RedisError):
        return bool(client.ping())
    return False


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("PING", ""),
        ("REPLICAOF 127.0.0.1 1", "Redis is a replica, and refuses writes"),
        ("CONFIG SET maxmemory 1", "Redis has reached its maxmemory, and refuses writes"),
        ("ACL SETUSER push on >pw ~* +@all resetchannels", NO_CHANNELS),
        ("ACL SETUSER push on >pw ~* +@all resetchannels &/0.celeryev*", NO_CHANNELS),
        ("ACL SETUSER push on >pw ~* +@all resetchannels &/0.celery*", ""),
        ("ACL SETUSER push on >pw ~pushserver:* &* +@all", "the account of REDIS_URL may not use Celery's keys"),
        ("ACL SETUSER push on >pw %R~* &* +@all", "the account of REDIS_URL may not use Celery's keys"),
        ("ACL SETUSER push on >pw ~* &* +@read", "the account of REDIS_URL may not run Celery's commands"),
        ("ACL SETUSER push on >other ~* &* +@all", "Redis refuses the account or password of REDIS_URL"),
    ],
)
def test_redis_is_well_only_if_it_takes_what_workers_do_there(own_valkey, settings, spoil, reason):
    """An account that Redis makes has no channels unless it is given some."""
    port = own_valkey.connection_pool.connection_kwargs["port"]
    password = own_valkey.connection_pool.connection_kwargs["password"]
    settings.REDIS_URL = f"redis://{'push:pw' if 'ACL' in spoil else f':{password}'}@127.0.0.1:{port}/0"
    own_valkey.execute_command(*spoil.split())
    try:
        assert asking.ask_broker().partition(": ")[0] == reason
    finally:
        for command in ("REPLICAOF NO ONE", "CONFIG SET maxmemory 0", "ACL DELUSER push"):
            own_valkey.execute_command(*command.split())


@pytest.mark.usefixtures("all_well")
def test_one_node_that_is_read_and_one_gorush_that_answers_are_enough(client, settings):
    settings.WAKU_NODES = [NODE_URL, "http://127.0.0.2:8645"]
    settings.GORUSH_URLS = [f"http://127.0.0.1:{free_port()}", *settings.GORUSH_URLS]

    answer = client.get("/readyz")

    assert answer.json()["status"] == "ready"
    sentences = {found["id"]: found["sentence"] for found in answer.json()["indicators"]}
    assert sentences["node-1"].startswith("is read")
    assert sentences["node-2"] == "was not read for 3 seconds"
    assert b"127.0.0" not in answer.content  # open to anybody; the API and the console name hosts


@pytest.mark.usefixtures("all_well")
def test_a_gorush_without_the_path_of_the_probe_answers_and_a_broken_one_does_not(client, gorush):
    gorush.RequestHandlerClass.status = 404
    assert client.get("/readyz").status_code == 200
    gorush.RequestHandlerClass.status = 502
    assert list(failing(client).values()) == ["does not answer"]


@pytest.mark.usefixtures("all_well")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("queue", NEEDED_QUEUES)
def test_readyz_names_a_queue_without_a_worker_and_since_when_as_far_as_it_was_noted(client, queue):
    cache.delete(HEARTBEAT_KEY.format(queue=queue))
    assert failing(client) == {"workers": f"no worker for {queue}"}

    began_at = take_snapshot(now=NOW).facts["now"]
    [found] = [found for found in client.get("/readyz").json()["indicators"] if found["state"] == State.RED]
    assert datetime.fromisoformat(found["since"]) == began_at


@contextmanager
def celery_worker(postgres: EmbeddedPostgres, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "--app=pushserver.worker", "worker", "--concurrency=1", *arguments]
    environment = os.environ | {"DATABASE_URL": postgres.url(connection.settings_dict["NAME"])}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as worker:
        try:
            yield worker
        finally:
            worker.terminate()


@pytest.mark.django_db(transaction=True)
def test_processes_of_batches_are_judged_by_their_statements(client, postgres, monkeypatch):
    """A stopped child of a worker keeps its sessions, and its parent continues."""
    monkeypatch.setattr(server, "HANGS_SECONDS", 2.5)
    assert of_batches(client) == (State.RED, "no worker processes batches")
    with celery_worker(postgres, "--queues=batches", "--pool=prefork") as worker:
        assert becomes_true(lambda: of_batches(client) == (State.GREEN, "1 process at work"))
        [child] = psutil.Process(worker.pid).children()
        child.suspend()
        try:
            assert becomes_true(lambda: of_batches(client)[0] == State.RED)
        finally:
            child.resume()
        assert becomes_true(lambda: of_batches(client) == (State.GREEN, "1 process at work"))


@pytest.mark.usefixtures("all_well")
@pytest.mark.django_db(transaction=True)
def test_a_postgresql_that_tracks_no_activities_makes_no_worker_look_silent(client, monkeypatch):
    monkeypatch.setattr(server, "HANGS_SECONDS", 0.0)
    assert of_batches(client)[0] == State.RED
    with a_batch_worker() as worker:
        worker.execute("SET track_activities = off")
        assert of_batches(client)[0] == State.YELLOW  # the other one


def of_batches(client: Client) -> tuple[str, str]:
    [found] = [found for found in client.get("/readyz").json()["indicators"] if found["id"] == "batches"]
    return found["state"], found["sentence"]


@pytest.mark.parametrize(
    ("pool", "queues"),
    [
        ("prefork", {"reports"}),
        pytest.param("threads", {"maintenance", "keys"}, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_a_worker_reports_which_queues_it_serves(pool, queues, postgres):
    cache.clear()
    with celery_worker(postgres, f"--pool={pool}", f"--queues={','.join(queues)}"):
        assert becomes_true(lambda: served_queues() == queues)
    cache.clear()


def served_queues() -> set[str]:
    return {queue for queue in (*NEEDED_QUEUES, "reports") if cache.get(HEARTBEAT_KEY.format(queue=queue))}


def becomes_true(condition: Callable[[], bool], *, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def failing(client: Client) -> dict[str, str]:
    """Return the indicators that make the server unready."""
    response = client.get("/readyz")
    assert response.status_code == 503, response.content
    assert response.json()["status"] == "not ready"
    indicators = json.loads(response.content)["indicators"]
    return {found["id"]: found["sentence"] for found in indicators if found["state"] == State.RED}


def indicators() -> dict[str, Verdict]:
    return {found.id: found for found in take_snapshot(now=datetime.now(UTC)).indicators}


# Faults with which messages are still processed -----------------------------------------------------------------------
PEERS = [(GORUSH_NOTICES, "GORUSH_URLS", "gorush"), (NODE_NOTICES, "WAKU_NODES", "node")]
WRONG = Complaint("wrong", "this is off", "why", "todo")
AWAY = Complaint(UNREACHABLE, "it does not answer", "why", "Start it.")


def shown(client: Client, indicator_id: str) -> tuple[str, str]:
    """Return the state and sentence of an indicator in an answer that is ready."""
    response = client.get("/readyz")
    assert response.status_code == 200
    [found] = [found for found in response.json()["indicators"] if found["id"] == indicator_id]
    return found["state"], found["sentence"]


@pytest.mark.usefixtures("all_well")
@pytest.mark.parametrize(("saved", "setting", "kind"), PEERS)
def test_a_complaint_is_shown_and_no_reason_to_be_unready(client, settings, saved, setting, kind):
    """A check that found the peer away five minutes ago says nothing of one that answers now."""
    (url,) = getattr(settings, setting)
    assert shown(client, f"{kind}-1")[1].endswith("its configuration was not checked lately")
    saved.save(Notice(url, NOW, (WRONG,), {"wrong": NOW}, None))
    assert shown(client, f"{kind}-1") == ("look at it", "this is off")
    for complaints in ((), (AWAY,)):
        saved.save(Notice(url, NOW, complaints, {}, None))
        assert shown(client, f"{kind}-1")[0] == "fine"


@pytest.mark.usefixtures("all_well")
def test_a_node_that_is_only_asked_for_its_store_is_watched_too(settings):
    store, name = "http://store.test:8645", "store-store.test:8645"
    settings.WAKU_STORE_NODES = [*settings.WAKU_NODES, store]
    now = datetime.now(UTC)
    rows.make_watermark(node=store, watermark_at=now - timedelta(minutes=1))
    assert indicators()[name].sentence == "is read; its configuration was not checked lately"
    NODE_NOTICES.save(Notice(store, now, (WRONG,), {"wrong": now}, None))
    assert indicators()[name].sentence == "this is off"
    NODE_NOTICES.save(Notice(store, now + timedelta(seconds=1), (AWAY,), {}, None))
    assert indicators()[name].sentence == "it does not answer"
    NODE_NOTICES.save(Notice(store, now - timedelta(seconds=1), (AWAY,), {}, None))  # it was read since the check
    assert indicators()[name].state == State.GREEN


@pytest.fixture
def with_keys(settings):
    """Return a function that starts the server with these private keys, as the watch of a worker notes it."""

    def start(first: str, *others: str) -> None:
        settings.SERVER_PRIVATE_KEY = bytes.fromhex(first)
        settings.OTHER_SERVER_PRIVATE_KEYS = tuple(map(bytes.fromhex, others))
        forget_keys()
        Watch().look(datetime.now(UTC))

    yield start
    forget_keys()


def forget_keys() -> None:
    for known in (server_identity, server_identities):
        known.cache_clear()


OLD, NEW = "01" * 32, "02" * 32


@pytest.mark.usefixtures("all_well")
@pytest.mark.django_db(transaction=True)
def test_a_key_that_clients_do_not_know_is_red_until_it_is_back_or_staff_acknowledge_it(with_keys):
    with_keys(OLD)
    with_keys(NEW)
    assert indicators()["key"].state == State.GREEN  # nobody has registered with the old one

    with_keys(OLD)
    rows.make_grant(server_public_key=server_identity().pub33)
    states = []
    for keys in ((NEW,), (OLD,), (NEW,), (NEW, OLD), (NEW,), (OLD,), (NEW,)):
        with_keys(*keys)
        states.append(indicators()["key"].state)
    red, green = State.RED, State.GREEN
    # The fourth and the fifth start are the steps of a change of keys on purpose.
    assert states == [red, green, red, green, green, green, red]
    changed = Incident.objects.filter(indicator="key", ended_at=None)
    assert changed.update(acknowledged_by="ann", acknowledged_at=datetime.now(UTC)) == 1
    assert indicators()["key"].sentence == "was changed, as ann has acknowledged"


@pytest.mark.usefixtures("all_well")
@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_lost_after_months_without_a_restart_is_red(with_keys):
    with_keys(OLD)
    rows.make_grant(server_public_key=server_identity().pub33)
    ServerStart.objects.update(started_at=datetime.now(UTC) - timedelta(days=90))
    list(incidents.purge(now=datetime.now(UTC)))
    with_keys(NEW)
    list(incidents.purge(now=datetime.now(UTC)))
    assert indicators()["key"].state == State.RED
    list(incidents.purge(now=datetime.now(UTC) + timedelta(days=31)))
    assert ServerStart.objects.count() == 1


@pytest.mark.usefixtures("all_well")
def test_a_process_that_is_cut_off_from_gorush_is_named():
    assert indicators()["gateway"].state == State.GREEN
    CUT_OFF.save("process 7 on a", "gorush")
    assert indicators()["gateway"].sentence == "process 7 on a cannot reach gorush, and leaves its pushes to the others"


@pytest.mark.usefixtures("all_well")
def test_a_broken_canary_makes_nobody_unready_and_one_that_is_switched_off_is_not_missed(client, settings):
    assert settings.CANARY_PERIOD_SECONDS == 0
    assert indicators()["canary"].state == State.OFF
    settings.CANARY_PERIOD_SECONDS, settings.XMPP_COMPONENT_JID = 60, "push.montague.test"
    component.END.save(component.CONNECTED)
    assert {indicators()[name].state for name in ("canary", "xmpp-canary")} == {State.YELLOW}
    canary.save(rows.make_canary_run(state="broken", broken_link="register_answer", cause="bridge"))
    xmpp_canary.save(rows.make_xmpp_canary_run(state="broken", broken_link="push", cause="xmpp_server"))
    found = indicators()
    assert found["canary"].sentence == "broken: the bridge does not read what a node took"
    assert found["xmpp-canary"].sentence == "broken: the XMPP server does not route to the component"
    assert {found[name].state for name in ("canary", "xmpp-canary")} == {State.RED}
    assert client.get("/readyz").status_code == 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("all_well")
def test_readyz_shows_no_reason_while_delivery_is_stopped_and_each_halted_channel_is_named(client):
    halts.begin(halts.Kind.DRAINED, by="ann", reason="a word for colleagues", now=NOW)
    assert indicators()["sending"].sentence.startswith("stopped by ann since 2026-11-21 12:00:00 UTC: a word")
    assert "colleagues" not in client.get("/readyz").content.decode()
    halts.end(halts.Kind.DRAINED, by="ann", now=NOW)

    for app_topic in ("im.one", "im.two"):
        rows.make_channel((1, app_topic))
    rows.make_halt("paused", (1, "im.one"), by="ann", reason="a word for colleagues", since=NOW)
    assert indicators()["sending"].state == State.GREEN
    rows.make_halt("tripped", (1, "im.two"), since=NOW)
    assert indicators()["sending"].state == State.RED
    assert "APN im.one paused by ann since 2026-11-21 12:00:00 UTC" in indicators()["sending"].sentence
    assert "APN im.two tripped" in indicators()["sending"].sentence


@pytest.mark.usefixtures("all_well")
def test_a_database_that_goes_away_during_a_snapshot_is_reported(monkeypatch):
    """It goes away after the check whether it answers, and before the facts are read."""
    RECENT.get()
    monkeypatch.setattr("pushserver.console.health.stored.read", Mock(side_effect=OperationalError))

    found = indicators()

    assert (found["database"].state, found["database-speed"].state) == (State.RED, State.GREY)
    assert found["sending"].state == State.GREY


def test_a_database_that_freezes_once_it_was_reached_is_not_waited_for(postgres, monkeypatch):
    proxy = SilentProxy(postgres.socket_dir / SOCKET_NAME, mute_at=b"statement_timeout")
    facts = {"host": "127.0.0.1", "port": proxy.port, "dbname": "postgres", "user": "postgres"}
    monkeypatch.setattr(asking.connection, "get_connection_params", lambda: facts)
    monkeypatch.setattr(asking, "TIMEOUT_SECONDS", 1)
    assert asking.ask_database() == {"database": "PostgreSQL does not answer", "incidents": {}}
    assert not proxy.speaks.is_set()
    proxy.close()
