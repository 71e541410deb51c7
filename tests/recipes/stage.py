"""Fenced blocks of the documents, and a stage on which bash runs the shell blocks as they stand in the page.

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
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    if "decisions" not in path.parts and path.name != "measurements.md"
)
SHELL = {"sh", "bash", "shell", "console"}
FENCE_OR_HEADING = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```|^#+ ([^\n]*)", re.MULTILINE | re.DOTALL)
REAL = ("bash", "cat", "date", "mkdir", "openssl", "python3", "sh", "touch", "tr")
STAND_INS = (
    *("apt-get", "chown", "curl", "docker", "git", "helm", "install", "kubectl", "make", "manage.py", "pg_basebackup"),
    *("psql", "push-server-manage", "python", "su", "systemctl", "wakunode2"),
)
INSTALLED = (".venv/bin/pre-commit", ".venv/bin/python", ".peers/gorush")
PROGRAMS = {*STAND_INS, *INSTALLED}
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
class Block:
    """A fenced block. Its name is the page, the last heading, and its number below that heading."""

    name: str
    language: str
    text: str


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a page, without the indent of a list."""
    found, heading, numbers = [], "", Counter[str]()
    for part in FENCE_OR_HEADING.finditer(page.read_text(encoding="utf-8")):
        indent, language, text, title = part.groups()
        if title:
            heading = anchor(title)
        else:
            numbers[heading] += 1
            name = f"{page.relative_to(ROOT)}#{heading}/{numbers[heading]}"
            found.append(Block(name, language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)))
    return tuple(found)


def anchor(title: str) -> str:
    """Return the anchor of a heading, as it is where the page is shown."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)", "", title).lower()).replace(" ", "-")


def shell_blocks(page: Path) -> list[Block]:
    """Return those that people paste into a shell."""
    return [block for block in blocks(page) if block.language in SHELL]


def in_sentences(page: Path) -> list[Block]:
    """Return what stands between backticks and calls a program of the stage. A command with "…" is shortened."""
    prose = FENCE_OR_HEADING.sub(lambda part: part[4] or "", page.read_text(encoding="utf-8"))
    texts = [text for text in re.findall(r"`([^`\n]+)`", prose) if "…" not in text]
    commands = dict.fromkeys(text for text in texts if " " in text and text.split()[0] in PROGRAMS)
    return [Block(f"{page.relative_to(ROOT)}: {text}", "sh", f"{text}\n") for text in commands]


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
    calls: tuple[Call, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True)
class Stage:
    """A folder that stands in for the root of a machine, with a checkout in `opt/push-server`."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        return self.root / "opt/push-server"

    def prepare(self) -> None:
        """Make the checkout, the programs, and what the operator has already."""
        for name in GIVEN:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).mkdir() if name.endswith("/") else (self.root / name).touch()
        (programs := self.root / "bin").mkdir()
        for name in REAL:
            found = sys.executable if name == "python3" else f"/usr/bin/{name}"
            (programs / name).symlink_to(found if Path(found).exists() else f"/bin/{name}")
        stand_in = self.root / "stand-in"
        stand_in.write_text(STARTED_BY_SHELL + STAND_IN.read_text(encoding="utf-8"), encoding="utf-8")
        stand_in.chmod(0o755)
        listing = ["git", "ls-files", "--stage"]
        listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        ours = [line.split("\t")[1] for line in listed.splitlines() if line.startswith("100755")]
        for path in [*(programs / name for name in STAND_INS), *(self.checkout / name for name in (*INSTALLED, *ours))]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(stand_in)
        example = "deploy/systemd/environment.example"
        (self.checkout / example).write_bytes((ROOT / example).read_bytes())

    def run(self, block: Block) -> Rehearsal:
        """Run one block in the checkout, until a command fails."""
        (record := self.root / "calls").write_text("", encoding="ascii")
        (self.root / "block").write_text(ABSOLUTE.sub(f"{self.root}/", block.text), encoding="utf-8")
        before = {"PATH": str(self.root / "bin"), "STAGE": str(self.root), **self.environment}
        script = f'set -aeuo pipefail; . "{self.root}/block"; exec "{sys.executable}" -IS "{STAND_IN}" environment'
        bash = ["/bin/bash", "--noprofile", "--norc", "-c", script]
        ended = subprocess.run(
            bash, env=before, cwd=self.checkout, input="", capture_output=True, text=True, check=False, timeout=180
        )
        *calls, last = [{}, *map(json.loads, record.read_text(encoding="utf-8").splitlines())]
        if ended.returncode or "environment" not in last:
            return Rehearsal(block, fault=f"{block.name}: {ended.stderr or last}")
        variables = {name: value for name, value in last["environment"].items() if before.get(name) != value}
        made = (Call(call["program"], tuple(call["arguments"]), call["given"]) for call in calls if call)
        return Rehearsal(block, tuple(made), variables)

    def rehearse(self, page: Path) -> list[Rehearsal]:
        """Run the shell blocks of a page one after the other, each in the checkout."""
        self.prepare()
        return [self.run(block) for block in shell_blocks(page)]
