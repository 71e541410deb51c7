"""The database connection on which a bridge writes envelopes and hears of new topics: asynchronous, and its own.

Every statement is in autocommit: values are bound by the server, in binary, and plans are kept. With each answer
PostgreSQL hands over the topics that were registered before, so knowing them costs no statement.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg

from kit.db.connections import connection_parameters
from waku_bridge.query_topics import QueryTopics

# A server that does not answer within this counts as away; loading a million topics takes seconds.
STATEMENT_SECONDS = 10.0
CONNECT_SECONDS = 60.0
CONNECTION_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
}


class Session:
    """The connection of all readers of a bridge; their statements follow one another."""

    def __init__(self, topics: QueryTopics) -> None:
        self.topics = topics
        self._connection: psycopg.AsyncConnection | None = None
        self._lock = asyncio.Lock()

    async def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, after taking in what was registered before it.

        Raises psycopg.Error; then nothing is known of what the statement did, and the next one connects anew.
        """
        async with self._lock:
            try:
                connection = self._connection or await self._connect()
                async with asyncio.timeout(STATEMENT_SECONDS):
                    cursor = await connection.execute(sql.encode(), values, prepare=True, binary=True)
                    rows = await cursor.fetchall() if cursor.description else []
                    await self.topics.take_news(connection)
            except TimeoutError as error:
                await self._disconnect()
                raise psycopg.OperationalError("the database does not answer") from error
            except BaseException:
                await self._disconnect()
                raise
        return rows

    async def close(self) -> None:
        async with self._lock:
            await self._disconnect()

    async def _connect(self) -> psycopg.AsyncConnection:
        async with asyncio.timeout(CONNECT_SECONDS):
            parameters = {**CONNECTION_OPTIONS, **connection_parameters()}
            self._connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
            await self.topics.load(self._connection)
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.close()
            self._connection = None
