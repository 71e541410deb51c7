"""Connections that give up on a server that says nothing.

A host that vanishes without a word leaves a connection that looks open. Three things end the wait, each for what the
others cannot see: TCP itself when the host does not acknowledge (keepalives, `tcp_user_timeout`, in the settings);
the server, when a statement takes too long (`statement_timeout`, `lock_timeout`); and this, when the server should have
ended the statement and was not heard, as behind a proxy that takes everything and passes on nothing.

A transaction makes as many round trips as it reads. What returns nothing (`write`) waits on this side, and goes in one
pipeline with the next statement that is read or with the COMMIT, and a BEGIN goes with the first:

    BEGIN ─┐            write ─┐           write ──┐
    read  ─┴──▶ rows    read  ─┴──▶ rows   COMMIT ─┴──▶ done
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

import psycopg
from django.conf import settings
from django.db import DatabaseError
from django.db.backends.postgresql import base
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from kit.db.postgresql.versions import TooOldError, refuse_too_old

_T = TypeVar("_T")
Parameters = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]


class TimedConnection(psycopg.Connection[Any]):
    """A connection whose statements are each answered within `timeout_seconds`, or that is closed. None: it waits."""

    timeout_seconds: float | None = None
    # How many statements the next answer is about.
    statement_count = 1
    # In a pipeline psycopg learns only at its end that a transaction has begun.
    has_sent_begin = False

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Do what psycopg does for every statement, but not for longer than our own timeout."""
        if timeout is not None or self.timeout_seconds is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.timeout_seconds * self.statement_count)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 - psycopg raises it for a timeout alone
            self.pgconn.finish()
            raise psycopg.OperationalError("the database does not answer") from error

    def _start_query(self) -> PQGen[None]:
        """Begin a transaction where one is needed. In a pipeline psycopg would wait for the answer to the BEGIN; should
        it not call this any more, that costs a round trip.
        """
        if self._pipeline is None:
            yield from super()._start_query()
        elif not (self.autocommit or self.has_sent_begin) and self.pgconn.transaction_status == TransactionStatus.IDLE:
            self.has_sent_begin = True
            yield from self._exec_command(self._get_tx_start_command())

    @contextmanager
    def answering_together(self, statement_count: int) -> Iterator[None]:
        """Have so many statements sent at once, and their answers read at the end."""
        self.statement_count = statement_count
        try:
            with _first_error(), self.pipeline():
                yield
        finally:
            self.statement_count, self.has_sent_begin = 1, False
        self._hand_on_notices()

    def _hand_on_notices(self) -> None:
        """Hand on what came with the last answer: nothing would show that it waits in memory."""
        while self.pgconn.notify_handler and (notice := self.pgconn.notifies()):
            self.pgconn.notify_handler(notice)


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's own, but for the connections that it opens, and for when it sends what returns nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
        connection.timeout_seconds = settings.DATABASE_TIMEOUTS.answer_seconds
        return connection

    def write(self, sql: LiteralString, parameters: Parameters = ()) -> "Written":
        """Have a statement run with the next one of this transaction, or with its commit, which raises its error."""
        written = Written(sql, parameters, self._send)
        is_alone = self.get_autocommit()  # connects, and raises when it cannot
        self._unsent.append(written)
        if is_alone:
            self._send()
        return written

    def _send(self, *, with_commit: bool = False) -> None:
        """Send what is unsent in one pipeline. The rows are there when it returns."""
        unsent, self._unsent = self._unsent, []
        if not unsent:
            return
        self.ensure_connection()
        with self.wrap_database_errors, self.connection.answering_together(len(unsent) + with_commit):
            for written in unsent:
                written.send(self.connection)
            if with_commit:
                self.connection.execute("COMMIT")

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a cursor for Django, whose statements are sent one by one."""
        self._send()
        return super().create_cursor(name)

    def _commit(self) -> None:
        if self._unsent:
            self._send_and_commit()
        else:
            super()._commit()  # type: ignore[misc]  # documented for other backends, unknown to the stubs

    def _send_and_commit(self) -> None:
        try:
            self._send(with_commit=True)
        except DatabaseError:  # Django rolls back
            raise
        except BaseException:  # a value that cannot be sent
            self._rollback()
            raise

    def _savepoint_rollback(self, sid: str) -> None:
        self._unsent = []  # since the savepoint, which was set by a cursor
        super()._savepoint_rollback(sid)  # type: ignore[misc]  # as above

    def _rollback(self) -> None:
        self._unsent = []
        super()._rollback()  # type: ignore[misc]  # as above

    def _close(self) -> None:
        self._unsent = []
        super()._close()  # type: ignore[misc]  # as above


class Written:
    """A statement that is sent with the next one for whose answer somebody waits."""

    def __init__(self, sql: LiteralString, parameters: Parameters, send_all: Callable[[], object]) -> None:
        self._sql = sql
        self._parameters = parameters
        self._send_all = send_all
        self._cursor: psycopg.Cursor[Any] | None = None

    def send(self, session: psycopg.Connection[Any]) -> None:
        """Send it, with parameters bound by the server, values in binary, and its plan kept by the connection."""
        self._cursor = psycopg.Cursor(session)
        self._cursor.execute(self._sql, self._parameters, prepare=True, binary=True)

    def rows(self) -> Rows:
        """Return its rows, and send it for them unless that was done."""
        if self._cursor is None:
            self._send_all()
        if self._cursor is None:
            raise psycopg.InterfaceError("the statement was not sent, as its transaction was rolled back")
        # Not `description`, which makes an object for each column.
        return self._cursor.fetchall() if self._cursor.pgresult and self._cursor.pgresult.nfields else []


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise the error of the statement that failed, where psycopg raises that of one behind it."""
    try:
        yield
    except psycopg.errors.PipelineAborted as aborted:
        raise aborted.__context__ or aborted from None
