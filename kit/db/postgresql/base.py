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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

import psycopg
from django.conf import settings
from django.db import DatabaseError
from django.db.backends.postgresql import base
from psycopg.abc import PQGen
from psycopg.generators import send
from psycopg.pq import TransactionStatus

from kit.db.postgresql.versions import TooOldError, refuse_too_old

_T = TypeVar("_T")
Parameters = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]


class _Pipeline(psycopg.Pipeline):
    """A pipeline that ends with its Sync message.

    That of psycopg sends a Flush after it, which PostgreSQL takes for a sign of life: it stops the timer of
    `idle_in_transaction_session_timeout` and does not start it again. If a later psycopg does not call this private
    method, a test of the timeout fails.
    """

    def _exit_gen(self) -> PQGen[None]:
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
        finally:
            if self.result_queue:
                yield from send(self.pgconn)  # the rest of a large statement
            yield from self._fetch_gen(flush=False)


class TimedConnection(psycopg.Connection[Any]):
    """A connection that is closed when a statement is not answered within `timeout_seconds` (None: no timeout)."""

    timeout_seconds: float | None = None
    # The number of statements that are sent together, which multiplies the timeout.
    statement_count = 1
    # In a pipeline, psycopg knows only at the end whether a transaction has begun.
    has_sent_begin = False

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Wait for an answer as psycopg does for every statement, but no longer than our own timeout."""
        if timeout is not None or self.timeout_seconds is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.timeout_seconds * self.statement_count)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 - psycopg raises it only for a timeout
            self.pgconn.finish()
            raise psycopg.OperationalError("the database does not answer") from error

    def _start_query(self) -> PQGen[None]:
        """Begin a transaction where one is needed, without waiting for the answer to the BEGIN in a pipeline.

        If a later psycopg does not call this private method, each transaction costs one more round trip.
        """
        if self._pipeline is None:
            yield from super()._start_query()
        elif not (self.autocommit or self.has_sent_begin) and self.pgconn.transaction_status == TransactionStatus.IDLE:
            self.has_sent_begin = True
            yield from self._exec_command(self._get_tx_start_command())

    @contextmanager
    def answering_together(self, statement_count: int) -> Iterator[None]:
        """Send ``statement_count`` statements at once, and read their answers at the end."""
        self.statement_count = statement_count
        self._pipeline = self._pipeline or _Pipeline(self)
        try:
            with _first_error(), self.pipeline():
                yield
        finally:
            self.statement_count, self.has_sent_begin = 1, False
        self._deliver_notifications()

    def _deliver_notifications(self) -> None:
        """Deliver notifications that came with the last answer, because `select` does not see them in memory."""
        while self.pgconn.notify_handler and (notice := self.pgconn.notifies()):
            self.pgconn.notify_handler(notice)


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's wrapper, with `TimedConnection`, and with pipelines for statements without a result."""

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
        """Send a statement together with the next read of this transaction, or with its COMMIT.

        That read or COMMIT raises the error of the statement. Outside of a transaction it is sent at once.
        """
        written = Written(sql, parameters, self._send)
        is_alone = self.get_autocommit()  # connects, and raises when it cannot
        self._unsent.append(written)
        if is_alone:
            self._send()
        return written

    def _send(self, *, with_commit: bool = False) -> None:
        """Send all unsent statements in one pipeline, and receive their rows."""
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
        """Return a cursor for Django's own statements, which are not pipelined."""
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
        super()._rollback()  # type: ignore[misc]  # as above

    def _close(self) -> None:
        self._unsent = []
        super()._close()  # type: ignore[misc]  # as above


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
