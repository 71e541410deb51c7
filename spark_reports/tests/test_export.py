import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow.parquet as pq
import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from kit.db.base import REPORTS
from notifications import retention
from notifications.gateways.gorush.errors import seed_rules
from notifications.models import RefusedRequest
from notifications.policy import Verdict, Wish
from notifications.reports import Decided, pack
from pushserver.console.xmpp.api import command as xmpp_command
from registrations.encryption import Purpose, keyring
from registrations.models import RegistrationEvent
from spark_reports.export import copying
from spark_reports.export.copying import copy_rows, is_topic, is_word
from spark_reports.export.days import ExportError, closed_days, export_day
from spark_reports.export.pseudonyms import Period, PseudonymKey, Subject, destroy_seeds, key_for
from spark_reports.export.queries import QUERIES
from spark_reports.jobs.plan import path_of
from spark_reports.jobs.tables import ACTORS, CROWD, DAYS, EVENT_TABLES, HEAVIEST
from spark_reports.lake import Day, Lake, arrow_schema
from spark_reports.models import PseudonymSeed
from spark_reports.nights.nights import last_closed_day
from spark_reports.tests.history import History, midnight
from tests.rig.conversation import OUTSIDER, push, registration, request, say
from tests.rig.delivering import Process
from tests.rig.rows import (
    make_answered_request,
    make_attempt,
    make_canary_envelope,
    make_canary_run,
    make_channel,
    make_envelope,
    make_event,
    make_notification,
    make_reply,
    make_request,
    make_unknown_error,
    make_xmpp_app,
    make_xmpp_canary_run,
)
from waku_bridge.query_topics import canary_identities

Kinds = RegistrationEvent.Kind
SECRET = bytes(range(32))


def rows_of(lake_url: str, exported: Day, table: str, *columns: str) -> list[Any]:
    """Return the rows of a table: those columns, or dictionaries of all."""
    rows = pq.read_table(f"{lake_url}/{path_of(table, exported.day)}", partitioning=None).to_pylist()
    assert len(rows) == exported.rows[table]
    return [tuple(row[name] for name in columns) for row in rows] if columns else rows


# Days -----------------------------------------------------------------------------------------------------------------
def test_a_day_is_closed_ten_minutes_after_its_midnight_and_refused_before():
    midnight_utc = datetime(2026, 11, 21, tzinfo=UTC)
    assert last_closed_day(midnight_utc + timedelta(minutes=9)) == date(2026, 11, 19)
    assert last_closed_day(midnight_utc + timedelta(minutes=10)) == date(2026, 11, 20)
    with pytest.raises(ExportError, match="2026-11-21 is not over"):
        closed_days(date(2026, 11, 20), date(2026, 11, 21), now=midnight_utc + timedelta(hours=12))


# Pseudonyms -----------------------------------------------------------------------------------------------------------
def test_keys_change_with_period_and_role_and_so_does_the_key_id():
    november, december = (key_for(date(2026, month, 1), SECRET, SECRET, Period.MONTH) for month in (11, 12))
    values = {(key.outer, key.prefix(subject)) for key in (november, december) for subject in Subject}

    assert len(values) == 4
    assert november.id == key_for(date(2026, 11, 30), SECRET, SECRET, Period.MONTH).id != december.id
    assert hashlib.sha256(SECRET).hexdigest()[:8] not in november.id


def test_only_a_text_that_looks_like_an_app_topic_and_every_code_of_the_error_table_is_exported():
    assert all(map(is_topic, ("im.status.ethereum", "", "im.status.ethereum.pr")))
    others = ("deadbeefdeadbeefdeadbeef.app", "3f2504e0-4f89-11d3.app", "a token with spaces", "nodots")
    assert not any(map(is_topic, (*others, "x" * 200 + ".y")))
    codes = {rule.code for rule in seed_rules()}
    assert len(codes) > 20
    assert [code for code in codes if not is_word(code)] == []


# Exporting ------------------------------------------------------------------------------------------------------------
pytestmark = pytest.mark.django_db(transaction=True)


def test_files_have_the_documented_columns(lake_url, day, export):
    History(seed=1).add_day(day, events=20, requests=20)
    export()

    for table in (*EVENT_TABLES, DAYS):
        assert pq.read_schema(f"{lake_url}/{path_of(table.name, day)}").equals(arrow_schema(table)), table.name


def test_nothing_in_the_lake_identifies_anybody(lake_url, day, export):
    history = History(seed=2)
    secret_topic = "deadbeef" * 4 + ".token"
    make_channel((1, secret_topic))
    make_event(app_topic=secret_topic, token_type=1, at=midnight(day))
    make_envelope(at=midnight(day), reason="f00dfeed" * 4)
    history.add_day(day)
    export()

    files = [path for path in Path(lake_url).rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    columns = [pq.read_table(path, partitioning=None) for path in files]
    written += repr([rows.to_pylist() for rows in columns]).encode()  # values that compression hides
    for secret in {*history.secrets, b"deadbeef" * 4, b"f00dfeed" * 4}:
        digits = secret.hex()
        as_number = str(int.from_bytes(secret[:8], signed=True))
        for form in (secret, digits.encode(), digits.upper().encode(), as_number.encode()):
            assert form not in written


def test_a_pseudonym_is_64_bits_of_an_hmac_under_the_key_of_its_period(lake_url, day, export, settings):
    senders = [keyring().digest(Purpose.SENDER, b"\x03" + secrets.token_bytes(32)) for _ in range(CROWD)]
    recipients = [secrets.token_bytes(64) for _ in range(CROWD)]
    for sender, recipient in zip(senders, recipients, strict=True):
        request = make_answered_request(at=midnight(day), sender_digest=sender)
        make_notification(request=request, at=midnight(day), public_key_hash=recipient)
    exported = export()

    secret, seed = settings.FIELD_ENCRYPTION_KEYS[0], bytes(PseudonymSeed.objects.get().seed)
    key = hmac.digest(secret, f"report pseudonyms {day:%Y-%m}".encode() + b"\0" + seed, "sha256")
    rows = rows_of(lake_url, exported, "actors")
    for role, values in (("sender", senders), ("recipient", recipients)):
        expected = {hmac.digest(key, role.encode() + b"\0" + value, "sha256")[:8] for value in values}
        assert {row["actor"] for row in rows if row["role"] == role} == {
            int.from_bytes(pseudonym, signed=True) for pseudonym in expected
        }
    assert exported.key_id == key_for(day, secret, seed, Period.MONTH).id


def test_the_session_has_the_timeouts_of_reports(monkeypatch, export):
    """The timeout of a worker's statement is 20 s, and reading a history takes longer."""
    seen: list[tuple[str, float | None]] = []

    def copy(session: Any, *args: Any) -> Any:
        with psycopg.Cursor(session) as cursor:
            seen.append((cursor.execute("SHOW statement_timeout").fetchone()[0], session.timeout_seconds))
        return copy_rows(session, *args)

    monkeypatch.setattr("spark_reports.export.days.copy_rows", copy)
    export()
    assert seen == [("4h", REPORTS.answer_seconds)] * len(EVENT_TABLES)


def test_a_notification_decided_at_once_is_exported_from_its_request(lake_url, day, export):
    """The notification has no row of its own in the database, but one in the lake."""
    decided = [
        Decided(0, Verdict.WRONG_TOKEN, 2),
        Decided(2, Verdict.SUPPRESSED, 200, Wish.CHAT_MUTED),
        Decided(3, Verdict.DUPLICATE, 1),
    ]
    answered = {"at": midnight(day), "answered_at": midnight(day) + timedelta(seconds=1)}
    request = make_answered_request(**answered, decided=pack(decided))
    make_notification(request=request, position=1, at=midnight(day), state="delivered")
    canary = make_canary_envelope(at=midnight(day))
    make_answered_request(**answered, decided=pack(decided), source_key=canary.hash)

    exported = export()
    rows = rows_of(lake_url, exported, "notifications", "platform", "bridge", "state", "report")
    assert sorted(row for row in rows if row[2] != "delivered") == [
        ("none", "waku", "duplicate", "success"),
        ("none", "waku", "refused", "wrong_token"),
        ("none", "waku", "suppressed", "success"),
    ]
    assert len(rows) == 4
    columns = ("role", "rank", "actors", "notifications", "refused")
    assert sorted(rows_of(lake_url, exported, "actors", *columns)) == [
        ("recipient", 1, 1, 1, 0),
        ("sender", 1, 1, 4, 1),
    ]
    times = rows_of(lake_url, exported, "notification_times", "delivered_us", "answered_us")
    assert sorted(times, key=repr) == [(None, 1_000_000), (None, None)]  # the answer of a request is measured once


def test_a_night_that_was_missed_ten_days_ago_has_all_requests_that_notified_nobody(lake_url, day, settings):
    """Their own rows are gone after three days."""
    settings.ENVELOPE_RETENTION_DAYS = 30
    missed, process = day - timedelta(days=9), Process()
    evening = midnight(missed) + timedelta(hours=23, minutes=59)
    say(registration(), now=evening - timedelta(hours=1), process=process)
    for number, at in enumerate((evening, evening, evening + timedelta(minutes=2), evening + timedelta(minutes=2))):
        unknown, wrong = push(OUTSIDER), push(access_token="wrong")
        say(request(unknown, wrong, unknown, message_id=b"%d" % number), now=at, process=process)
    list(retention.purge(now=timezone.now(), keep=timedelta(days=30)))
    assert not RefusedRequest.objects.exists()

    call_command("export_events", "--from", str(missed), "--to", str(missed + timedelta(days=1)))
    for each in (missed, missed + timedelta(days=1)):
        exported = Lake(lake_url).day(each)
        assert exported is not None
        assert exported.is_complete
        rows = rows_of(lake_url, exported, "notifications", "bridge", "state", "report")
        assert Counter(rows) == {("waku", "refused", "not_registered"): 4, ("waku", "refused", "wrong_token"): 2}


def test_the_history_of_an_xmpp_device_is_exported_like_that_of_an_installation(lake_url, day, export, settings):
    make_xmpp_app(slug="chat", app_topic="org.example.chat")
    make_channel((1, "org.example.chat"))
    settings.XMPP_COMPONENT_JID = "push.example.org"
    for hour, command, fields in [
        (1, "register-push-apns", {"token": "ab" * 32, "device-id": "kept"}),
        (2, "register-push-apns", {"token": "cd" * 32, "device-id": "left"}),
        (3, "register-push-apns", {"token": "ab" * 32, "device-id": "kept"}),
        (4, "register-push-apns", {"token": "ef" * 32, "device-id": "kept"}),
        (5, "unregister-push-apns", {"device-id": "left"}),
    ]:
        xmpp_command(command, "juliet@example.org", fields, now=midnight(day) + timedelta(hours=hour))
    exported = export()

    columns = ("kind", "app_topic", "is_first", "was_active", "is_active", "bridge")
    events = sorted(rows_of(lake_url, exported, "registration_events"), key=lambda row: row["at"])
    assert [row["at"].hour for row in events] == [1, 2, 4, 5], "a refresh of the same day says nothing"
    assert [tuple(row[c] for c in columns) for row in events] == [
        ("registered", "org.example.chat", True, False, True, "xmpp"),
        ("registered", "org.example.chat", True, False, True, "xmpp"),
        ("token_changed", "org.example.chat", False, True, True, "xmpp"),
        ("unregistered", "org.example.chat", False, True, False, "xmpp"),
    ]
    [stock] = rows_of(lake_url, exported, "active_tokens")
    assert tuple(stock.values()) == ("ios", "org.example.chat", "xmpp", 0, 1)


def test_pushes_of_xmpp_have_recipients_of_their_own_and_only_the_wait_for_the_first_push(lake_url, day, export):
    at = midnight(day)
    ended = {"state": "delivered", "report": "success", "finished_at": at + timedelta(seconds=6)}
    for device_id in ("one", "other", "other"):
        request = make_answered_request(bridge="xmpp", at=at, answered_at=at, reply_due_at=at)
        push = {"public_key_hash": b"", "installation_id": device_id, "grade": "normal"}
        notification = make_notification(request=request, at=at, **push, **ended)
        late = {"started_at": at + timedelta(seconds=5), "latency_ms": 7, "waited_ms": 9, "outcome": "delivered"}
        make_attempt(notification, **late)
    exported = export()

    assert rows_of(lake_url, exported, "notifications", "bridge") == [("xmpp",)] * 3
    assert rows_of(lake_url, exported, "attempts", "bridge", "latency_us", "queued_us") == [("xmpp", 7000, 9000)] * 3
    pushes = rows_of(lake_url, exported, "actors", "role", "notifications")
    assert sorted(pushes)[:2] == [("recipient", 1), ("recipient", 2)]
    assert exported.rows["notification_times"] == 0


def test_app_topics_that_clients_make_up_do_not_multiply_the_rows(lake_url, day, export):
    make_channel((1, "im.status.app"))
    for topic in ("im.status.app", *(f"im.made.up-{n}" for n in range(5))):
        make_event(token_type=1, app_topic=topic, at=midnight(day))
    exported = export()

    for table, expected in (("registration_events", 6), ("active_tokens", 2)):
        topics = rows_of(lake_url, exported, table, "app_topic")
        assert (len(topics), set(topics)) == (expected, {("im.status.app",), ("(other)",)}), table


def test_an_outcome_that_is_not_known_yet_is_null_or_open(lake_url, day, export):
    notification = make_notification(at=midnight(day))
    make_attempt(notification, started_at=midnight(day) + timedelta(milliseconds=40))
    exported = export()

    columns = ("outcome", "latency_us", "queued_us", "code")
    assert rows_of(lake_url, exported, "attempts", *columns) == [("open", None, None, "")]
    assert rows_of(lake_url, exported, "notifications", "platform") == [("none",)]
    assert exported.rows["notification_times"] == 0


def test_counters_of_texts_are_exported_as_they_are_and_not_for_a_day_that_is_exported_late(lake_url, day, export):
    signature = 'a "quoted", <n>\nbroken ‽ line'
    make_unknown_error(signature=signature, first_seen_at=midnight(day) - timedelta(days=9))
    late = export_day(day - timedelta(days=1), Lake(lake_url), now=timezone.now())

    assert late.rows["unknown_errors"] == 0
    assert rows_of(lake_url, export(), "unknown_errors", "signature") == [(signature,)]


@pytest.fixture
def former_key(settings):
    """Add a former field key to the known ones."""
    canary_identities.cache_clear()
    settings.FIELD_ENCRYPTION_KEYS = [*settings.FIELD_ENCRYPTION_KEYS, secrets.token_bytes(32)]
    yield
    canary_identities.cache_clear()


@pytest.mark.parametrize("canary", ["of the key", "of a former key", "of XMPP"])
def test_nothing_of_a_canary_is_exported(day, export, former_key, canary):
    at = midnight(day)
    if canary == "of XMPP":
        run = make_xmpp_canary_run(at=at, pseudonym=uuid4(), device=uuid4())
        of_canary = {"request": make_request(bridge="xmpp", at=at), "public_key_hash": b"", "grade": "normal",
                     "installation_id": str(run.device)}  # fmt: skip
    else:
        mark, run = make_canary_envelope(at=at), make_canary_run(at=at, pseudonym=uuid4())
        make_envelope(hash=mark.hash, at=at)
        make_reply(envelope_hash=mark.hash, at=at)
        key_hash = canary_identities()[canary == "of a former key"].key_hash
        of_canary = {"request": make_request(source_key=mark.hash, at=at), "public_key_hash": key_hash}
    make_attempt(make_notification(at=at, **of_canary), started_at=at)
    make_event(pseudonym=run.pseudonym, at=at)

    assert set(export().rows.values()) == {0}


def test_exporting_again_changes_nothing_without_replace(lake_url, day, export, monkeypatch):
    """Only the day itself is exported, also in chunks of a row."""
    monkeypatch.setattr(copying, "CHUNK_SIZE", 1)
    for at in (midnight(day) - timedelta(microseconds=1), midnight(day), midnight(day) + timedelta(days=1)):
        make_envelope(at=at)
    first = export()
    assert first.rows["envelopes"] == 1
    make_envelope(at=midnight(day))

    assert export() == first
    assert export(replace=True).rows["envelopes"] == 2
    assert len(rows_of(lake_url, Lake(lake_url).day(day), "envelopes")) == 2


@pytest.mark.parametrize("error", ["1/0", "pg_terminate_backend(pg_backend_pid())"])
def test_an_export_that_fails_leaves_the_day_as_it_was_and_no_file(lake_url, day, export, monkeypatch, error):
    first = export()
    monkeypatch.setitem(QUERIES, "replies", lambda _day: f"SELECT {error}")
    with pytest.raises(psycopg.Error):
        export(replace=True)
    connection.close()
    assert Lake(lake_url).day(day) == first
    assert not Path(lake_url, "incoming").exists()


def test_all_tables_of_an_export_are_of_one_moment(day, export, monkeypatch):
    """Rows that are committed after the beginning of the export are in none of its tables."""

    def add_envelope() -> None:
        with closing(connection):
            make_envelope(at=midnight(day))

    def late(of_day: date) -> str:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(add_envelope).result()
        return select(of_day)

    make_envelope(at=midnight(day))
    select = QUERIES["envelopes"]
    monkeypatch.setitem(QUERIES, "envelopes", late)
    assert export().rows["envelopes"] == 1
    assert export(replace=True).rows["envelopes"] == 2


# Times and durations --------------------------------------------------------------------------------------------------
def test_durations_are_whole_microseconds(lake_url, day, export):
    """A float would turn 1.001 s into 1000.999… ms. Every whole number of milliseconds stays exact."""
    at, durations = midnight(day), [ms * 1000 + ms % 3 for ms in (*range(0, 60_000, 97), 1001, 86_399_999)]
    for us in durations:
        make_envelope(at=at, state="processed", processed_at=at + timedelta(microseconds=us))

    assert sorted(us for (us,) in rows_of(lake_url, export(), "envelopes", "processed_us")) == sorted(durations)


def test_the_time_of_a_push_does_not_lead_to_its_pseudonym(lake_url, day, export):
    """A row with a pseudonym has no time, place or duration, and the times of all other rows are rounded."""
    moments = [midnight(day) + timedelta(minutes=7 * n, microseconds=n + 1) for n in range(200)]
    for at in moments:
        digest = keyring().digest(Purpose.SENDER, secrets.token_bytes(33))
        request = make_answered_request(at=at, answered_at=at + timedelta(microseconds=77), sender_digest=digest)
        facts = {"state": "delivered", "finished_at": at + timedelta(microseconds=99)}
        notification = make_notification(request=request, at=at, public_key_hash=secrets.token_bytes(64), **facts)
        make_attempt(notification, started_at=at)
        make_reply(envelope_hash=make_envelope(at=at).hash, at=at)
        make_event(at=at)
    make_unknown_error(first_seen_at=moments[0], last_seen_at=moments[1])
    exported = export()

    assert [table.name for table in EVENT_TABLES if {"actor", *Subject} & {*table.column_names}] == ["actors"]
    assert not {"at", "platform", "app_topic", "bridge", "type"} & {*ACTORS.column_names}
    for table in EVENT_TABLES:
        rows = rows_of(lake_url, exported, table.name)
        times = [value for row in rows for value in row.values() if isinstance(value, datetime)]
        assert {(at.second, at.microsecond) for at in times} <= {(0, 0)}, table.name


def test_the_load_of_a_user_does_not_lead_to_the_pseudonym(lake_url, day, export):
    """Each pseudonym belongs to one of five actors, and its order among the five is that of the pseudonyms.

    The test compares the five pseudonyms of each five ranks with those of the five recipients in the database.
    """
    History(seed=3).add_day(day)
    rows = rows_of(lake_url, export(), "actors")
    key = key_for(day, django_settings.FIELD_ENCRYPTION_KEYS[0], bytes(PseudonymSeed.objects.get().seed), Period.MONTH)
    with connection.cursor() as cursor:
        cursor.execute(RECIPIENTS, [midnight(day), midnight(day) + timedelta(days=1)])
        pushes = Counter(bytes(value) for (value,) in cursor.fetchall())
    found = sorted((row for row in rows if row["role"] == "recipient" and row["rank"]), key=lambda row: row["rank"])
    heaviest = sorted(pushes, key=lambda who: (-pushes[who], who))[:HEAVIEST]

    assert [row["notifications"] for row in found] == [pushes[who] for who in heaviest]
    assert sum(row["actors"] for row in rows if row["role"] == "recipient") == len(pushes)
    for start in range(0, HEAVIEST, CROWD):
        crowd = heaviest[start : start + CROWD]
        pseudonyms = sorted(pseudonym_of(who, key) for who in crowd) if len(crowd) == CROWD else [None] * len(crowd)
        assert [row["actor"] for row in found[start : start + CROWD]] == pseudonyms
    for role in Subject:
        named = [row["rank"] for row in rows if row["role"] == role and row["actor"] is not None]
        assert sorted(named) == [*range(1, len(named) + 1)]
        assert len(named) % CROWD == 0
    assert {row["actors"] for row in rows if row["rank"]} == {1}


RECIPIENTS = """SELECT CASE public_key_hash WHEN '' THEN convert_to(installation_id, 'UTF8') ELSE public_key_hash END
    FROM notifications_notification WHERE created_at >= %s AND created_at < %s"""


def pseudonym_of(value: bytes, key: PseudonymKey) -> int:
    inner = hashlib.sha256(key.prefix(Subject.RECIPIENT) + value).digest()
    return int.from_bytes(hashlib.sha256(key.outer + inner).digest()[:8], signed=True)


@pytest.mark.parametrize(("people", "named"), [(4, 0), (5, 5), (9, 5), (10, 10), (30, 20)])
def test_fewer_than_five_actors_have_no_pseudonym(lake_url, day, export, people, named):
    at = midnight(day)
    for number in range(people):
        make_notification(request=make_request(at=at), at=at, public_key_hash=bytes([number]) * 64)
    rows = [row for row in rows_of(lake_url, export(), "actors") if row["role"] == "recipient"]

    assert sum(row["actor"] is not None for row in rows) == named
    assert sum(row["actors"] for row in rows) == people


# Seeds of pseudonyms --------------------------------------------------------------------------------------------------
def test_the_key_of_a_past_period_cannot_be_made_again(day, export, settings):
    """The server's secret does not suffice: the seed is destroyed once the period has no rows left to export."""
    first = export()
    kept_until = Period.MONTH.last_day(day) + timedelta(days=settings.NOTIFICATION_RETENTION_DAYS + 1)
    destroy_seeds(midnight(kept_until) + timedelta(hours=23))
    assert export(replace=True).key_id == first.key_id

    destroy_seeds(midnight(kept_until + timedelta(days=1)))
    assert not PseudonymSeed.objects.exists()
    assert export(replace=True).key_id != first.key_id


def test_a_period_ends_with_its_last_day():
    last = {"day": (11, 20), "week": (11, 22), "month": (11, 30), "year": (12, 31)}
    for period, (month, number) in last.items():
        assert Period(period).last_day(date(2026, 11, 20)) == date(2026, month, number)


def test_the_key_never_stands_in_a_statement_or_a_parameter(day, export, settings, monkeypatch):
    """Both may appear in the database's log.

    The statements of every cursor are checked, also of cursors of psycopg.
    """
    reported: list[bytes] = []

    def listen(name: str) -> None:
        real = getattr(psycopg.Cursor, name)

        def heard(cursor: Any, *arguments: Any, **options: Any) -> Any:
            reported.extend(texts_in([arguments, options]))
            return real(cursor, *arguments, **options)

        monkeypatch.setattr(psycopg.Cursor, name, heard)

    for name in ("execute", "executemany", "copy", "stream"):
        listen(name)
    export()

    key = key_for(day, settings.FIELD_ENCRYPTION_KEYS[0], bytes(PseudonymSeed.objects.get().seed), Period.MONTH)
    assert b"COPY report_keys FROM STDIN" in reported
    assert any(b"FROM waku_bridge_outboundreply" in text for text in reported)
    for secret in (key.inner[:32], key.outer[:32]):  # the rest is padding
        for form in (secret, secret.hex().encode(), secret.hex().upper().encode()):
            assert not [text[:80] for text in reported if form in text]


def texts_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        yield bytes(value)
    elif isinstance(value, dict):
        yield from texts_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)


def test_a_lake_that_cannot_be_opened_is_named_and_a_day_that_it_does_not_keep_is_not_exported(lake_url, settings):
    """Its reports, from the time when its rows existed, would be replaced by empty ones."""
    now = timezone.now()
    with pytest.raises(ExportError, match="older than EVENT_RETENTION_DAYS"):
        export_day(now.date() - timedelta(days=400), Lake(lake_url), now=now)
    settings.REPORTS_LAKE = "nonsense://bucket"
    with pytest.raises(CommandError, match="REPORTS_LAKE cannot be opened"):
        call_command("export_events")


def test_the_command_exports_a_range_and_prints_the_rows(lake_url, day, capsys):
    """The lake is for its account only."""
    make_envelope(at=midnight(day))
    call_command("export_events", "--from", str(day - timedelta(days=1)))

    before, last = capsys.readouterr().out.splitlines()
    assert before.startswith(f"{day - timedelta(days=1)}: 0 envelopes, ")
    assert last.startswith(f"{day}: 1 envelopes, ")
    assert {path.stat().st_mode & 0o077 for path in [Path(lake_url), *Path(lake_url).rglob("*")]} == {0}
