"""Tests of the reasons that operators read about database errors, and of the classes of these errors."""

import re

import psycopg
import pytest
from django import db
from django.db import DataError, OperationalError, ProgrammingError

from kit.db.reasons import (
    COLLISIONS,
    LOCK_TIMEOUT,
    REASONS,
    UNAVAILABLE,
    UNFIT,
    is_closed,
    is_conflict,
    is_unavailable,
    reason,
    words,
)


def error_of(code: str, kind: type[Exception] = OperationalError) -> Exception:
    error = kind("quotes a row")
    error.__cause__ = psycopg.errors.lookup(code)("quotes a row")
    return error


@pytest.mark.parametrize("code", REASONS)
def test_each_reason_is_one_line_for_a_code_of_postgresql(code: str) -> None:
    assert reason(error_of(code)) == words(error_of(code)) == REASONS[code]
    assert reason(psycopg.errors.lookup(code)("quotes a row")) == REASONS[code]
    assert "\n" not in REASONS[code]


def test_another_code_is_named_without_the_text_and_a_failed_connection_in_one_line() -> None:
    assert REASONS.keys() > UNFIT
    assert reason(error_of("42P01", ProgrammingError)) == "a table is missing: run `manage.py migrate`"
    other = error_of("22P05", DataError)
    assert (reason(other), words(other)) == ("PostgreSQL reports 22P05", "")


def test_the_reason_for_a_failed_connection_is_one_line() -> None:
    error = OperationalError("connection failed:\n  Is the server running?")
    assert reason(error) == UNAVAILABLE
    assert words(error) == "PostgreSQL cannot be reached: connection failed: Is the server running?"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('password authentication failed for user "pushserver"', "28P01"),
        ("sorry, too many clients already", "53300"),
        ("remaining connection slots are reserved for roles with the SUPERUSER attribute", "53300"),
    ],
)
def test_a_connection_that_postgresql_refuses_has_the_reason_of_the_code_that_libpq_drops(text: str, code: str) -> None:
    refused = OperationalError(f'connection failed: connection to server on socket "x" failed: FATAL:  {text}')
    assert reason(refused) == words(refused) == REASONS[code]


def django_error(code: str) -> Exception:
    """Return the error as Django raises it, which follows the class of psycopg."""
    kind = psycopg.errors.lookup(code)
    name = next(base.__name__ for base in kind.__mro__ if base.__module__ == "psycopg" and hasattr(db, base.__name__))
    return error_of(code, getattr(db, name))


@pytest.mark.parametrize(
    ("codes", "away", "conflict"),
    [
        ("08000 08001 08003 08006 53000 53100 53200 53300 57014 57P01 57P02 57P03 57P05 58000 58030", True, False),
        ("25006 25P03", True, False),  # a standby; a session that was ended
        ("55P03", False, False),  # a lock timeout: the item that waited is left for later
        ("42P01 42703 42501", True, False),  # not migrated yet
        ("23505 40001 40P01", False, True),
        ("21000 22001 22003 22021 22P02 22P05 23000 23502 23503 23514 23P01 42601 54000 XX000 XX001", False, False),
    ],
)
def test_errors_are_classified_by_their_code(codes: str, *, away: bool, conflict: bool) -> None:
    for code in codes.split():
        assert (code, is_unavailable(django_error(code)), is_conflict(django_error(code))) == (code, away, conflict)


# The classes of errors that concern the server, a session or a lock, and not the stored values.
UNAVAILABLE_CLASSES = {"08", "27", "28", "2F", "38", "39", "3B", "40", "53", "55", "57", "58", "F0", "HV"}


def test_each_code_of_psycopg_is_unavailable_by_its_class_except_for_named_codes() -> None:
    codes = [code for code in psycopg.errors._sqlcodes if re.fullmatch("[0-9A-Z]{5}", code)]
    assert len(codes) > 200
    for code in codes:
        is_named = code in UNFIT | {"25006", "25P03"}
        expected = is_named or (code[:2] in UNAVAILABLE_CLASSES and code not in COLLISIONS | {LOCK_TIMEOUT})
        assert (code, is_unavailable(django_error(code))) == (code, expected)


def test_an_error_that_does_not_come_from_the_database_has_no_class() -> None:
    for error in (ValueError(), DataError(), db.IntegrityError()):
        assert [test(error) for test in (is_unavailable, is_conflict, is_closed)] == [False] * 3
    assert is_unavailable(OperationalError())
    assert is_unavailable(db.InterfaceError())
