"""Benchmark of console and API with a million registrations and ten million attempts.

They run on PostgreSQL, filled by `manage.py seed_bench`, through Django's test client: the real middleware, views and
templates, without a web server. Every page is requested at least 30 times, each time for another row where possible.
The table shows wall-clock times, which other tenants of the machine make longer. It also shows the CPU time of Python
and of PostgreSQL, and the number of queries. ``python -m bench console --registrations 1000000 --attempts 10000000``;
with ``--keep`` the database stays in that folder for the next time. ``BENCH_ONLY=list`` measures only the pages with
that text in their name.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from bench.running import servers

REGISTRATIONS, ATTEMPTS = 1_000_000, 10_000_000
REQUESTS = 30
WARM_UP = 2
TARGET_MS = 200
# Filling writes as much as a month of traffic does.
SETTINGS = {"max_wal_size": "4GB"}
ONLY = "BENCH_ONLY"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request, with its redirects.

    ``data`` makes it a POST. ``refresh`` requests only the part of the page that refreshes itself.
    """

    url: str
    data: dict[str, str] | None = None
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and the requests by which it is measured."""

    group: str
    name: str
    asks: Sequence[PageRequest]


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one page in milliseconds: percentiles of wall-clock times, and mean CPU times."""

    group: str
    name: str
    p50_ms: float
    p95_ms: float
    max_ms: float
    cpu_ms: float
    database_cpu_ms: float
    queries: int
    size_bytes: int


def run(registrations: int = REGISTRATIONS, attempts: int = ATTEMPTS, keep: Path | None = None) -> dict[str, object]:
    """Fill a database unless it is kept, measure all pages, print them, and return the figures."""
    with ExitStack() as stack:
        kept = nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory(prefix="bench-console-")
        folder = Path(stack.enter_context(kept))
        folder.mkdir(parents=True, exist_ok=True)
        url, _ = stack.enter_context(servers.postgres(folder, **SETTINGS))
        redis_url = stack.enter_context(servers.valkey(folder))
        urls = {"REDIS_URL": redis_url, "WAKU_NODES": stack.enter_context(servers.node())}
        environment = servers.environment(folder, url, LOG_LEVEL="ERROR", API_CALLS_PER_MINUTE="100000", **urls)
        servers.manage("migrate", "--verbosity=0", environment=environment)
        seconds = _fill(url, environment, registrations, attempts)
        sizes = _sizes(url)
        environment |= {"GORUSH_URL": stack.enter_context(servers.gorush())}
        pages: list[dict[str, Any]] = servers.result_of("bench.pages.console", environment=environment)
        size_gib = sum(file.stat().st_size for file in (folder / "postgres").rglob("*") if file.is_file()) / 2**30
    _print(pages)
    return {**sizes, "fill_seconds": seconds, "size_gib": round(size_gib, 1), "target_ms": TARGET_MS, "pages": pages}


def _fill(url: str, environment: dict[str, str], registrations: int, attempts: int) -> float | None:
    """Fill the database and return the seconds that this took, or None when it was full already."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT EXISTS (SELECT FROM registrations_registration)").fetchone()
    if row and row[0]:
        settle = "from embedded.seeding import settle; settle()"
        servers.manage("shell", "--verbosity=0", "-c", settle, environment=environment)
        return None
    started = time.monotonic()
    sizes = [f"--registrations={registrations}", f"--attempts={attempts}"]
    servers.manage("seed_bench", *sizes, environment=environment)
    return round(time.monotonic() - started)


def _sizes(url: str) -> dict[str, int]:
    """Return the sizes of the tables. A kept folder has the sizes of its first run."""
    sizes = "SELECT (SELECT count(*) FROM registrations_registration), (SELECT count(*) FROM notifications_attempt)"
    with psycopg.connect(url) as connection:
        row = connection.execute(sizes).fetchone()
    assert row
    registrations, attempts = row
    return {"registrations": registrations, "attempts": attempts}


def measure() -> list[dict[str, Any]]:
    """Measure the pages. This runs in a process of its own, with Django."""
    import django  # noqa: PLC0415 - the parent needs no Django

    django.setup()
    from bench.pages.console_pages import clients, count_minutes, pages  # noqa: PLC0415 - once Django is set up

    console, api = clients()
    count_minutes()
    only = os.environ.get(ONLY, "")
    chosen = [page for page in pages() if only in f"{page.group}: {page.name}"]
    return [asdict(_measure(api if page.group == "API" else console, page)) for page in chosen]


def _measure(client: Any, page: Page) -> Measured:
    asks = list(islice(cycle(page.asks), WARM_UP + max(REQUESTS, len(page.asks))))
    for ask in asks[:WARM_UP]:
        _send(client, page, ask)
    times: list[float] = []
    counts: list[int] = []
    sizes: list[int] = []
    own, database = psutil.Process(), _backend()
    cpu, database_cpu = servers.cpu_seconds(own), servers.cpu_seconds(database)
    for ask in asks[WARM_UP:]:
        with _counted() as queries:
            started = time.perf_counter()
            size = _send(client, page, ask)
            times.append((time.perf_counter() - started) * 1000)
        counts.append(queries[0])
        sizes.append(size)
    per_request = 1000 / len(times)
    percentiles = quantiles(times, n=100, method="inclusive")
    return Measured(
        page.group,
        page.name,
        round(percentiles[49], 1),
        round(percentiles[94], 1),
        round(max(times), 1),
        round((servers.cpu_seconds(own) - cpu) * per_request, 1),
        round((servers.cpu_seconds(database) - database_cpu) * per_request, 1),
        max(counts),
        max(sizes),
    )


def _send(client: Any, page: Page, ask: PageRequest) -> int:
    send = client.get if ask.data is None else client.post
    headers = {"HX-Request": "true"} if ask.refresh else None
    response = send(ask.url, ask.data, follow=True, headers=headers)
    assert response.status_code == 200, (page.group, page.name, ask.url, response.status_code)
    return len(response.content)


def _backend() -> psutil.Process:
    """Return PostgreSQL's process for the connection of all requests.

    Parallel workers are not its children, but pages should need none.
    """
    from django.db import connection  # noqa: PLC0415 - once Django is set up

    connection.ensure_connection()
    return psutil.Process(connection.connection.info.backend_pid)


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Count the queries of a block."""
    from django.db import connection  # noqa: PLC0415 - once Django is set up

    number = [0]

    def count(execute: Any, *arguments: Any) -> Any:
        number[0] += 1
        return execute(*arguments)

    with connection.execute_wrapper(count):
        yield number


def _print(pages: Sequence[dict[str, Any]]) -> None:
    table = Table(title=f"Console and API (target: p95 ≤ {TARGET_MS} ms)")
    for name in ("page", "p50 ms", "p95 ms", "CPU ms", "database CPU ms", "queries", "KiB"):
        table.add_column(name, justify="left" if name == "page" else "right")
    for page in pages:
        late = page["p95_ms"] > TARGET_MS
        table.add_row(
            f"{page['group']}: {page['name']}",
            f"{page['p50_ms']:.0f}",
            f"{'[red]' if late else ''}{page['p95_ms']:.0f}{' !' if late else ''}",
            f"{page['cpu_ms']:.0f}",
            f"{page['database_cpu_ms']:.0f}",
            f"{page['queries']}",
            f"{page['size_bytes'] / 1024:.0f}",
        )
    late = sum(page["p95_ms"] > TARGET_MS for page in pages)
    Console(width=140).print(table, f"{len(pages)} pages, {late} of them slower than {TARGET_MS} ms")


if __name__ == "__main__":
    print(json.dumps(measure()))
