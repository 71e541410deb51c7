import hashlib
import hmac
import io
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.conf import LazySettings
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from embedded import seeding
from kit.db.timeouts import REPORTS
from notifications import retention
from notifications.gateways.gorush.rules.file import seed_rules
from notifications.models import RefusedRequest
from notifications.rules.policy import Verdict, Wish
from notifications.rules.reports import Decided, pack
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.models import RegistrationEvent
from spark_reports.export import copying, sessions
from spark_reports.export.copying import is_topic, is_word
from spark_reports.export.days import ExportError, closed_days, export_day
from spark_reports.export.pseudonyms import Period, PseudonymKey, Subject, key_for
from spark_reports.export.queries import QUERIES, Hours
from spark_reports.jobs.tables import ACTORS, CROWD, EVENT_TABLES, HEAVIEST, Column, Table
from spark_reports.lake import Kind, Lake, LakeError, Manifest, arrow_schema, folder_of
from spark_reports.models import PseudonymSeed
from spark_reports.nights.closing import last_closed_day
from spark_reports.nights.seeds import destroy_seeds
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
from waku_bridge.identity import canary_identities
from xmpp_bridge.console.operator_actions import command as xmpp_command

Kinds = RegistrationEvent.Kind
SECRET = bytes(range(32))


@pytest.fixture
def export(lake_url: str, day: date) -> Callable[..., Manifest]:
    def run(**options: Any) -> Manifest:
        return export_day(day, Lake(lake_url), now=timezone.now(), on_rows=lambda _table, _rows: None, **options)

    return run


def rows_of(lake_url: str, manifest: Manifest, table: str) -> list[dict[str, Any]]:
    [file] = manifest.tables[table]
    return pq.read_table(f"{lake_url}/{file.path}", partitioning=None).to_pylist()


# Days -----------------------------------------------------------------------------------------------------------------
def test_a_day_is_closed_ten_minutes_after_its_midnight() -> None:
    midnight_utc = datetime(2026, 11, 21, tzinfo=UTC)
    assert last_closed_day(midnight_utc + timedelta(minutes=9)) == date(2026, 11, 19)
    assert last_closed_day(midnight_utc + timedelta(minutes=10)) == date(2026, 11, 20)


def test_days_that_are_not_over_are_refused() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    with pytest.raises(ExportError, match="2026-11-21 is not over"):
        closed_days(date(2026, 11, 20), date(2026, 11, 21), now=now)


# Pseudonyms -----------------------------------------------------------------------------------------------------------
def test_keys_change_with_period_and_role_and_so_does_the_key_id() -> None:
    november, december = (key_for(date(2026, month, 1), SECRET, SECRET, Period.MONTH) for month in (11, 12))
    values = {(key.outer, key.prefix(subject)) for key in (november, december) for subject in Subject}

    assert len(values) == 4
    assert november.id == key_for(date(2026, 11, 30), SECRET, SECRET, Period.MONTH).id != december.id
    assert hashlib.sha256(SECRET).hexdigest()[:8] not in november.id


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        ("im.status.ethereum", True),
        ("", True),
        ("im.status.ethereum.pr", True),
        ("deadbeefdeadbeefdeadbeef.app", False),
        ("3f2504e0-4f89-11d3.app", False),
        ("a token with spaces", False),
        ("nodots", False),
        ("x" * 200 + ".y", False),
    ],
)
def test_only_a_text_that_looks_like_an_app_topic_is_exported(text: str, is_fine: bool) -> None:
    assert is_topic(text) is is_fine


def test_every_code_of_the_error_table_is_exported() -> None:
    codes = {rule.code for rule in seed_rules()}
    assert len(codes) > 20
    assert [code for code in codes if not is_word(code)] == []


# Exporting ------------------------------------------------------------------------------------------------------------
pytestmark = pytest.mark.django_db(transaction=True)


def test_files_have_the_documented_columns(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    History(seed=1).add_day(day, events=20, requests=20)
    manifest = export()

    for table in EVENT_TABLES:
        [file] = manifest.tables[table.name]
        written = pq.read_schema(f"{lake_url}/{file.path}")
        assert written.equals(arrow_schema(table)), table.name
        assert_documented(table)


def assert_documented(table: Table) -> None:
    text = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
    section = text.partition(f"#### `{table.name}`")[2].partition("\n#### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [_documented(column) for column in table.columns], table.name


def _documented(column: Column) -> str:
    kind = f"{column.type}, may be null" if column.is_nullable else str(column.type)
    return f"| `{column.name}` | {kind} | {column.meaning} |"


def test_nothing_in_the_lake_identifies_anybody(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    history = History(seed=2)
    secret_topic = "deadbeef" * 4 + ".token"
    make_channel((1, secret_topic))
    make_event(app_topic=secret_topic, token_type=1, at=midnight(day))
    make_envelope(at=midnight(day), reason="f00dfeed" * 4)
    history.add_day(day)
    manifest = export()

    written = b"".join(path.read_bytes() for path in Path(lake_url).rglob("*") if path.is_file())
    columns = [
        pq.read_table(f"{lake_url}/{f.path}", partitioning=None) for files in manifest.tables.values() for f in files
    ]
    written += repr([rows.to_pylist() for rows in columns]).encode()  # values that compression hides
    for secret in {*history.secrets, b"deadbeef" * 4, b"f00dfeed" * 4}:
        for form in (
            secret,
            secret.hex().encode(),
            secret.hex().upper().encode(),
            str(int.from_bytes(secret[:8], signed=True)).encode(),
        ):
            assert form not in written


def test_a_pseudonym_is_64_bits_of_an_hmac_under_the_key_of_its_period(
    lake_url: str, day: date, export: Callable[..., Manifest], settings: LazySettings
) -> None:
    senders = [keyring().digest(Purpose.SENDER, b"\x03" + secrets.token_bytes(32)) for _ in range(CROWD)]
    recipients = [secrets.token_bytes(64) for _ in range(CROWD)]
    for sender, recipient in zip(senders, recipients, strict=True):
        request = make_answered_request(at=midnight(day), sender_digest=sender)
        make_notification(request=request, at=midnight(day), public_key_hash=recipient)
    manifest = export()

    secret, seed = settings.FIELD_ENCRYPTION_KEYS[0], bytes(PseudonymSeed.objects.get().seed)
    key = hmac.digest(secret, f"report pseudonyms {day:%Y-%m}".encode() + b"\0" + seed, "sha256")
    rows = rows_of(lake_url, manifest, "actors")
    for role, values in (("sender", senders), ("recipient", recipients)):
        expected = {hmac.digest(key, role.encode() + b"\0" + value, "sha256")[:8] for value in values}
        assert {row["actor"] for row in rows if row["role"] == role} == {
            int.from_bytes(pseudonym, signed=True) for pseudonym in expected
        }
    assert manifest.key_id == key_for(day, secret, seed, Period.MONTH).id


def test_every_session_has_the_timeouts_of_reports(
    monkeypatch: pytest.MonkeyPatch, export: Callable[..., Manifest]
) -> None:
    """The timeout of a worker's statement is 20 s, and reading a history takes longer."""
    seen: list[tuple[str, float | None]] = []

    def copy(session: Any, *args: Any) -> Any:
        seen.append((sessions._value(session, "SHOW statement_timeout"), session.timeout_seconds))
        return copying.copy_table(session, *args)

    monkeypatch.setattr(sessions, "copy_table", copy)
    export()
    assert len(seen) >= len(EVENT_TABLES)  # a table of which PostgreSQL expects many rows is read in parts
    assert set(seen) == {("4h", REPORTS.answer_seconds)}


def test_the_answer_of_a_request_is_measured_once(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    answered = {"at": midnight(day), "answered_at": midnight(day) + timedelta(seconds=1)}
    request = make_answered_request(**answered)
    for position in range(3):
        make_notification(request=request, position=position, at=midnight(day))

    measured = [row["answered_us"] for row in rows_of(lake_url, export(), "notification_times")]
    assert measured == [1_000_000]


def test_a_notification_decided_at_once_is_exported_from_its_request(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
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

    columns = ("platform", "bridge", "state", "report")
    manifest = export()
    rows = [tuple(row[c] for c in columns) for row in rows_of(lake_url, manifest, "notifications")]
    assert sorted(row for row in rows if row[2] != "delivered") == [
        ("none", "waku", "duplicate", "success"),
        ("none", "waku", "refused", "wrong_token"),
        ("none", "waku", "suppressed", "success"),
    ]
    assert len(rows) == 4
    columns = ("role", "rank", "actors", "notifications", "refused")
    assert sorted(tuple(row[c] for c in columns) for row in rows_of(lake_url, manifest, "actors")) == [
        ("recipient", 1, 1, 1, 0),
        ("sender", 1, 1, 4, 1),
    ]
    times = [(row["delivered_us"], row["answered_us"]) for row in rows_of(lake_url, manifest, "notification_times")]
    assert sorted(times, key=repr) == [(None, 1_000_000), (None, None)]


def test_a_night_that_was_missed_ten_days_ago_has_all_requests_that_notified_nobody(
    lake_url: str, day: date, settings: LazySettings
) -> None:
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
        manifest = Lake(lake_url).manifest(Kind.FACTS, each)
        assert manifest is not None
        assert manifest.is_complete
        rows = [(row["bridge"], row["state"], row["report"]) for row in rows_of(lake_url, manifest, "notifications")]
        assert Counter(rows) == {("waku", "refused", "not_registered"): 4, ("waku", "refused", "wrong_token"): 2}


def test_a_reply_that_was_published_again_has_no_duration(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    for repeats in (0, 1):
        envelope = make_envelope(at=midnight(day))
        facts = {"state": "confirmed", "published_at": midnight(day) + timedelta(seconds=7 + 30 * repeats)}
        made_at = midnight(day) + timedelta(seconds=2)
        make_reply(envelope_hash=envelope.hash, at=made_at, repeat_count=repeats, **facts)

    columns = ("state", "repeats", "published_us", "since_received_us")
    rows = [tuple(row[c] for c in columns) for row in rows_of(lake_url, export(), "replies")]
    assert sorted(rows) == [("confirmed", 0, 5_000_000, 7_000_000), ("confirmed", 1, None, None)]


def test_an_event_carries_the_state_before_it(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    pseudonym_, noon = uuid4(), midnight(day) + timedelta(hours=12)
    long_ago = midnight(day) - timedelta(days=9)
    make_channel((1, "im.status.app"))
    ios, android = (
        {"token_type": 1, "app_topic": "im.status.app"},
        {"token_type": 2, "app_topic": "ignored.for.firebase"},
    )
    for kind, at, place in [
        (Kinds.REGISTERED, long_ago, ios),
        (Kinds.REFRESHED, long_ago + timedelta(days=2), ios),
        (Kinds.TOKEN_CHANGED, noon, android),
        (Kinds.TOKEN_DIED, noon + timedelta(hours=1), android),
        (Kinds.REFRESHED, noon + timedelta(hours=2), android),
    ]:
        make_event(pseudonym=pseudonym_, kind=kind, at=at, **place)
    manifest = export()

    columns = (
        "kind",
        "is_first",
        "was_active",
        "is_active",
        "previous_platform",
        "platform",
    )
    assert [tuple(row[c] for c in columns) for row in rows_of(lake_url, manifest, "registration_events")] == [
        ("token_changed", False, True, True, "ios", "android"),
        ("token_died", False, True, False, "android", "android"),
        ("refreshed", False, False, True, "android", "android"),
    ]
    assert sorted(tuple(row.values()) for row in rows_of(lake_url, manifest, "active_tokens")) == [
        ("android", "", "waku", 0, 1),
        ("ios", "im.status.app", "waku", 1, 0),
    ]


def test_the_history_of_an_xmpp_device_is_exported_like_that_of_an_installation(
    lake_url: str, day: date, export: Callable[..., Manifest], settings: LazySettings
) -> None:
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
    manifest = export()

    columns = ("kind", "app_topic", "is_first", "was_active", "is_active", "bridge")
    events = sorted(rows_of(lake_url, manifest, "registration_events"), key=lambda row: row["at"])
    assert [row["at"].hour for row in events] == [1, 2, 4, 5], "a refresh of the same day says nothing"
    assert [tuple(row[c] for c in columns) for row in events] == [
        ("registered", "org.example.chat", True, False, True, "xmpp"),
        ("registered", "org.example.chat", True, False, True, "xmpp"),
        ("token_changed", "org.example.chat", False, True, True, "xmpp"),
        ("unregistered", "org.example.chat", False, True, False, "xmpp"),
    ]
    assert [tuple(row.values()) for row in rows_of(lake_url, manifest, "active_tokens")] == [
        ("ios", "org.example.chat", "xmpp", 0, 1)
    ]


def test_pushes_of_xmpp_have_recipients_of_their_own_and_only_the_wait_for_the_first_push(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    at = midnight(day)
    ended = {"state": "delivered", "report": "success", "finished_at": at + timedelta(seconds=6)}
    for device_id in ("one", "other", "other"):
        request = make_answered_request(bridge="xmpp", at=at, answered_at=at, reply_due_at=at)
        push = {"public_key_hash": b"", "installation_id": device_id, "grade": "normal"}
        notification = make_notification(request=request, at=at, **push, **ended)
        late = {"started_at": at + timedelta(seconds=5), "latency_ms": 7, "waited_ms": 9, "outcome": "delivered"}
        make_attempt(notification, **late)
    manifest = export()

    for table in ("notifications", "attempts"):
        assert [row["bridge"] for row in rows_of(lake_url, manifest, table)] == ["xmpp"] * 3
    rows = rows_of(lake_url, manifest, "actors")
    assert sorted(row["notifications"] for row in rows if row["role"] == "recipient") == [1, 2]
    assert manifest.rows["notification_times"] == 0
    assert {(row["latency_us"], row["queued_us"]) for row in rows_of(lake_url, manifest, "attempts")} == {(7000, 9000)}


def test_app_topics_that_clients_make_up_do_not_multiply_the_rows(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    make_channel((1, "im.status.app"))
    for topic in ("im.status.app", *(f"im.made.up-{n}" for n in range(5))):
        make_event(token_type=1, app_topic=topic, at=midnight(day))
    manifest = export()

    for table, expected in (("registration_events", 6), ("active_tokens", 2)):
        topics = [row["app_topic"] for row in rows_of(lake_url, manifest, table)]
        assert (len(topics), set(topics)) == (expected, {"im.status.app", "(other)"}), table


def test_an_outcome_that_is_not_known_yet_is_null_or_open(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    notification = make_notification(at=midnight(day))
    make_attempt(notification, started_at=midnight(day) + timedelta(milliseconds=40))
    manifest = export()

    [row] = rows_of(lake_url, manifest, "attempts")
    assert (row["outcome"], row["latency_us"], row["queued_us"], row["code"]) == ("open", None, None, "")
    [row] = rows_of(lake_url, manifest, "notifications")
    assert row["platform"] == "none"
    assert manifest.rows["notification_times"] == 0


def test_texts_with_quotes_commas_and_line_breaks_survive(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    signature = 'a "quoted", <n>\nbroken ‽ line'
    make_unknown_error(signature=signature, first_seen_at=midnight(day))
    manifest = export()

    assert [row["signature"] for row in rows_of(lake_url, manifest, "unknown_errors")] == [signature]


def test_counters_are_not_exported_for_a_day_that_is_exported_late(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    make_unknown_error(first_seen_at=midnight(day) - timedelta(days=9))
    before = day - timedelta(days=1)
    late = export_day(before, Lake(lake_url), now=timezone.now(), on_rows=lambda _table, _rows: None)

    assert (late.rows["unknown_errors"], export().rows["unknown_errors"]) == (0, 1)


def test_only_the_day_itself_is_exported(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    for at in (midnight(day) - timedelta(microseconds=1), midnight(day), midnight(day) + timedelta(days=1)):
        make_envelope(at=at)

    assert export().rows["envelopes"] == 1


@pytest.fixture
def former_key(settings: LazySettings) -> Iterator[None]:
    """Change the server's key, with the former one still among the known keys."""
    canary_identities.cache_clear()
    settings.OTHER_SERVER_PRIVATE_KEYS = [secrets.token_bytes(32)]
    yield
    canary_identities.cache_clear()


@pytest.mark.parametrize("number", [0, 1])
def test_nothing_of_the_canary_is_exported_for_any_key_of_the_server(
    day: date, export: Callable[..., Manifest], former_key: None, number: int
) -> None:
    at, key_hash = midnight(day), canary_identities()[number].key_hash
    mark = make_canary_envelope(at=at)
    run = make_canary_run(at=at, pseudonym=uuid4())
    make_envelope(hash=mark.hash, at=at)
    make_reply(envelope_hash=mark.hash, at=at)
    notification = make_notification(request=make_request(source_key=mark.hash, at=at), public_key_hash=key_hash, at=at)
    make_attempt(notification, started_at=at)
    make_event(pseudonym=run.pseudonym, at=at)

    assert set(export().rows.values()) == {0}


def test_nothing_of_the_canary_of_xmpp_is_exported(day: date, export: Callable[..., Manifest]) -> None:
    at, device = midnight(day), uuid4()
    run = make_xmpp_canary_run(at=at, pseudonym=uuid4(), device=device)
    notification = make_notification(
        request=make_request(bridge="xmpp", at=at),
        public_key_hash=b"",
        installation_id=str(device),
        grade="normal",
        at=at,
    )
    make_attempt(notification, started_at=at)
    make_event(pseudonym=run.pseudonym, at=at)

    assert set(export().rows.values()) == {0}


def test_a_day_without_events_is_exported(day: date, export: Callable[..., Manifest]) -> None:
    assert set(export().rows.values()) == {0}


def test_exporting_again_changes_nothing_without_replace(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    make_envelope(at=midnight(day))
    first = export()
    make_envelope(at=midnight(day))

    assert export() == first
    assert export(replace=True).rows["envelopes"] == 2
    assert len(Lake(lake_url).parquet_files(folder_of(Kind.FACTS, EVENT_TABLES[0], day))) == 1


def test_a_broken_export_leaves_the_day_as_it_was(
    lake_url: str, day: date, export: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = export()
    monkeypatch.setitem(QUERIES, "replies", lambda _day: "SELECT 1/0")
    with pytest.raises(Exception, match="division by zero"):
        export(replace=True)

    lake = Lake(lake_url)
    assert lake.manifest(Kind.FACTS, day) == first
    lake.verify(Kind.FACTS, day, first)
    assert len(files_in(lake_url)) == len(EVENT_TABLES) + 1


def test_the_next_export_removes_the_files_of_a_killed_one(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    export()
    for name in ("dead.parquet", ".dead.parquet.incoming"):
        with Lake(lake_url).writing(f"{folder_of(Kind.FACTS, EVENT_TABLES[0], day)}/{name}") as out:
            out.write(b"half a file")
    export(replace=True)

    assert len(files_in(lake_url)) == len(EVENT_TABLES) + 1


# Parts ----------------------------------------------------------------------------------------------------------------
def test_the_parts_of_a_day_cover_the_whole_day() -> None:
    hours = Hours(date(2026, 11, 20))
    for number in (1, 2, 5, 24, 100):
        parts = hours.parts(number)
        assert len(parts) == min(number, 24)
        assert (parts[0].start_at, parts[-1].end_at) == (hours.start_at, hours.end_at)
        assert all(one.end_at == other.start_at for one, other in pairwise(parts))


@pytest.fixture
def whole(
    lake_url: str, day: date, export: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    """Export a day, and have later exports read it in parts of ten rows. Return its rows by table."""
    History(seed=4).add_day(day, events=60, requests=60)
    manifest = export()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    monkeypatch.setattr(sessions, "ROWS_PER_PART", 10)
    return all_in_order(lake_url, manifest)


def test_large_tables_are_read_in_parts_into_files_of_bounded_size(
    lake_url: str,
    day: date,
    export: Callable[..., Manifest],
    whole: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row arrives once, for any division into parts."""
    monkeypatch.setattr(sessions, "SESSIONS", 3)
    monkeypatch.setattr(copying, "CHUNK_SIZE", 200)
    monkeypatch.setattr(copying, "FULL_FILE", 3000)
    monkeypatch.setattr(copying, "SMALL_FILE", 0)
    manifest = export(replace=True)

    assert len(manifest.tables["attempts"]) > 6 > len(manifest.tables["registration_events"]) > 1
    assert all_in_order(lake_url, manifest) == whole
    assert (
        max(file.size_bytes for files in manifest.tables.values() for file in files) < 3000 + 9000
    )  # data, and the footer
    Lake(lake_url).verify(Kind.FACTS, day, manifest)


def test_the_small_files_of_a_day_are_merged_into_one(
    lake_url: str, day: date, export: Callable[..., Manifest], whole: dict[str, list[str]]
) -> None:
    manifest = export(replace=True)

    assert all_in_order(lake_url, manifest) == whole
    assert {len(files) for files in manifest.tables.values()} == {1}
    assert len(list(Path(lake_url).glob(f"facts/*/day={day}/*"))) == len(EVENT_TABLES)
    Lake(lake_url).verify(Kind.FACTS, day, manifest)


def all_in_order(lake_url: str, manifest: Manifest) -> dict[str, list[str]]:
    """Return the rows of each table as text, sorted."""
    rows = {}
    for name, files in manifest.tables.items():
        parts = [pq.read_table(f"{lake_url}/{file.path}", partitioning=None) for file in files]
        rows[name] = sorted(map(str, pa.concat_tables(parts).to_pylist()))
    return rows


def test_all_sessions_of_an_export_see_one_moment(
    day: date, export: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are committed after the beginning of the export are in none of its tables."""
    make_envelope(at=midnight(day))
    begun = sessions._parts

    def parts(session: Any, of_day: date) -> Any:
        found = begun(session, of_day)
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(add_envelope, midnight(day)).result()
        return found

    monkeypatch.setattr(sessions, "_parts", parts)
    assert export().rows["envelopes"] == 1
    assert export(replace=True).rows["envelopes"] == 2


def add_envelope(at: datetime) -> None:
    with closing(connection):
        make_envelope(at=at)


def test_a_part_that_fails_ends_the_others_and_leaves_no_file(
    lake_url: str, day: date, export: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_envelope(at=midnight(day))
    monkeypatch.setattr(sessions, "SESSIONS", 3)
    monkeypatch.setitem(QUERIES, "replies", lambda _hours: "SELECT 1 / (random() * 0)::int FROM pg_sleep(0.5)")
    monkeypatch.setitem(QUERIES, "attempts", lambda _hours: "SELECT pg_sleep(60)")
    started = time.monotonic()
    with pytest.raises(psycopg.errors.DivisionByZero):
        export()

    assert time.monotonic() - started < 20
    assert files_in(lake_url) == []


# Times and durations --------------------------------------------------------------------------------------------------
def test_durations_are_whole_microseconds(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    """A float would turn 1.001 s into 1000.999… ms. Every whole number of milliseconds stays exact."""
    durations = [*range(0, 60_000, 7), 1001, 86_399_999]
    for ms in durations:
        at = midnight(day)
        make_envelope(at=at, processed_at=at + timedelta(milliseconds=ms, microseconds=ms % 3))

    found = sorted(row["processed_us"] for row in rows_of(lake_url, export(), "envelopes"))
    assert found == sorted(ms * 1000 + ms % 3 for ms in durations)


def test_the_time_of_a_push_does_not_lead_to_its_pseudonym(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
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
    manifest = export()

    assert [table.name for table in EVENT_TABLES if {"actor", *Subject} & {*table.column_names}] == ["actors"]
    assert not {"at", "platform", "app_topic", "bridge", "type"} & {*ACTORS.column_names}
    for table in EVENT_TABLES:
        rows = rows_of(lake_url, manifest, table.name)
        times = [value for row in rows for value in row.values() if isinstance(value, datetime)]
        assert {(at.second, at.microsecond) for at in times} <= {(0, 0)}, table.name


def test_the_load_of_a_user_does_not_lead_to_the_pseudonym(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    """Each pseudonym belongs to one of five actors, and its order among the five is that of the pseudonyms."""
    History(seed=3).add_day(day)
    assert_in_crowds(lake_url, export(), day)


@pytest.fixture
def month() -> Iterator[None]:
    """Fill the database with a month of traffic. Its partitions are dropped after the test."""
    seeding.fill(1000, 2000, lambda _: None)
    yield
    for table in seeding.DAYS:
        list(table.drop_days(timezone.now() - timedelta(days=2)))


def test_the_load_of_a_user_does_not_lead_to_the_pseudonym_after_a_month_of_traffic(
    lake_url: str, day: date, export: Callable[..., Manifest], month: None
) -> None:
    assert_in_crowds(lake_url, export(), day)


RECIPIENTS = """SELECT CASE public_key_hash WHEN '' THEN convert_to(installation_id, 'UTF8') ELSE public_key_hash END
    FROM notifications_notification WHERE created_at >= %s AND created_at < %s"""


def assert_in_crowds(lake_url: str, manifest: Manifest, day: date) -> None:
    """Compare the five pseudonyms of each five ranks with those of the five recipients in the database."""
    key = key_for(day, django_settings.FIELD_ENCRYPTION_KEYS[0], bytes(PseudonymSeed.objects.get().seed), Period.MONTH)
    rows = rows_of(lake_url, manifest, "actors")
    pushes = Counter(recipients_of(day))
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


def recipients_of(day: date) -> list[bytes]:
    with connection.cursor() as cursor:
        cursor.execute(RECIPIENTS, [midnight(day), midnight(day) + timedelta(days=1)])
        return [bytes(value) for (value,) in cursor.fetchall()]


def pseudonym_of(value: bytes, key: PseudonymKey) -> int:
    inner = hashlib.sha256(key.prefix(Subject.RECIPIENT) + value).digest()
    return int.from_bytes(hashlib.sha256(key.outer + inner).digest()[:8], signed=True)


@pytest.mark.parametrize(("people", "named"), [(4, 0), (5, 5), (9, 5), (10, 10), (30, 20)])
def test_fewer_than_five_actors_have_no_pseudonym(
    lake_url: str, day: date, export: Callable[..., Manifest], people: int, named: int
) -> None:
    for number in range(people):
        make_notification(request=make_request(at=midnight(day)), at=midnight(day),
                                    public_key_hash=bytes([number]) * 64)  # fmt: skip
    rows = [row for row in rows_of(lake_url, export(), "actors") if row["role"] == "recipient"]

    assert sum(row["actor"] is not None for row in rows) == named
    assert sum(row["actors"] for row in rows) == people


# Seeds of pseudonyms --------------------------------------------------------------------------------------------------
def test_the_key_of_a_past_period_cannot_be_made_again(
    day: date, export: Callable[..., Manifest], settings: LazySettings
) -> None:
    """The server's secret does not suffice: the seed is destroyed once the period has no rows left to export."""
    first = export()
    kept_until = Period.MONTH.last_day(day) + timedelta(days=settings.NOTIFICATION_RETENTION_DAYS + 1)
    destroy_seeds(midnight(kept_until) + timedelta(hours=23))
    assert export(replace=True).key_id == first.key_id

    destroy_seeds(midnight(kept_until + timedelta(days=1)))
    assert not PseudonymSeed.objects.exists()
    assert export(replace=True).key_id != first.key_id


@pytest.mark.parametrize(
    ("period", "last"),
    [
        ("day", date(2026, 11, 20)),
        ("week", date(2026, 11, 22)),
        ("month", date(2026, 11, 30)),
        ("year", date(2026, 12, 31)),
    ],
)
def test_a_period_ends_with_its_last_day(period: str, last: date) -> None:
    assert Period(period).last_day(date(2026, 11, 20)) == last


@dataclass
class FullDisk(io.BytesIO):
    """A file that accepts some bytes and then reports a full disk, once the reader is as far ahead as it can be."""

    capacity: int
    read: list[bytes]

    def write(self, data: Any) -> int:
        if self.tell() >= self.capacity:
            while len(self.read) <= copying.CHUNKS_AHEAD:
                time.sleep(0.01)
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("capacity", [0, len("PAR1")])
def test_a_full_disk_ends_the_export_before_the_whole_table_is_read(
    lake_url: str, day: date, monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    chunks: list[bytes] = []

    def reading(session: Any, query: str) -> Iterator[bytes]:
        for chunk in read(session, query):
            if "FROM waku_bridge_inboundenvelope WHERE" in query:
                chunks.append(chunk)
            yield chunk

    read = copying._read
    monkeypatch.setattr(copying, "_read", reading)
    monkeypatch.setattr(copying, "CHUNK_SIZE", 1)
    lake = Lake(lake_url)
    disk = Disk(lake._files, lambda: FullDisk(capacity, chunks))
    lake._files = disk  # type: ignore[assignment]
    for _ in range(50):
        make_envelope(at=midnight(day))
    with pytest.raises(LakeError, match=r"The lake failed: facts/table=envelopes/.*: .*No space left"):
        export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)

    assert len(chunks) <= copying.CHUNKS_AHEAD + 3
    assert files_in(lake_url) == []


@dataclass
class Disk:
    """A file system whose new files of envelopes are made by ``opened``."""

    files: Any
    opened: Callable[[], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def open_output_stream(self, path: str) -> Any:
        if "table=envelopes" not in path:
            return self.files.open_output_stream(path)
        Path(path).touch()
        return self.opened()


def files_in(lake_url: str) -> list[Path]:
    return [path for path in Path(lake_url).rglob("*") if path.is_file()]


def test_a_day_that_retention_has_begun_to_remove_is_marked_and_never_replaced(
    lake_url: str, settings: LazySettings
) -> None:
    day = last_closed_day(timezone.now()) - timedelta(days=10)
    lake = Lake(lake_url)
    manifest = export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None)

    assert not manifest.is_complete
    with pytest.raises(ExportError, match="no longer in the database"):
        export_day(day, lake, now=timezone.now(), on_rows=lambda _table, _rows: None, replace=True)


def test_a_day_that_the_lake_does_not_keep_is_not_exported(lake_url: str) -> None:
    """Its reports, from the time when its rows existed, would be replaced by empty ones."""
    now = timezone.now()
    with pytest.raises(ExportError, match="older than EVENT_RETENTION_DAYS"):
        export_day(now.date() - timedelta(days=400), Lake(lake_url), now=now, on_rows=lambda _table, _rows: None)


def test_the_key_never_stands_in_a_statement_or_a_parameter(
    day: date, export: Callable[..., Manifest], settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# A broken lake --------------------------------------------------------------------------------------------------------
def broken(lake_url: str, day: date, damage: Callable[[Path], None]) -> str:
    lake = Lake(lake_url)
    manifest = lake.manifest(Kind.FACTS, day)
    assert manifest is not None
    damage(Path(lake_url) / manifest.tables["envelopes"][0].path)
    with pytest.raises(LakeError) as error:
        lake.verify(Kind.FACTS, day, manifest)
    return str(error.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is cut off"),
        (lambda path: path.write_bytes(path.read_bytes()[::-1]), "was altered"),
    ],
)
def test_broken_files_are_named_with_what_to_do(
    lake_url: str, day: date, export: Callable[..., Manifest], damage: Callable[[Path], None], words: str
) -> None:
    make_envelope(at=midnight(day))
    export()

    message = broken(lake_url, day, damage)
    assert words in message
    assert f"export_events --day {day} --replace" in message


@pytest.mark.parametrize("tables", [[], {"envelopes": 7}, {"envelopes": [7]}, {"envelopes": [{}]}, None])
def test_a_manifest_of_another_shape_is_named(
    lake_url: str, day: date, export: Callable[..., Manifest], tables: object
) -> None:
    export()
    path = Path(lake_url) / "manifests" / "facts" / f"{day}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tables": tables}))
    with pytest.raises(LakeError, match=f"is no manifest.*export_events --day {day} --replace"):
        export()


def test_a_file_of_garbage_is_named_with_what_to_do(lake_url: str, day: date, export: Callable[..., Manifest]) -> None:
    """The size and the digest of the file match the manifest, as if somebody had written both."""
    lake, manifest = Lake(lake_url), export()
    path = manifest.tables["envelopes"][0].path
    (Path(lake_url) / path).write_bytes(b"garbage")
    forged = replace(manifest, tables=dict(manifest.tables) | {"envelopes": [lake.describe(path, 0)]})
    with pytest.raises(LakeError, match=f"no readable Parquet file.*export_events --day {day} --replace"):
        lake.verify(Kind.FACTS, day, forged)


def test_the_lake_is_for_its_account_only(lake_url: str, day: date) -> None:
    make_envelope(at=midnight(day))
    call_command("export_events")

    modes = {path.stat().st_mode & 0o077 for path in [Path(lake_url), *Path(lake_url).rglob("*")]}
    assert modes == {0}


def cut_manifest(lake_url: str, day: date) -> None:
    path = Path(lake_url) / "manifests" / "facts" / f"{day}.json"
    path.write_bytes(path.read_bytes()[:50])


def test_a_manifest_cut_in_half_is_named_and_repaired_by_the_named_command(
    lake_url: str, day: date, export: Callable[..., Manifest]
) -> None:
    export()
    cut_manifest(lake_url, day)
    with pytest.raises(LakeError, match=f"is no manifest.*export_events --day {day} --replace"):
        export()

    mended = export(replace=True)
    assert Lake(lake_url).manifest(Kind.FACTS, day) == mended


def test_a_damaged_day_that_retention_has_begun_to_remove_is_not_replaced(lake_url: str) -> None:
    day, now = last_closed_day(timezone.now()) - timedelta(days=10), timezone.now()
    export_day(day, Lake(lake_url), now=now, on_rows=lambda _table, _rows: None)
    cut_manifest(lake_url, day)

    with pytest.raises(ExportError, match="no longer in the database"):
        export_day(day, Lake(lake_url), now=now, on_rows=lambda _table, _rows: None, replace=True)


def test_a_lake_that_cannot_be_opened_is_named(settings: LazySettings) -> None:
    settings.REPORTS_LAKE = "nonsense://bucket"
    with pytest.raises(CommandError, match="REPORTS_LAKE cannot be opened"):
        call_command("export_events")


def test_the_command_exports_a_range_and_prints_the_rows(
    lake_url: str, day: date, capsys: pytest.CaptureFixture[str]
) -> None:
    make_envelope(at=midnight(day))
    call_command("export_events", "--from", str(day - timedelta(days=1)))

    before, last = capsys.readouterr().out.splitlines()
    assert before.startswith(f"{day - timedelta(days=1)}: 0 envelopes, ")
    assert last.startswith(f"{day}: 1 envelopes, ")
