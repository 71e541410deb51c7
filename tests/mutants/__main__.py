"""Mutation testing of the pure decisions and of the codec: `make mutants`, or `make mutants ARGS=<file>`.

mutmut changes one expression of a function at a time and runs the tests that call this function: those of `make test`
that need neither PostgreSQL nor another process. A mutant that no test notices has survived. The score is the share of
the others. Each part runs in a copy of the checkout, with the same random inputs in every run (profile `mutants` in
tests/rig/budget.py), so that the scores of two commits are comparable. mutmut has no mutants of constants and tables
of a module, of decorated methods, and of the calls `len(...)` and `isinstance(...)`.

`survivors.txt` names the accepted survivors, with a reason. The command fails for any other.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ACCEPTED = HERE / "survivors.txt"
MUTMUT = Path(sys.executable).with_name("mutmut")
# Timeout of a mutant: this many times the duration of its tests without it, plus one second. The machine may be busy.
TIMES = 15.0
PACKAGES = ["kit", "notifications", "pushserver", "registrations", "spark_reports", "waku_bridge", "xmpp_bridge"]
# This test counts calls of functions, and mutmut adds one around each function.
COUNTS_CALLS = "waku_bridge/codec/tests/test_cost.py::test_no_payload_costs_more_than_five_honest_requests"
# Garbage collection after each mutant would take a third of the time.
PLUGINS = ["-p", "tests.mutants.witness", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
ENVIRONMENT = {"HYPOTHESIS_PROFILE": "mutants", "PYTHONHASHSEED": "0"}
# Results that mutmut writes for a mutant: pytest's exit code (3: an internal error), the signal that ended the tests
# (11: a fault in a library, 9 and 24: a timeout), or that no test calls the function. Any other value is no verdict.
KILLED, SURVIVED, TIMEOUTS = {1, 3, -11}, {0, 33}, {-9, -24, 24, 36, 152}


@dataclass(frozen=True)
class Part:
    """Modules that are mutated together, and the tests that may notice the mutants."""

    name: str
    modules: Sequence[str]
    tests: Sequence[str]
    without: Sequence[str] = ()


CODEC = {"tests": ["waku_bridge/codec/tests"]}
PARTS = [
    Part("waku_bridge/codec, messages", ["waku_bridge/codec/bodies.py", "waku_bridge/codec/envelope.py"], **CODEC),
    Part(
        "waku_bridge/codec, the rest",
        ["waku_bridge/codec/*.py"],
        without=["waku_bridge/codec/bodies.py", "waku_bridge/codec/envelope.py"],
        **CODEC,
    ),
    Part("notifications/rules/policy.py", ["notifications/rules/policy.py"], ["notifications/tests/test_policy.py"]),
    Part("registrations/rules.py", ["registrations/rules.py"], ["registrations/tests/test_rules.py"]),
    Part("xmpp_bridge/rules/decisions.py", ["xmpp_bridge/rules/decisions.py"], ["xmpp_bridge/tests/test_rules.py"]),
]


@dataclass(frozen=True)
class Result:
    """Results of the mutants of one part. ``exit_codes`` are pytest's, by mutmut's names of the mutants."""

    part: Part
    exit_codes: dict[str, int | None]
    differences: dict[str, str]
    seconds: float

    def names(self, exit_codes: Collection[int]) -> list[str]:
        return sorted(name for name, code in self.exit_codes.items() if code in exit_codes)


class RunFailedError(Exception):
    """The tests of a part failed without any mutant, or a server did not start."""


def main() -> int:
    """Run the parts, print their scores, and compare the survivors with the accepted ones."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("parts", nargs="*", help="beginnings of part names; all parts without any")
    parser.add_argument("--minutes", type=float, default=60, help="time limit of a part; later mutants are not tried")
    parser.add_argument("--processes", type=int, default=2, help="parts that run at the same time")
    wanted = parser.parse_args()
    parts = [part for part in PARTS if not wanted.parts or part.name.startswith(tuple(wanted.parts))]
    if not parts:
        parser.error(
            f"no part has a name that begins like that; the parts are: {', '.join(part.name for part in PARTS)}"
        )
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(wanted.processes) as pool:
        try:
            results = list(pool.map(lambda part: run(part, wanted.minutes * 60, running), parts))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                stop(process)
    print_table(results)
    return compare(results)


def run(part: Part, seconds: float, running: list[subprocess.Popen[bytes]]) -> Result:
    """Run mutmut on one part in a copy of the checkout that is removed afterwards."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "screenshots", "staticfiles"))
        configure(part, copy)
        run_mutmut(part, copy, seconds, running)
        if broken := (copy / "broken.txt").read_text():
            raise RunFailedError(f"{part.name}: servers of the tests did not start:\n{broken}")
        exit_codes = read_exit_codes(copy)
        differences = {name: difference(copy, name) for name, code in exit_codes.items() if code in SURVIVED}
    return Result(part, exit_codes, differences, time.monotonic() - started)


def configure(part: Part, copy: Path) -> None:
    """Write the settings of mutmut, which it reads from pyproject.toml only."""
    settings = {
        "source_paths": PACKAGES,
        "only_mutate": part.modules,
        "do_not_mutate": ["*/pb/*", "*/tests/*", *part.without],
        "also_copy": ["conftest.py", "embedded", "manage.py", "templates", "docs", "VERSION"],
        "pytest_add_cli_args": [*PLUGINS, f"--deselect={COUNTS_CALLS}"],
        "pytest_add_cli_args_test_selection": part.tests,
        "timeout_multiplier": TIMES,
        "track_dependencies": False,
        # each mutant runs in a fork of a process that has collected the tests and run none
        "process_isolation": "forkserver",
    }
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    with (copy / "pyproject.toml").open("a") as project:
        project.write("\n[tool.mutmut]\n" + "".join(lines))
    (copy / "broken.txt").touch()


def run_mutmut(part: Part, copy: Path, seconds: float, running: list[subprocess.Popen[bytes]]) -> None:
    """Run mutmut to its end, or for at most ``seconds``, as it writes each result at once.

    Its children run one after the other, because they share the port of Valkey.
    """
    command = [MUTMUT, "run", "--max-children", "1"]
    own = {
        "BROKEN": str(copy / "broken.txt"),
        "TMPDIR": str(copy.parent),  # files that a stopped test leaves are removed with the copy
        # A process of a run does not remove the folder of the run, which the forks of the first one use after its end.
        "PYTEST_XDIST_WORKER": "mutants",
        "TESTS_RUN_DIR": str(copy.parent),
    }
    with (copy / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=copy, env=os.environ | ENVIRONMENT | own, stdout=log, stderr=log, start_new_session=True
        )
        running.append(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        stop(process)
    if "Running mutation testing" not in (text := (copy / "log.txt").read_text()):
        raise RunFailedError(f"{part.name}: the tests fail without a mutant:\n{text[-4000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop mutmut and its remaining children. The guard of the tests stops their servers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)
    process.wait()


def read_exit_codes(copy: Path) -> dict[str, int | None]:
    files = sorted((copy / "mutants").rglob("*.py.meta"))
    return {name: code for file in files for name, code in json.loads(file.read_text())["exit_code_by_key"].items()}


def difference(copy: Path, name: str) -> str:
    """Return the lines that a mutant removes and adds."""
    shown = subprocess.run([MUTMUT, "show", name], cwd=copy, capture_output=True, text=True, check=True).stdout
    changed = re.findall(r"^([-+])(?!\1\1 )\s*(.*)", shown, re.MULTILINE)
    return "  ".join(f"{sign} {line}" for sign, line in changed)


def print_table(results: Iterable[Result]) -> None:
    print(f"{'':<30}{'mutants':>8}{'tried':>7}{'killed':>8}{'timeout':>9}{'survived':>10}{'score':>9}{'seconds':>9}")
    for result in results:
        killed, timeouts, survived = (len(result.names(codes)) for codes in (KILLED, TIMEOUTS, SURVIVED))
        tried = killed + timeouts + survived
        score = (killed + timeouts) / max(tried, 1)
        print(
            f"{result.part.name:<30}{len(result.exit_codes):>8}{tried:>7}{killed:>8}{timeouts:>9}{survived:>10}"
            f"{score:>9.1%}{result.seconds:>9.0f}"
        )


def compare(results: Iterable[Result]) -> int:
    """Print the survivors that are not accepted, and the accepted mutants that no longer survive. Return 1 if there are
    any of the former, or if some mutants were not tried.
    """
    accepted = {line.split()[0] for line in ACCEPTED.read_text().splitlines() if line and not line.startswith("#")}
    codes = {name: code for result in results for name, code in result.exit_codes.items()}
    differences = {name: changed for result in results for name, changed in result.differences.items()}
    untried = [name for name, code in codes.items() if code not in KILLED | SURVIVED | TIMEOUTS]
    new = sorted(differences.keys() - accepted)
    for name in new:
        print(f"survived: {name}  {differences[name]}")
    for name in sorted(accepted & codes.keys() - differences.keys() - set(untried)):
        print(f"no longer survives: {name}")
    print(f"{len(new)} survivors that {ACCEPTED.relative_to(ROOT)} does not name, {len(untried)} mutants not tried")
    return 1 if new or untried else 0


if __name__ == "__main__":
    sys.exit(main())
