"""Fenced blocks of the documents."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    if "decisions" not in path.parts and path.name != "measurements.md"
)
SHELL = {"sh", "bash", "shell", "console"}
_FENCE = re.compile(r"^( *)```(\w*)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, below its last heading."""

    page: str
    heading: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Return the address of its heading, and its number among the blocks of that heading."""
        return f"{self.page}#{self.heading}/{self.number}"


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a page, without the indent of a list."""
    return tuple(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    heading, numbers, inside = "", count(1), None
    for line in page.read_text(encoding="utf-8").splitlines():
        if fence := _FENCE.match(line):
            if inside is None:
                inside, indent, language = [], len(fence[1]), fence[2]
            else:
                text = "\n".join(each[indent:] for each in inside) + "\n"
                yield Block(str(page.relative_to(ROOT)), heading, next(numbers), language, text)
                inside = None
        elif inside is not None:
            inside.append(line)
        elif line.startswith("#"):
            heading, numbers = anchor(line.lstrip("# ")), count(1)


def anchor(title: str) -> str:
    """Return the anchor of a heading, as it is where the page is shown."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)", "", title).lower()).replace(" ", "-")


def shell_blocks(page: Path) -> list[Block]:
    """Return those that people paste into a shell."""
    return [block for block in blocks(page) if block.language in SHELL]


def commands_in_sentences(page: Path, programs: Iterable[str]) -> list[Block]:
    """Return what stands between backticks and calls one of these programs. A command with "…" is shortened."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    texts = [text for text in re.findall(r"`([^`\n]+)`", prose) if "…" not in text]
    commands = dict.fromkeys(text for text in texts if " " in text and text.split()[0] in programs)
    return [Block(str(page.relative_to(ROOT)), "", number, "sh", f"{text}\n") for number, text in enumerate(commands)]
