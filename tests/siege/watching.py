"""What a siege costs the server: memory of each process, rows and bytes in the database."""

import threading
from collections import defaultdict
from typing import Any, Self

import psutil
import psycopg

from tests.flows.fleet import Fleet

EVERY_SECONDS = 2.0
TABLES = """
    SELECT relname, pg_total_relation_size(oid) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname !~ '^(django|auth|tests)'
"""


class Memory:
    """The most memory that each process of a fleet had, in MB, while this was entered."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most_mb: defaultdict[str, float] = defaultdict(float)
        self.first_mb: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._look()
        self.first_mb = dict(self.most_mb)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        for name, process in self._fleet.running.items():
            try:
                root = psutil.Process(process.pid)
                sizes = [each.memory_full_info().pss for each in (root, *root.children(recursive=True))]
            except psutil.NoSuchProcess:
                continue
            self.most_mb[name] = max(self.most_mb[name], sum(sizes) / 2**20)


def stored(database_url: str) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of each table."""
    with psycopg.connect(database_url) as connection:
        sizes: list[tuple[str, int]] = connection.execute(TABLES).fetchall()
        return {name: (_count(connection, name), size) for name, size in sizes}


def _count(connection: "psycopg.Connection[Any]", table: str) -> int:
    query = psycopg.sql.SQL("SELECT count(*) FROM {}").format(psycopg.sql.Identifier(table))
    [(count,)] = connection.execute(query)
    return int(count)
