"""A stage on which bash runs the shell blocks of the documents as they stand in the page.

No program of the stage reaches the machine. Those that change something (docker, systemctl, apt-get, make, the scripts
of this repository) are stand-ins that record how they were called. Those that only print (openssl, cat, date) are the
real ones. Absolute paths lead into a folder of the test. A program without a stand-in is not found, as a misspelled one
is not.
"""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.recipes.blocks import ROOT, Block, shell_blocks

REAL = ("bash", "cat", "date", "mkdir", "openssl", "python3", "sh", "touch", "tr")
STAND_INS = (
    *("apt-get", "chown", "curl", "docker", "git", "helm", "install", "kubectl", "make", "manage.py", "pg_basebackup"),
    *("psql", "push-server-manage", "python", "su", "systemctl", "wakunode2"),
)
INSTALLED = (".venv/bin/pre-commit", ".venv/bin/python", ".peers/gorush")
# What recipes find on the machine: files of the operator, and of Debian's packages.
GIVEN = ("path/of/apns_key.p8", "path/of/fcm_key.json", "etc/redis/redis.conf", "mnt/")
ABSOLUTE = re.compile(r"(?<![\w.:/}*-])/(?=(?:etc|mnt|opt|path|run|srv|usr|var)/)")
# To the shell these lines are a command, to Python a text: the path of the interpreter may hold blanks.
STARTED_BY_SHELL = f"""#!/bin/sh
''':'
exec {shlex.quote(sys.executable)} -IS "$0" "$@"
'''
"""
STAND_IN = Path(__file__).with_name("stand_in.py")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a stand-in: the program below the checkout or on the PATH, what followed, and its input."""

    program: str
    arguments: tuple[str, ...]
    given: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Result of one block on the stage: its calls, and the variables that it set."""

    block: Block
    calls: tuple[Call, ...]
    variables: dict[str, str]
    fault: str = ""


@cache
def programs_of_the_repository() -> tuple[str, ...]:
    """Return the files of the repository that can be run."""
    command = ["git", "ls-files", "--stage"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(line.split("\t")[1] for line in listed.splitlines() if line.startswith("100755"))


@dataclass(frozen=True)
class Stage:
    """A folder that stands in for the root of a machine, with a checkout in `opt/push-server`."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        return self.root / "opt/push-server"

    @property
    def _programs(self) -> Path:
        return self.root / "bin"

    @property
    def _calls(self) -> Path:
        return self.root / "calls"

    def prepare(self) -> None:
        """Make the checkout, the programs, and what the operator has already."""
        for name in GIVEN:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).mkdir() if name.endswith("/") else (self.root / name).touch()
        self._programs.mkdir()
        for name in REAL:
            found = sys.executable if name == "python3" else f"/usr/bin/{name}"
            (self._programs / name).symlink_to(found if Path(found).exists() else f"/bin/{name}")
        stand_in = self.root / "stand-in"
        stand_in.write_text(STARTED_BY_SHELL + STAND_IN.read_text(encoding="utf-8"), encoding="utf-8")
        stand_in.chmod(0o755)
        for path in [self._programs / name for name in STAND_INS] + [self.checkout / name for name in INSTALLED]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(stand_in)
        for name in programs_of_the_repository():
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkout / name).symlink_to(stand_in)
        example = "deploy/systemd/environment.example"
        (self.checkout / example).write_bytes((ROOT / example).read_bytes())

    def run(self, block: Block) -> Rehearsal:
        """Run one block in the checkout, until a command fails."""
        self._calls.write_text("", encoding="ascii")
        (self.root / "block").write_text(ABSOLUTE.sub(f"{self.root}/", block.text), encoding="utf-8")
        before = {"PATH": str(self._programs), "STAGE": str(self.root), **self.environment}
        script = f'set -aeuo pipefail; . "{self.root}/block"; exec "{sys.executable}" -IS "{STAND_IN}" environment'
        ended = subprocess.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", script],
            env=before,
            cwd=self.checkout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        *calls, last = [{}, *map(json.loads, self._calls.read_text(encoding="utf-8").splitlines())]
        if ended.returncode or "environment" not in last:
            return Rehearsal(block, (), {}, f"{block.name}: {ended.stderr or last}")
        variables = {name: value for name, value in last["environment"].items() if before.get(name) != value}
        return Rehearsal(block, tuple(_call(call) for call in calls if call), variables)


def _call(recorded: dict[str, Any]) -> Call:
    return Call(recorded["program"], tuple(recorded["arguments"]), recorded["given"])


def rehearse(page: Path, stage: Stage) -> list[Rehearsal]:
    """Run the shell blocks of a page one after the other, each in the checkout."""
    stage.prepare()
    return [stage.run(block) for block in shell_blocks(page)]
