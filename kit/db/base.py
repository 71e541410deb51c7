"""Connections to PostgreSQL that time out when the server does not answer, and that send writes in pipelines.

A host that fails leaves a connection that seems open. Three timeouts end the wait, each in a case that the others
miss. TCP ends it when the host does not acknowledge (keepalives and `tcp_user_timeout`, in the settings). The server
ends a statement that takes too long (`statement_timeout`, `lock_timeout`). `TimedConnection` ends it when even that
error does not arrive, as behind a proxy that accepts everything and forwards nothing.

A transaction makes one round trip for each read. A statement without a result (`write`) waits in the client. It is sent
in one pipeline with the next read or with the COMMIT, and the BEGIN is sent with the first statement:

    BEGIN ─┐            write ─┐           write ──┐
    read  ─┴──▶ rows    read  ─┴──▶ rows   COMMIT ─┴──▶ done
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from django.conf import settings
from django.db import DatabaseError, OperationalError, connection
from django.db.backends.postgresql import base
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.models import Model
from psycopg.abc import PQGen
from psycopg.generators import send

from kit.db.sessions import Timeouts

_T = TypeVar("_T")
Parameters = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]
# Supported versions of PostgreSQL. The tests run on the oldest and on the newest of them.
OLDEST, NEWEST = 15, 18


class TooOldError(OperationalError):
    """PostgreSQL is older than `OLDEST`. The message is one line for an operator."""


def refuse_too_old(server_version: int) -> None:
    """Raise TooOldError for an unsupported version. ``server_version`` is libpq's number, such as 150018."""
    if server_version // 10_000 < OLDEST:
        raise TooOldError(f"PostgreSQL {name_of(server_version)} is too old: this server needs {OLDEST} or newer")


def name_of(server_version: int) -> str:
    """Return libpq's number of a version as PostgreSQL writes it, such as 15.18."""
    return f"{server_version // 10_000}.{server_version % 10_000}"


class TimedConnection(psycopg.Connection[Any]):
    """A connection that is closed when a statement is not answered within `timeout_seconds` (None: no timeout)."""

    timeout_seconds: float | None = None
    # The number of statements that are sent together, which multiplies the timeout.
    statement_count = 1
    opened: "tuple[AbstractContextManager[psycopg.Pipeline], psycopg.Pipeline] | None" = None
    ended_with: type[psycopg.Error] | None = None

    def note_end(self, notice: psycopg.errors.Diagnostic) -> None:
        """Remember why the server ended the session. In a pipeline, libpq takes that error for a notice."""
        if notice.severity_nonlocalized == "FATAL":
            self.ended_with = psycopg.errors.lookup(str(notice.sqlstate))

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Wait for an answer as psycopg does for every statement, but no longer than our own timeout."""
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        seconds = self.timeout_seconds and self.timeout_seconds * self.statement_count
        until = perf_counter() + (seconds or inf)
        try:
            return super().wait(gen, interval, seconds)
        except psycopg.OperationalError as error:
            if self.ended_with:
                raise self.ended_with("the server ended the session") from error
            if error.sqlstate or perf_counter() < until:
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError("the database does not answer") from error

    def send_together(self, statements: "Sequence[Written]", *, and_leave: bool) -> None:
        """Send statements at once, and read their answers at the end.

        The pipeline stays open until the transaction ends, because psycopg leaves a pipeline with a Flush message.
        Within a transaction PostgreSQL takes that for a sign of life: it stops the timer of
        `idle_in_transaction_session_timeout`, and does not start it again.
        """
        self.statement_count = len(statements)
        try:
            with _first_error():
                self._send_in_pipeline(statements, and_leave=and_leave)
        except BaseException:
            with suppress(psycopg.Error):
                self.leave_pipeline()
            raise
        finally:
            self.statement_count = 1
        self._deliver_notifications()

    def _send_in_pipeline(self, statements: "Sequence[Written]", *, and_leave: bool) -> None:
        if self.opened is None:
            opening = self.pipeline()
            self.opened = opening, opening.__enter__()
        for statement in statements:
            statement.send(self)
        if and_leave:
            self.leave_pipeline()
        else:
            if self.pgconn.flush():  # the rest of a large statement, which `sync` would not send
                self.wait(send(self.pgconn))
            self.opened[1].sync()

    def leave_pipeline(self) -> None:
        """Read all answers, and end the pipeline, if one is open."""
        opened, self.opened = self.opened, None
        if opened:
            opened[0].__exit__(None, None, None)

    def _deliver_notifications(self) -> None:
        """Deliver notifications that came with the last answer, because `select` does not see them in memory."""
        while self.pgconn.notify_handler and (notice := self.pgconn.notifies()):
            self.pgconn.notify_handler(notice)


class SchemaEditor(DatabaseSchemaEditor):
    """Django's editor, without the second index that it gives each unique or indexed text, for searches by beginning.

    Nothing searches so: `pushserver.console.registrations.admin` searches a beginning by the first index.
    """

    def _create_like_index_sql(self, model: Any, field: Any) -> None:  # noqa: ARG002 - Django's signature
        return None


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's wrapper, with `TimedConnection`, and with pipelines for statements without a result."""

    SchemaEditorClass = SchemaEditor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin = Written("BEGIN", (), self._send)
        self._unsent: list[Written] = []

    def get_new_connection(self, conn_params: dict[str, Any]) -> TimedConnection:
        self._unsent = []
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection = TimedConnection.connect(**conn_params)
        try:
            refuse_too_old(connection.info.server_version)
        except TooOldError:
            connection.close()
            raise
        connection.add_notice_handler(connection.note_end)
        connection.timeout_seconds = settings.DATABASE_TIMEOUTS.answer_seconds
        return connection

    def write(self, sql: LiteralString, parameters: Parameters = ()) -> "Written":
        """Send a statement together with the next read of this transaction, or with its COMMIT.

        That read or COMMIT raises the error of the statement. Outside of a transaction it is sent at once.
        """
        written = Written(sql, parameters, self._send)
        is_alone = self.get_autocommit()  # connects, and raises when it cannot
        self._unsent.append(written)
        if is_alone:
            self._send()
        return written

    def _send(self, *, and_leave: bool = False) -> None:
        """Send all unsent statements at once, and receive their rows."""
        unsent, self._unsent = self._unsent, []
        if not unsent:
            return
        self.ensure_connection()
        with self.wrap_database_errors:
            if len(unsent) == 1 and not self.connection.opened:
                unsent[0].send(self.connection)
            else:
                self.connection.send_together(unsent, and_leave=and_leave or self.get_autocommit())

    def _start_transaction_under_autocommit(self) -> None:
        """Begin a transaction with the next statement. Django calls it in place of changing psycopg's autocommit."""
        self._unsent = [self._begin]

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a cursor for Django's own statements, which are not pipelined."""
        self._send(and_leave=True)
        if self.connection.opened:
            self.connection.leave_pipeline()
        return super().create_cursor(name)

    def _commit(self) -> None:
        if self._unsent == [self._begin]:
            self._unsent = []
        else:
            self._unsent.append(Written("COMMIT", (), self._send))
            self._send_and_commit()

    def _send_and_commit(self) -> None:
        try:
            self._send(and_leave=True)
        except DatabaseError:  # Django rolls back after this error
            raise
        except BaseException:  # for example, a value that cannot be sent
            self._rollback()
            raise

    def _savepoint_rollback(self, sid: str) -> None:
        self._unsent = []  # all of them are newer than the savepoint, because its cursor has sent the older ones
        super()._savepoint_rollback(sid)  # type: ignore[misc]  # as above

    def _rollback(self) -> None:
        self._unsent = []
        self.connection.leave_pipeline()
        super()._rollback()  # type: ignore[misc]  # as above

    def _close(self) -> None:
        self._unsent = []
        super()._close()  # type: ignore[misc]  # as above
        with suppress(psycopg.Error):
            self.connection.leave_pipeline()


class Written:
    """A statement that is sent together with the next read or COMMIT."""

    def __init__(self, sql: LiteralString, parameters: Parameters, send_all: Callable[[], object]) -> None:
        self._sql = sql
        self._parameters = parameters
        self._send_all = send_all
        self._cursor: psycopg.Cursor[Any] | None = None

    def send(self, session: psycopg.Connection[Any]) -> None:
        """Send the statement, with parameters bound by the server, values in binary, and a prepared plan."""
        self._cursor = psycopg.Cursor(session)
        self._cursor.execute(self._sql, self._parameters, prepare=True, binary=True)

    def rows(self) -> Rows:
        """Return the rows of the statement. Send it first, if it is unsent."""
        if self._cursor is None:
            self._send_all()
        if self._cursor is None:
            raise psycopg.InterfaceError("the statement was not sent, because its transaction was rolled back")
        # `description` would make an object for each column.
        return self._cursor.fetchall() if self._cursor.pgresult and self._cursor.pgresult.nfields else []


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise the error of the statement that failed, where psycopg raises the error of a later one."""
    try:
        yield
    except psycopg.errors.PipelineAborted as aborted:
        raise aborted.__context__ or aborted from None


# Statements of the message path ---------------------------------------------------------------------------------------

# Parameters are bound by the server, values are in binary, and plans are prepared. Django binds parameters in the
# client. A payload then travels as hexadecimal text, and PostgreSQL parses and plans each statement again. For the
# message path that is half of the cost of a statement; for the console it does not matter.

Statement = tuple[LiteralString, Parameters]


def fetch(sql: LiteralString, parameters: Parameters = ()) -> Rows:
    """Run one statement on Django's connection, in its transaction, and return its rows (none without a result).

    Raises the exceptions of `django.db`, as Django's own cursors do.
    """
    [rows] = fetch_each((sql, parameters))
    return rows


def fetch_each(*statements: Statement) -> list[Rows]:
    """Run several statements, in one round trip within a transaction, and return the rows of each."""
    written = [_database().write(*statement) for statement in statements]
    return [statement.rows() for statement in written]


def write(sql: LiteralString, parameters: Parameters = ()) -> Written:
    """Send a statement without waiting for it: together with the next read of this transaction, or with its COMMIT.

    That read or COMMIT raises the error of the statement.
    """
    return _database().write(sql, parameters)


def write_rows(
    sql: LiteralString, columns: Sequence[str], rows: Iterable[Sequence[Any]], **others: object
) -> list[Written]:
    """Send a statement for many rows, with one array parameter for each column.

    The first column is the key, which must not be None. The arrays are in the order of the keys, as `array_value`
    needs. A row with the key of an earlier one goes into a further statement. Without rows nothing is sent.
    """
    left, written = list(rows), []
    while left:
        first = {row[0]: row for row in reversed(left)}
        ordered = [first[key] for key in sorted(first)]
        arrays = {name: [row[index] for row in ordered] for index, name in enumerate(columns)}
        written.append(write(sql, {**arrays, **others}))
        left = [row for row in left if row is not first[row[0]]]
    return written


def array_value(keys: LiteralString, key: LiteralString, name: LiteralString, kind: LiteralString) -> LiteralString:
    """Return an SQL expression that finds the value of a row in an array of `write_rows`, by a binary search.

    ``keys`` and ``key`` are expressions for the array of keys and the key of the row; ``kind`` is the type of the
    value. The statement must make sure that the key is in the array (`= ANY`). A join with the arrays would be slow:
    PostgreSQL does not know their length, and compares each of two hundred rows with each of two hundred values.
    """
    return f"(%({name})b::{kind}[])[width_bucket({key}, {keys})]"


def _database() -> DatabaseWrapper:
    return cast("DatabaseWrapper", connection)


def table(model: type[Model]) -> LiteralString:
    """Return the name of another app's table. The import of the model shows the dependency to import-linter."""
    return model._meta.db_table  # noqa: SLF001 - documented


def stored(table: LiteralString, *, where: LiteralString = "true", index: LiteralString = "") -> LiteralString:
    """Return an SQL expression for the number of rows in a table, or in a partial index with the condition ``where``.

    Up to a thousand rows are counted, in 0.1 ms. Beyond that, the number comes from PostgreSQL's statistics.
    """
    return f"""(
        SELECT CASE WHEN reltuples > 1000 THEN reltuples::bigint ELSE (
            SELECT count(*) FROM (SELECT FROM {table} WHERE {where} LIMIT 1001) AS counted
        ) END FROM pg_class WHERE oid = '{index or table}'::regclass
    )"""


# Timeouts for special work --------------------------------------------------------------------------------------------

# A process starts with the timeouts of its usual work (`settings.DATABASE_TIMEOUTS`). Work that takes longer, or that
# must not make other sessions wait, sets its own.

# Exports hold a snapshot while others copy rows, and write to a lake that may be slow.
REPORTS = Timeouts(statement_seconds=4 * 3600, lock_seconds=10, idle_seconds=0)
# While a migration waits for a lock, all other sessions wait behind it.
MIGRATIONS = Timeouts(statement_seconds=0, lock_seconds=10, idle_seconds=0)


def connection_parameters() -> dict[str, Any]:
    """Return the connection parameters of the configured database, without those for Django's synchronous cursors."""
    parameters: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in parameters.items() if name not in {"cursor_factory", "context"}}


def is_marked_ready(data_dir: Path) -> bool:
    """Return whether the `postmaster.pid` of a local PostgreSQL says that it accepts connections.

    Read it before a connection to a server that may be starting, because PostgreSQL logs an error for each connection
    that comes too early. A server that was killed leaves the file behind.
    """
    try:
        lines = (data_dir / "postmaster.pid").read_bytes().splitlines()
    except FileNotFoundError:
        return False
    return lines[-1:] == [b"ready   "]


@contextmanager
def timeouts(wanted: Timeouts) -> Iterator[None]:
    """Set the timeouts of this thread's connection for the duration of a block."""
    set_timeouts(wanted)
    try:
        yield
    finally:
        if connection.connection is not None and not connection.connection.closed:
            names = list(wanted.settings)
            write("SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name = ANY (%s)", [names])
            _own().timeout_seconds = settings.DATABASE_TIMEOUTS.answer_seconds


def set_timeouts(wanted: Timeouts) -> None:
    """Set the timeouts of this thread's connection for as long as it is open."""
    names, values = list(wanted.settings), list(wanted.settings.values())
    write(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS _ (name, value)", [names, values]
    )
    _own().timeout_seconds = wanted.answer_seconds


def _own() -> TimedConnection:
    assert isinstance(connection.connection, TimedConnection)  # noqa: S101 - of our backend
    return connection.connection
