"""Benchmark of one request with a thousand, a hundred thousand and a million registrations in the database.

It is the request of ``bench.request.path``, on a database with this number of others, and with as many attempts of
earlier requests. Each size has a process and a PostgreSQL of its own. Filling the largest one takes some minutes. Run
alone with ``python -m bench scale``.
"""

import json
import sys

from rich.console import Console
from rich.table import Table

from bench.request import path
from bench.running import servers

SIZES = (1_000, 100_000, 1_000_000)
ROUNDS = 4
RATIO_TARGET = 1.2
# The made-up history has open ends, which workers would process during the measurement.
END_WHAT_IS_OPEN = (
    """
    UPDATE waku_bridge_inboundenvelope SET state = 'dropped', ended_on = now()
    WHERE state IN ('received', 'pending_key')
    """,
    """
    UPDATE waku_bridge_outboundreply SET state = 'unconfirmed', ended_on = now()
    WHERE state IN ('pending', 'published')
    """,
    "UPDATE notifications_attempt SET outcome = 'ambiguous' WHERE outcome IS NULL OR outcome = ''",
    """
    UPDATE notifications_notification
    SET state = 'withdrawn', finished_at = now(), ended_on = now(), next_attempt_at = NULL, lease_until = NULL
    WHERE finished_at IS NULL
    """,
    "UPDATE notifications_notificationrequest SET state = 'answered', ended_on = now() WHERE state = 'waiting'",
    "DELETE FROM notifications_halt",
)


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    # Each in a new process, because Django is set up for one database.
    total_ms: dict[int, float] = {size: servers.result_of("bench.whole.scale", size) for size in SIZES}
    ratios = {size: total_ms[size] / total_ms[SIZES[0]] for size in SIZES}
    table = Table(title="One request, inbox → gorush → reply, by the number of registrations")
    for heading in ("registrations", "CPU time, ms", "ratio"):
        table.add_column(heading, justify="right")
    for size in SIZES:
        table.add_row(f"{size:,}", f"{total_ms[size]:.3f}", f"{ratios[size]:.2f} (target {RATIO_TARGET})")
    Console().print(table)
    return {"total_ms": total_ms, "ratios": ratios}


def _measure(size: int) -> float:
    """Return the CPU milliseconds of one request, as the sum of the minima of its parts."""
    with path.servers_of_one_process() as postgres:
        _fill(size)
        return sum(path.minimum_of(ROUNDS, postgres).values())


def _fill(size: int) -> None:
    from django.db import connection  # noqa: PLC0415 - once Django is set up

    from embedded import seeding  # noqa: PLC0415

    seeding.fill(size, size, lambda _: None)
    with connection.cursor() as cursor:
        for statement in END_WHAT_IS_OPEN:
            cursor.execute(statement)
    seeding.settle()


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
