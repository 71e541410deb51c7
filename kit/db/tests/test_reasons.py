"""What an operator is told of an error of the database, and what not."""

import psycopg
import pytest
from django.db import DataError, OperationalError, ProgrammingError

from kit.db.reasons import AWAY, REASONS, UNFIT, reason, words


def error_of(code: str, kind: type[Exception] = OperationalError) -> Exception:
    error = kind("quotes a row")
    error.__cause__ = psycopg.errors.lookup(code)("quotes a row")
    return error


@pytest.mark.parametrize("code", REASONS)
def test_each_reason_is_one_line_for_a_code_of_postgresql(code: str) -> None:
    assert reason(error_of(code)) == words(error_of(code)) == REASONS[code]
    assert reason(psycopg.errors.lookup(code)("quotes a row")) == REASONS[code]
    assert "\n" not in REASONS[code]


def test_codes_that_make_a_database_unfit_have_a_reason() -> None:
    assert REASONS.keys() > UNFIT
    assert reason(error_of("42P01", ProgrammingError)) == "a table is missing: run `manage.py migrate`"


def test_another_code_is_told_without_the_text() -> None:
    assert (reason(error_of("22P05", DataError)), words(error_of("22P05", DataError))) == ("PostgreSQL says 22P05", "")


def test_a_connection_that_cannot_be_made_is_told_in_one_line() -> None:
    error = OperationalError("connection failed:\n  Is the server running?")
    assert reason(error) == AWAY
    assert words(error) == "PostgreSQL cannot be reached: connection failed: Is the server running?"
