"""Tests of the guard against mass expiry: which runs may expire rows, and which wait for an operator."""

from datetime import UTC, datetime, timedelta

import pytest

from kit.expiry.models import ALLOWED, FEW, allow, may_end, waiting

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 6, 1, tzinfo=UTC)
NAMES = ("registrations", "devices")


@pytest.mark.parametrize(
    ("count", "total", "may"),
    [(0, 0, True), (FEW, FEW, True), (FEW + 1, FEW + 1, False), (100, 1000, True), (101, 1000, False)],
)
def test_a_tenth_of_the_rows_may_expire_and_always_a_few(count: int, total: int, may: bool) -> None:
    assert may_end("registrations", count, total, now=NOW) is may
    found = waiting("registrations")
    assert (found and (found.count, found.total)) == (None if may else (count, total))


def test_a_permission_is_valid_for_one_name_and_for_a_day() -> None:
    assert not allow("registrations", now=NOW)
    may_end("registrations", 50, 100, now=NOW)
    may_end("devices", 50, 100, now=NOW)
    assert allow("registrations", now=NOW + timedelta(hours=3))
    assert [bool(waiting(name)) for name in NAMES] == [False, True]

    still, over = NOW + ALLOWED + timedelta(hours=2), NOW + ALLOWED + timedelta(hours=4)
    assert may_end("registrations", 40, 90, now=still)
    assert not may_end("devices", 40, 90, now=still)
    assert not may_end("registrations", 30, 80, now=over)
    found = [waiting(name) for name in NAMES]
    assert [each and (each.count, each.found_at) for each in found] == [(30, NOW), (40, NOW)]


def test_a_request_for_permission_is_removed_when_the_clock_is_right_again() -> None:
    may_end("registrations", 50, 100, now=NOW + timedelta(days=180))
    assert may_end("registrations", 0, 100, now=NOW)
    assert waiting("registrations") is None
