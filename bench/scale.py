"""Benchmark of one request with a thousand, a hundred thousand and a million registrations in the database.

It is the request of ``bench.path``, on a database with this number of others, and with as many attempts of earlier
requests. Each size has a process and a PostgreSQL of its own. Filling the largest one takes some minutes. One size is
measured alone with ``python -m bench.scale 10000000``.
"""

import sys

from django.db import connection

from bench.running import servers
from bench.running.tables import show

SIZES = (1_000, 100_000, 1_000_000)
ROUNDS = 4
RATIO_TARGET = 1.2
# The made-up history has open ends, which workers would process during the measurement.
END_WHAT_IS_OPEN = """
    DELETE FROM waku_bridge_openenvelope;
    DELETE FROM waku_bridge_openreply;
    DELETE FROM notifications_opennotification;
    DELETE FROM notifications_openrequest;
    DELETE FROM notifications_halt
"""


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    total_ms = {size: servers.in_own_process(_measure, size) for size in SIZES}
    ratios = {size: value / total_ms[SIZES[0]] for size, value in total_ms.items()}
    rows = {f"{size:,}": (total_ms[size], ratios[size]) for size in SIZES}
    title = f"One request, inbox → gorush → reply, by the number of registrations (target: {RATIO_TARGET} times)"
    show(title, ("registrations", "CPU time, ms", "ratio"), rows, digits=3)
    return {"total_ms": total_ms, "ratios": ratios}


def _measure(size: int) -> float:
    """Return the CPU milliseconds of one request, as the sum of the minima of its parts."""
    with servers.around_django() as around:
        from bench import path  # noqa: PLC0415 - it imports models, once Django is set up
        from embedded.management.commands import seed_bench  # noqa: PLC0415 - as above

        seed_bench.fill(size, size, lambda _: None)
        with connection.cursor() as cursor:
            cursor.execute(END_WHAT_IS_OPEN)
        seed_bench.settle()
        return sum(path.minimum_of(ROUNDS, around.postgres).values())


if __name__ == "__main__":
    print(_measure(int(sys.argv[1])))
