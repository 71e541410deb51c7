"""Export of a day by several sessions of PostgreSQL with one snapshot, each of which writes files of its own.

    session of the day: BEGIN, pg_export_snapshot() ──▶ parts, the costliest first ──▶ one queue
    each thread:        BEGIN, SET TRANSACTION SNAPSHOT, then part after part: COPY ──▶ files, until the queue is empty

A part is a table, or some hours of a large one. The first error ends all sessions.
"""

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from threading import Lock
from typing import Any

import psycopg
from django.conf import settings
from django.db import connection, transaction

from kit.db.base import REPORTS, timeouts
from spark_reports.export.copying import copy_table, merge_small
from spark_reports.export.pseudonyms import PseudonymKey, Subject
from spark_reports.export.queries import IN_PARTS, QUERIES, Hours
from spark_reports.jobs.tables import EVENT_TABLES, Table
from spark_reports.lake import File, Kind, Lake, folder_of

Session = psycopg.Connection[Any]
OnRows = Callable[[str, int], None]

# Half of the cores stay free for messages. A session uses one core, because parallel workers of PostgreSQL are off.
SESSIONS = max(1, min(4, (os.cpu_count() or 1) // 2))
ROWS_PER_PART = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that one COPY reads."""

    table: Table
    hours: Hours

    @property
    def query(self) -> str:
        return QUERIES[self.table.name](self.hours)


@dataclass(slots=True)
class Export:
    """The export of one day, which its threads share."""

    day: date
    lake: Lake
    key: PseudonymKey
    on_rows: OnRows
    waiting: deque[Part] = field(default_factory=deque)
    sessions: list[Session] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)  # paths of all files, complete or not
    files: dict[Part, list[File]] = field(default_factory=dict)
    progress_lock: Lock = field(default_factory=Lock)

    def run(self) -> dict[str, list[File]]:
        """Write all files of the day, and return them by table. If anything fails, all of them are removed."""
        try:
            with _session(self.key) as session:
                self.waiting.extend(_parts(session, self.day))
                self._in_threads(_value(session, "SELECT pg_export_snapshot()"))
            return {table.name: self._files_of(table) for table in EVENT_TABLES}
        except BaseException:
            for path in self.begun:
                self.lake.remove(path)
            raise

    def _in_threads(self, snapshot: str) -> None:
        """Copy all parts. The first error drops the waiting ones, and cancels the running queries."""
        with ThreadPoolExecutor(SESSIONS, thread_name_prefix="export") as pool:
            threads = [pool.submit(self._copy_all, snapshot) for _ in range(min(SESSIONS, len(self.waiting)))]
            try:
                for thread in as_completed(threads):
                    thread.result()
            except BaseException:
                self.waiting.clear()
                for session in self.sessions:
                    session.cancel_safe(timeout=5)
                raise

    def _copy_all(self, snapshot: str) -> None:
        """Copy part after part within one session, until none is left."""
        # Timeouts are set for a connection, and each thread has a connection of its own.
        with closing(connection), timeouts(REPORTS), _session(self.key, snapshot) as session:
            self.sessions.append(session)
            while self.waiting:
                try:
                    part = self.waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                self.files[part] = self._copy(session, part)

    def _copy(self, session: Session, part: Part) -> list[File]:
        def on_rows(number: int) -> None:
            with self.progress_lock:
                self.on_rows(part.table.name, number)

        written = copy_table(session, part.query, part.table, self.lake, partial(self._begin, part.table), on_rows)
        return [self.lake.describe(path, rows) for path, rows in written]

    def _begin(self, table: Table) -> str:
        """Return the path of a new file, which no reader opens until a manifest lists it.

        The file is not moved afterwards, because an object store would copy it.
        """
        self.begun.append(f"{folder_of(Kind.FACTS, table, self.day)}/{secrets.token_hex(8)}.parquet")
        return self.begun[-1]

    def _files_of(self, table: Table) -> list[File]:
        parts = sorted((part for part in self.files if part.table == table), key=lambda part: part.hours.first)
        files = [file for part in parts for file in self.files[part]]
        return merge_small(files, table, self.lake, partial(self._begin, table))


def _parts(session: Session, day: date) -> list[Part]:
    """Return the parts of the day, the costliest first, so that no session ends long after the others.

    The rows of a table are PostgreSQL's estimate, because counting them would cost as much as reading them.
    """
    parts: list[tuple[float, Part]] = []
    for table in EVENT_TABLES:
        plan = _value(session, f"EXPLAIN (FORMAT JSON) {QUERIES[table.name](Hours(day))}")[0]["Plan"]
        # Of a union only the first half counts. In the other half, the notifications decided at once, PostgreSQL
        # expects a thousand rows for each request.
        counted = plan["Plans"][0] if plan["Node Type"] == "Append" else plan
        number = 1 + int(counted["Plan Rows"] // ROWS_PER_PART) if table.name in IN_PARTS else 1
        hours = Hours(day).parts(number)
        parts.extend((plan["Total Cost"] / len(hours), Part(table, each)) for each in hours)
    return [part for _, part in sorted(parts, key=lambda pair: pair[0], reverse=True)]


def _value(session: Session, query: str) -> Any:
    with psycopg.Cursor(session) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    return row[0] if row else None


@contextmanager
def _session(key: PseudonymKey, snapshot: str = "") -> Iterator[Session]:
    """Open a transaction of this thread with one snapshot, and with the keys in a table that is dropped at its end.

    ``snapshot`` is an exported snapshot of another transaction. Without it the transaction takes its own.
    """
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if snapshot:
                cursor.execute("SET TRANSACTION SNAPSHOT %s", [snapshot])
            cursor.execute("SET LOCAL TIME ZONE 'UTC'")
            cursor.execute("SET LOCAL datestyle = 'ISO'")
            cursor.execute("SET LOCAL work_mem = '128MB'")
            cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            columns = ", ".join(f"{subject} bytea" for subject in Subject)
            cursor.execute(
                f"CREATE TEMPORARY TABLE report_keys (outer_key bytea, deadline_us bigint, {columns}) ON COMMIT DROP"
            )
        session: Session = connection.connection
        _hand_over(session, key)
        yield session


def _hand_over(session: Session, key: PseudonymKey) -> None:
    """Write the keys by COPY, because parameters and statements may appear in the database's log."""
    with psycopg.Cursor(session) as cursor, cursor.copy("COPY report_keys FROM STDIN") as copy:
        deadline_us = round(settings.REPLY_DEADLINE_SECONDS * 10**6)
        copy.write_row([key.outer, deadline_us, *[key.prefix(subject) for subject in Subject]])
