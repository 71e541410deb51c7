"""Mutation testing of the pure decisions and of the codec: `make mutants`, or `make mutants ARGS=<file>`.

mutmut changes one expression of a function at a time and runs the tests that call this function: those of `make test`
that need neither PostgreSQL nor another process. A mutant that no test notices has survived. The score is the share of
the others. Each part runs in a copy of the checkout, with the same random inputs in every run (profile `mutants` in
tests/rig/budget.py), so that the scores of two commits are comparable. mutmut has no mutants of constants and tables
of a module, of decorated methods, and of the calls `len(...)` and `isinstance(...)`.

`survivors.txt` names the accepted survivors, with a reason. The command fails for any other.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MUTMUT = Path(sys.executable).with_name("mutmut")
# Modules that are mutated together, those of them that are not, and the tests that may notice the mutants.
MESSAGES = ["waku_bridge/codec/wire.py", "waku_bridge/codec/envelope.py"]
PARTS = {
    "waku_bridge/codec, messages": (MESSAGES, [], "waku_bridge/codec/tests"),
    "waku_bridge/codec, the rest": (
        ["waku_bridge/codec/*.py"],
        MESSAGES,
        "waku_bridge/codec/tests",
    ),
    "notifications/policy.py": (["notifications/policy.py"], [], "notifications/tests/test_policy.py"),
    "registrations/rules.py": (["registrations/rules.py"], [], "registrations/tests/test_rules.py"),
    "xmpp_bridge/rules.py": (["xmpp_bridge/rules.py"], [], "xmpp_bridge/tests/test_rules.py"),
}
# This test counts calls of functions, and mutmut adds one around each function.
COUNTS_CALLS = "waku_bridge/codec/tests/test_cost.py::test_no_payload_costs_more_than_five_honest_requests"
# Garbage collection after each mutant would take a third of the time.
PLUGINS = ["-p", "tests.mutants.__main__", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
SETTINGS = {
    "source_paths": [
        "kit",
        "notifications",
        "pushserver",
        "registrations",
        "spark_reports",
        "waku_bridge",
        "xmpp_bridge",
    ],
    "also_copy": ["conftest.py", "embedded", "manage.py", "templates", "docs", "VERSION"],
    "pytest_add_cli_args": [*PLUGINS, f"--deselect={COUNTS_CALLS}"],
    # of a mutant: this many times the duration of its tests without it, plus one second, as the machine may be busy
    "timeout_multiplier": 15.0,
    "track_dependencies": False,
    # each mutant runs in a fork of a process that has collected the tests and run none
    "process_isolation": "forkserver",
}
# What mutmut says of a mutant. A fault in a library ends the tests as well; no test may call the function at all.
CAUGHT, SURVIVED = {"killed", "timeout", "segfault"}, {"survived", "no tests"}


def run(part: str) -> tuple[dict[str, str], dict[str, str]]:
    """Mutate one part in a copy of the checkout. Return the status of each mutant, and what the survivors change."""
    modules, without, tests = PARTS[part]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "screenshots", "staticfiles"))
        own = {"only_mutate": modules, "do_not_mutate": ["*/pb/*", "*/tests/*", *without]}
        lines = SETTINGS | own | {"pytest_add_cli_args_test_selection": [tests]}
        with (copy / "pyproject.toml").open("a") as project:  # mutmut reads nothing else
            project.write(
                "\n[tool.mutmut]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
            )
        (broken := Path(folder) / "broken.txt").touch()
        # A process of a run does not remove the folder of the run, which the forks of the first one use after its end.
        of_run = {"PYTEST_XDIST_WORKER": "mutants", "TESTS_RUN_DIR": folder, "TMPDIR": folder, "BROKEN": str(broken)}
        environment = os.environ | of_run | {"HYPOTHESIS_PROFILE": "mutants", "PYTHONHASHSEED": "0"}

        def mutmut(*arguments: str) -> str:
            ended = subprocess.run(
                [MUTMUT, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
            )
            if ended.returncode or broken.read_text():
                sys.exit(f"{part}: no figures: {broken.read_text()}{(ended.stdout + ended.stderr)[-4000:]}")
            return ended.stdout

        mutmut("run", "--max-children", "1")  # its children share the port of Valkey
        found = dict(re.findall(r"^ +(\S+): (.+)$", mutmut("results", "--all", "true"), re.MULTILINE))
        changes = {
            name: "  ".join(map(" ".join, re.findall(r"^([-+])(?!\1\1 )\s*(.*)", mutmut("show", name), re.MULTILINE)))
            for name, status in found.items()
            if status in SURVIVED
        }
    caught = sum(status in CAUGHT for status in found.values())
    figures = f"{len(found):>8}{caught:>8}{len(changes):>10}{caught / max(caught + len(changes), 1):>9.1%}"
    print(f"{part:<30}{figures}{time.monotonic() - started:>9.0f}", flush=True)
    return found, changes


def main() -> int:
    """Run the parts, print their scores, and compare the survivors with the accepted ones."""
    parts = [part for part in PARTS if not sys.argv[1:] or part.startswith(tuple(sys.argv[1:]))]
    print(f"{'':<30}{'mutants':>8}{'caught':>8}{'survived':>10}{'score':>9}{'seconds':>9}", flush=True)
    found: dict[str, str] = {}
    changes: dict[str, str] = {}
    with ThreadPoolExecutor(2) as pool:
        for of_part in pool.map(run, parts):
            found |= of_part[0]
            changes |= of_part[1]
    lines = (HERE / "survivors.txt").read_text().splitlines()
    accepted = {line.split()[0] for line in lines if line and not line.startswith("#")}
    untried = {name for name, status in found.items() if status not in CAUGHT | SURVIVED}
    for name in sorted(changes.keys() - accepted):
        print(f"survived: {name}  {changes[name]}")
    for name in sorted(accepted & found.keys() - changes.keys() - untried):
        print(f"no longer survives: {name}")
    print(f"{len(changes.keys() - accepted)} survivors that survivors.txt does not name, {len(untried)} not tried")
    return int(not found or bool(untried or changes.keys() - accepted))


def pytest_runtest_logreport(report: Any) -> None:
    """Record, as a plugin of the tests, that servers of conftest.py did not start: every mutant would seem caught."""
    if report.failed and report.when == "setup" and "conftest.py" in report.longreprtext:
        with Path(os.environ["BROKEN"]).open("a") as broken:
            broken.write(f"{os.environ.get('MUTANT_UNDER_TEST')} {report.nodeid}\n{report.longreprtext}\n")


if __name__ == "__main__":
    sys.exit(main())
