"""Runner of seeds of the simulation: `python -m tests.simulation FIRST COUNT`, against the database of DATABASE_URL.

Run it with PYTHONHASHSEED=0, so that sets have the same order in every run. It prints a line of figures at the end, and
for a seed that fails the seed, the failure and how to repeat it.
"""

import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections import Counter

import django


def main() -> int:
    """Run the seeds, one after the other."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    if os.environ.get("PYTHONHASHSEED") != "0":
        print("Set PYTHONHASHSEED=0: a seed decides everything but the order of sets.")
        return 2
    django.setup()
    import structlog

    # Coroutines of a killed process are never awaited.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    from tests.simulation.ledger import Broken
    from tests.simulation.world import Simulation

    stopped: list[int] = []  # on SIGTERM, the program ends after the current seed and prints the figures so far
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    counts: Counter[str] = Counter()
    failed: list[int] = []
    started = time.perf_counter()
    with Simulation() as simulation:
        for seed in range(first, first + count):
            if stopped:
                count = seed - first
                break
            try:
                world = simulation.run(seed)
            except (Exception, Broken):  # noqa: BLE001 - the next seeds run all the same
                failed.append(seed)
                traceback.print_exc()
                print(f"Seed {seed} failed. Alone: make simulate SEED={seed}", flush=True)
                continue
            counts += world.ledger.counts
            counts["virtual seconds"] += round(world.agenda.seconds)
            if not (seed - first + 1) % 500:
                print(f"{seed - first + 1:,} seeds, {time.perf_counter() - started:.0f} s", flush=True)
            if os.environ.get("TRACE"):
                print(seed, world.trace.hexdigest()[:16], round(world.agenda.seconds), dict(world.ledger.counts))
    seconds = time.perf_counter() - started
    figures = ", ".join(f"{value:,} {name}" for name, value in sorted(counts.items()))
    print(f"{count:,} seeds from {first} in {seconds:.0f} s: {len(failed)} failed; {figures}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
