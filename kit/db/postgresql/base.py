"""Connections that give up on a server that says nothing.

A host that vanishes without a word leaves a connection that looks open. Three things end the wait, each for what the
others cannot see: TCP itself when the host does not acknowledge (keepalives, `tcp_user_timeout`, in the settings);
the server, when a statement takes too long (`statement_timeout`, `lock_timeout`); and this, when the server should have
ended the statement and was not heard, as behind a proxy that takes everything and passes on nothing.
"""

from typing import Any, TypeVar

import psycopg
from django.conf import settings
from django.db.backends.postgresql import base
from psycopg.abc import PQGen

from kit.db.postgresql.versions import TooOldError, refuse_too_old

_T = TypeVar("_T")


class PatientConnection(psycopg.Connection[Any]):
    """A connection whose statements are answered within `patience_seconds`, or that is closed. None: it waits."""

    patience_seconds: float | None = None

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Do what psycopg does for every statement, but not for longer than our patience."""
        if timeout is not None or self.patience_seconds is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.patience_seconds)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 - psycopg raises it for a timeout alone
            self.pgconn.finish()
            raise psycopg.OperationalError("the database does not answer") from error


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's own, but for the connections that it opens."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> PatientConnection:
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection = PatientConnection.connect(**conn_params)
        try:
            refuse_too_old(connection.info.server_version)
        except TooOldError:
            connection.close()
            raise
        connection.patience_seconds = settings.DATABASE_PATIENCE.answer_seconds
        return connection
