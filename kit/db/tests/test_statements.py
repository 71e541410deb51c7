"""Tests of statements of the message path: bound by the server, binary, prepared, with the errors of Django."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import DataError, IntegrityError, OperationalError, ProgrammingError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from embedded.servers.ports import free_port
from kit.db.base import array_value, fetch, fetch_each, write, write_rows
from registrations.models import TopicKey
from tests.rig.rows import make_topic_key
from tests.rig.statements import round_trips

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
def test_values_are_read_as_they_were_written(value, sql_type):
    assert fetch(f"SELECT %s::{sql_type}", [value]) == [(value,)]


def test_parameters_are_bound_by_the_server_and_a_statement_without_a_result_returns_no_rows():
    fetch(
        "INSERT INTO registrations_topickey (name, topic, key_encrypted, created_at) VALUES (%s, 1, %s, now())",
        ["n", b"\x00'\\"],
    )
    [(statement,)] = fetch("SELECT statement FROM pg_prepared_statements WHERE statement LIKE 'INSERT%%'")
    assert "VALUES ($1, 1, $2, now())" in statement
    assert bytes(TopicKey.objects.get().key_encrypted) == b"\x00'\\"
    assert fetch("UPDATE registrations_topickey SET topic = 2") == []
    assert fetch("UPDATE registrations_topickey SET topic = 3 RETURNING topic") == [(3,)]


def test_a_statement_is_prepared_once_and_named_parameters_may_be_repeated():
    sql = "SELECT %(a)s::bigint + %(a)s::bigint, %(b)s::text, 'prepared once'"
    for number in range(3):
        assert fetch(sql, {"a": number, "b": "x"}) == [(2 * number, "x", "prepared once")]
        assert list(TopicKey.objects.filter(topic=4711)) == []  # by Django
    prepared = "SELECT statement FROM pg_prepared_statements WHERE statement LIKE %s"
    assert fetch(prepared, ["%once'"]) == [("SELECT $1::bigint + $1::bigint, $2::text, 'prepared once'",)]
    assert fetch(prepared, ['%FROM "registrations%']) == []


@pytest.mark.parametrize(
    ("sql", "error", "sqlstate"),
    [
        ("SELECT 1/0", DataError, "22012"),
        ("SELECT nothing", ProgrammingError, "42703"),
        ("INSERT INTO registrations_topickey SELECT * FROM registrations_topickey", IntegrityError, "23505"),
        ("SELECT pg_cancel_backend(pg_backend_pid()) FROM pg_sleep(0)", OperationalError, "57014"),
    ],
)
def test_errors_are_those_of_django_with_the_code_of_postgresql(sql, error, sqlstate):
    make_topic_key()
    with pytest.raises(error) as raised, transaction.atomic():
        fetch(sql)
    assert raised.value.__cause__.sqlstate == sqlstate


@pytest.mark.django_db(transaction=True)
def test_a_session_that_was_ended_is_an_error_of_django_and_the_next_connection_works():
    with pytest.raises(OperationalError):
        fetch("SELECT pg_terminate_backend(pg_backend_pid())")
    connection.close()
    rows = [[(1,)], [("x",)], []]  # those of each statement
    assert fetch_each(("SELECT 1", ()), ("SELECT %s::text", ["x"]), ("SELECT WHERE FALSE", ())) == rows


@pytest.mark.django_db(transaction=True)
def test_a_write_is_visible_to_the_next_statement_of_either_kind_and_sent_at_once_outside_of_a_transaction():
    key = make_topic_key()
    with transaction.atomic():
        write("UPDATE registrations_topickey SET topic = 2")
        assert fetch("SELECT topic FROM registrations_topickey") == [(2,)]
        write("UPDATE registrations_topickey SET topic = 3")
        assert TopicKey.objects.get(pk=key.pk).topic == 3
        written = write("UPDATE registrations_topickey SET topic = 4 RETURNING topic")
    assert (written.rows(), TopicKey.objects.get().topic) == ([(4,)], 4)
    assert write("UPDATE registrations_topickey SET topic = 5 RETURNING topic").rows() == [(5,)]
    connection.close()
    assert TopicKey.objects.get().topic == 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ends", [lambda: fetch("SELECT 1"), TopicKey.objects.count, lambda: None])
def test_the_error_of_a_write_is_raised_when_it_is_sent_and_rolls_back_the_transaction(ends):
    key = make_topic_key()
    with pytest.raises(IntegrityError), transaction.atomic():  # noqa: PT012 - it may be raised at the end
        write("UPDATE registrations_topickey SET topic = 2")
        write("INSERT INTO registrations_topickey SELECT * FROM registrations_topickey")
        write("UPDATE registrations_topickey SET topic = 3")
        ends()
    assert TopicKey.objects.get(pk=key.pk).topic == key.topic
    with transaction.atomic():  # the statement that was prepared in the failed pipeline is prepared again
        write("UPDATE registrations_topickey SET topic = 3")
    assert TopicKey.objects.get().topic == 3


@pytest.mark.django_db(transaction=True)
def test_unsent_writes_are_dropped_with_their_transaction_or_savepoint():
    key = make_topic_key()
    with transaction.atomic():
        fetch("DELETE FROM registrations_topickey WHERE name = %s", [key.name])
        written = write("UPDATE registrations_topickey SET topic = 2 RETURNING topic")
        transaction.set_rollback(True)
    with pytest.raises(psycopg.InterfaceError):
        written.rows()
    with transaction.atomic():
        assert fetch("SELECT topic FROM registrations_topickey") == [(key.topic,)]
        write("UPDATE registrations_topickey SET topic = 2")
        with suppress(ZeroDivisionError), transaction.atomic():
            write("INSERT INTO registrations_topickey SELECT * FROM registrations_topickey")
            raise ZeroDivisionError
    assert TopicKey.objects.get(pk=key.pk).topic == 2


@pytest.mark.django_db(transaction=True)
def test_a_write_without_a_connection_is_never_sent(monkeypatch):
    key = make_topic_key()
    connection.close()
    with monkeypatch.context() as away:
        away.setitem(connection.settings_dict, "PORT", free_port())
        away.setitem(connection.settings_dict, "OPTIONS", connection.settings_dict["OPTIONS"] | {"host": "127.0.0.1"})
        for send in (write, fetch):
            with pytest.raises(OperationalError):
                send("UPDATE registrations_topickey SET topic = 2")
            connection.close()
    assert fetch("SELECT topic FROM registrations_topickey") == [(key.topic,)]


@pytest.mark.django_db(transaction=True)
def test_a_value_that_cannot_be_sent_with_the_commit_rolls_back_the_transaction():
    key = make_topic_key()
    with pytest.raises(UnicodeEncodeError), transaction.atomic():  # noqa: PT012 - it is raised at the end
        write("UPDATE registrations_topickey SET topic = 2")
        fetch("SELECT 1")
        write("UPDATE registrations_topickey SET name = %s::text", ["\ud800"])
    assert connection.get_autocommit()
    assert TopicKey.objects.get(pk=key.pk).topic == key.topic


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_first", [True, False])
def test_executemany_of_django_belongs_to_its_transaction(is_first):
    key = make_topic_key()
    with transaction.atomic():
        fetch("SELECT 1")
    with transaction.atomic():
        if not is_first:
            fetch("SELECT 1")
        with connection.cursor() as cursor:
            cursor.executemany("UPDATE registrations_topickey SET topic = %s", [[2], [3]])
        transaction.set_rollback(True)
    assert TopicKey.objects.get(pk=key.pk).topic == key.topic


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("path", "trips"),
    [("read", 2), ("write", 1), ("read write", 2), ("write read", 2), ("read write write read write", 3), ("", 0)],
)
def test_a_transaction_makes_a_round_trip_for_each_read_and_one_for_its_commit(path, trips):
    make_topic_key()
    steps = {
        "read": lambda: fetch("SELECT topic FROM registrations_topickey"),
        "write": lambda: write("UPDATE registrations_topickey SET topic = 2"),
    }
    with round_trips() as made, transaction.atomic():
        for step in path.split():
            steps[step]()
    assert len(made) == trips


# Many rows ------------------------------------------------------------------------------------------------------------

KINDS = {"bigint": st.integers(-(2**63), 2**63 - 1), "bytea": st.binary(max_size=3)}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_each_row_gets_its_own_values_in_any_order_and_once_per_mention(kind, data):
    values = st.tuples(KINDS[kind], st.none() | st.text("ab\u00fc", max_size=2), st.none() | st.integers(-9, 9))
    rows = data.draw(st.lists(values, max_size=12))
    there = data.draw(st.sets(KINDS[kind], max_size=4)) | {key for key, *_ in rows[::2]}
    keys = f"%(keys)b::{kind}[]"
    sql = f"""
        UPDATE made_up SET words = words || {array_value(keys, "key", "words", "text")},
            numbers = numbers || {array_value(keys, "key", "numbers", "integer")}
        WHERE key = ANY ({keys}) AND state = %(state)s RETURNING key
    """
    with transaction.atomic():
        write(f"CREATE TEMPORARY TABLE made_up (key {kind}, state text, words text[], numbers integer[])")
        write(f"INSERT INTO made_up SELECT unnest(%s::{kind}[]), 'waits', '{{}}', '{{}}'", [list(there)])
        written = write_rows(sql, ("keys", "words", "numbers"), rows, state="waits")
        found = {key: (words, numbers) for key, words, numbers in fetch("SELECT key, words, numbers FROM made_up")}
        write("DROP TABLE made_up")
    own = {key: [row[1:] for row in rows if row[0] == key] for key in there}
    assert found == {key: ([word for word, _ in of], [number for _, number in of]) for key, of in own.items()}
    returned = [key for each in written for (key,) in each.rows()]
    assert sorted(returned) == sorted(row[0] for row in rows if row[0] in there)
    assert write_rows("no statement", ("keys",), []) == []  # nothing is sent
