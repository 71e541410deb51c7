"""Drill of docs/backup.md, "Changing keys and passwords", for pseudonyms: days before and after the change cannot be
joined.

The key of pseudonyms comes from the first field key and the period, so it changes with either.
"""

import secrets
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.conf import LazySettings
from django.utils import timezone

from registrations.keys.keyring import keyring
from spark_reports.export.days import export_day
from spark_reports.export.pseudonyms import Subject
from spark_reports.jobs.tables import CROWD
from spark_reports.lake import Lake
from spark_reports.nights.closing import last_closed_day
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = b"o" * 32, b"n" * 32
RECIPIENTS = [secrets.token_bytes(64) for _ in range(CROWD)]  # a smaller crowd has no pseudonyms


@pytest.fixture(autouse=True)
def forget_keys() -> Iterator[None]:
    yield
    keyring.cache_clear()


def be(settings: LazySettings, *keys: bytes) -> None:
    settings.FIELD_ENCRYPTION_KEYS = list(keys)
    keyring.cache_clear()


def notify_on(day: date) -> None:
    at = datetime.combine(day, time(), UTC)
    for recipient in RECIPIENTS:
        factories.make_notification(request=factories.make_answered_request(at=at), at=at, public_key_hash=recipient)


def export(day: date, lake: Path, **options: Any) -> tuple[str, frozenset[int]]:
    """Export a day. Return the id of the key of its pseudonyms, and the pseudonyms of the recipients."""
    manifest = export_day(day, Lake(str(lake)), now=timezone.now(), on_rows=lambda _table, _rows: None, **options)
    [file] = manifest.tables["actors"]
    rows = pq.read_table(f"{lake}/{file.path}", partitioning=None).to_pylist()
    return manifest.key_id, frozenset(row["actor"] for row in rows if row["role"] == Subject.RECIPIENT)


@pytest.fixture
def days() -> tuple[date, date]:
    """Return the last two closed days. They are of one period of a year, unless the later one is its first day."""
    day = last_closed_day(timezone.now())
    return day - timedelta(days=1), day


def test_a_new_first_field_key_makes_new_pseudonyms_and_old_days_stay_as_they_are(
    settings: LazySettings, tmp_path: Path, days: tuple[date, date]
) -> None:
    settings.REPORTS_PSEUDONYM_PERIOD = "year"
    first, second = days
    for day in days:
        notify_on(day)
    be(settings, OLD)
    before = export(first, tmp_path)
    be(settings, NEW, OLD)
    after = export(second, tmp_path)

    assert before[0] != after[0]
    assert not before[1] & after[1]
    assert export(first, tmp_path) == before  # the day is there already
    # a repeated export has the pseudonyms of the days after the change
    assert not export(first, tmp_path, replace=True)[1] & before[1]


def test_a_key_that_is_only_added_changes_no_pseudonym(
    settings: LazySettings, tmp_path: Path, days: tuple[date, date]
) -> None:
    notify_on(days[0])
    be(settings, OLD)
    before = export(days[0], tmp_path)
    be(settings, OLD, NEW)
    assert export(days[0], tmp_path, replace=True) == before


def test_a_shorter_period_changes_the_key_too(settings: LazySettings, tmp_path: Path, days: tuple[date, date]) -> None:
    notify_on(days[0])
    settings.REPORTS_PSEUDONYM_PERIOD = "month"
    before = export(days[0], tmp_path)
    settings.REPORTS_PSEUDONYM_PERIOD = "day"
    after = export(days[0], tmp_path, replace=True)
    assert before[0] != after[0]
    assert before[1] != after[1]
