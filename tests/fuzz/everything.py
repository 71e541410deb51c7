"""Fuzzer of all targets, one after the other, each for its share of the time or of the inputs. It prints the figures.

`python -m tests.fuzz.everything --seconds 120`, or `--inputs 10000000`.
"""

import argparse
import os
import re
import subprocess
import sys
import time

FIGURE = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
COVERED = re.compile(r"cov: (\d+)")


def targets() -> list[str]:
    listed = subprocess.run([sys.executable, "-m", "tests.fuzz"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def fuzz(target: str, *options: str) -> tuple[int, int, str]:
    """Return the number of inputs, the number of code places that they reached, and the output of a failure."""
    command = [sys.executable, "-m", "tests.fuzz", target, *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    output = done.stdout + done.stderr
    inputs = sum(map(int, FIGURE.findall(output)))
    return inputs, max(map(int, COVERED.findall(output)), default=0), output[-4000:] if done.returncode else ""


def main() -> int:
    """Fuzz one target after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=0)
    wanted = parser.parse_args()
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("Not run: fuzzing. atheris has wheels for x86-64 only (ARM64: the corpus is part of `make test`).")
        return int(os.environ.get("REQUIRE_ALL") == "1")
    names = targets()
    limit = f"-max_total_time={max(wanted.seconds // len(names), 1)}"
    if wanted.inputs:
        limit = f"-runs={-(-wanted.inputs // len(names))}"
    total, failed = 0, []
    for name in names:
        started = time.monotonic()
        inputs, covered, trouble = fuzz(name, limit)
        total += inputs
        seconds = time.monotonic() - started
        print(f"{name:<14}{inputs:>12,} inputs{seconds:>8.0f} s{covered:>8} places reached", flush=True)
        if trouble:
            failed.append(name)
            print(trouble)
    print(f"{total:,} inputs, {len(failed)} targets failed {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
