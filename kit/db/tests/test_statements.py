"""Statements of the message path: bound by the server, in binary, prepared, and failing as Django's own do."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DataError, IntegrityError, OperationalError, ProgrammingError, connection, transaction

from kit.db.statements import fetch, new_ids
from registrations.models import TopicKey
from tests.factories import make_request, make_topic_key
from tests.statements import statements

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "sql_type"),
    [
        (b"\x00\xff" * 3, "bytea"),
        (b"", "bytea"),
        ("text with % and ü", "text"),
        (2**31 - 1, "integer"),
        (-(2**63), "bigint"),
        (True, "boolean"),
        (1.5, "float8"),
        (AT, "timestamptz"),
        (timedelta(seconds=1.5), "interval"),
        (None, "bytea"),
        ([b"\x00", None, b"\xff"], "bytea[]"),
        ([], "bytea[]"),
        ([AT, None], "timestamptz[]"),
        ([1, 2, None], "bigint[]"),
        ([[1], [2]], "bigint[]"),
        (["a", None], "text[]"),
        ([None, None], "text[]"),
    ],
)
def test_values_come_back_as_they_went(value, sql_type):
    assert fetch(f"SELECT %s::{sql_type}", [value]) == [(value,)]


def test_parameters_are_bound_by_the_server():
    fetch(
        "INSERT INTO registrations_topickey (name, topic, key_encrypted, created_at) VALUES (%s, 1, %s, now())",
        ["n", b"\x00'\\"],
    )
    [(statement,)] = fetch("SELECT statement FROM pg_prepared_statements WHERE statement LIKE 'INSERT%%'")
    assert "VALUES ($1, 1, $2, now())" in statement
    assert bytes(TopicKey.objects.get().key_encrypted) == b"\x00'\\"


def test_a_statement_is_prepared_once_and_named_parameters_may_be_repeated():
    sql = "SELECT %(a)s::bigint + %(a)s::bigint, %(b)s::text, 'prepared once'"
    assert [fetch(sql, {"a": number, "b": "x"}) for number in range(3)] == [
        [(2 * n, "x", "prepared once")] for n in range(3)
    ]
    prepared = fetch("SELECT statement FROM pg_prepared_statements WHERE statement LIKE %s", ["%once'"])
    assert prepared == [("SELECT $1::bigint + $1::bigint, $2::text, 'prepared once'",)]


def test_statements_of_django_are_not_prepared():
    for _ in range(10):
        assert list(TopicKey.objects.filter(topic=4711)) == []
    assert fetch("SELECT name FROM pg_prepared_statements WHERE statement LIKE %s", ['%FROM "registrations%']) == []


def test_what_returns_nothing_returns_no_rows():
    make_topic_key()
    assert fetch("UPDATE registrations_topickey SET topic = 2") == []
    assert fetch("UPDATE registrations_topickey SET topic = 3 RETURNING topic") == [(3,)]


def test_belongs_to_the_transaction_around_it():
    key = make_topic_key()
    with transaction.atomic():
        fetch("DELETE FROM registrations_topickey WHERE name = %s", [key.name])
        transaction.set_rollback(True)
    assert TopicKey.objects.get() == key


@pytest.mark.parametrize(
    ("sql", "error", "sqlstate"),
    [
        ("SELECT 1/0", DataError, "22012"),
        ("SELECT nothing", ProgrammingError, "42703"),
        ("INSERT INTO registrations_topickey SELECT * FROM registrations_topickey", IntegrityError, "23505"),
        ("SELECT pg_cancel_backend(pg_backend_pid()) FROM pg_sleep(0)", OperationalError, "57014"),
    ],
)
def test_errors_are_those_of_django_and_know_the_code_of_the_database(sql, error, sqlstate):
    make_topic_key()
    with pytest.raises(error) as raised, transaction.atomic():
        fetch(sql)
    assert raised.value.__cause__.sqlstate == sqlstate


@pytest.mark.django_db(transaction=True)
def test_a_session_that_was_ended_is_an_error_of_django_and_the_next_connection_works():
    with pytest.raises(OperationalError):
        fetch("SELECT pg_terminate_backend(pg_backend_pid())")
    connection.close()
    assert fetch("SELECT 1") == [(1,)]


def test_new_ids_are_taken_from_where_django_takes_them():
    before = make_request().pk
    requests, notifications = new_ids(("notifications_notificationrequest", 3), ("notifications_notification", 2))
    assert len(set(notifications)) == 2
    assert before < requests[0] < requests[1] < requests[2] < make_request().pk


def test_no_new_ids_are_none():
    assert new_ids(("notifications_attempt", 0), ("notifications_notification", 0)) == [[], []]


def test_new_ids_of_several_tables_take_one_statement():
    with statements() as sent:
        attempts, notifications = new_ids(("notifications_attempt", 1000), ("notifications_notification", 500))
    assert (len(attempts), len(notifications), len(sent)) == (1000, 500, 1)
