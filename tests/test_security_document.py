"""Contents of docs/security.md and docs/asvs.md: the tests and files they name exist, and the ASVS table is
complete.
"""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from embedded.supervisor.processes import PROJECT

ASVS = (PROJECT / "docs" / "asvs.md").read_text(encoding="utf-8")
TEXT = (PROJECT / "docs" / "security.md").read_text(encoding="utf-8") + ASVS
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))
FILES = sorted(set(re.findall(r"`([\w/]+/[\w.]+\.(?:py|yaml|md))(?:::\w+)?`", TEXT)))
# Number of level 1 and 2 requirements in each section of OWASP ASVS 5.0.0. They come first in each section.
SECTIONS = """
    V1.1 2  V1.2 9  V1.3 11  V1.4 3  V1.5 2  V2.1 3  V2.2 3  V2.3 4  V2.4 1  V3.2 2  V3.3 4  V3.4 6  V3.5 5  V3.7 2
    V4.1 3  V4.2 1  V4.3 2  V4.4 4  V5.1 1  V5.2 3  V5.3 2  V5.4 3  V6.1 3  V6.2 12  V6.3 4  V6.4 4  V6.5 5  V6.6 3
    V6.8 4  V7.1 3  V7.2 4  V7.3 2  V7.4 5  V7.5 2  V7.6 2  V8.1 2  V8.2 3  V8.3 1  V8.4 1  V9.1 3  V9.2 4  V10.1 2
    V10.2 2  V10.3 4  V10.4 11  V10.5 5  V10.6 2  V10.7 3  V11.1 2  V11.2 3  V11.3 3  V11.4 4  V11.5 1  V11.6 1
    V12.1 3  V12.2 2  V12.3 4  V13.1 1  V13.2 5  V13.3 2  V13.4 5  V14.1 2  V14.2 4  V14.3 3  V15.1 3  V15.2 3
    V15.3 7  V16.1 1  V16.2 5  V16.3 4  V16.4 3  V16.5 3  V17.1 1  V17.2 4  V17.3 2
"""
VERDICTS = {"met", "partly", "**gap**", "n.a."}


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def requirements(text: str) -> list[str]:
    """Return the numbers in a range such as "V1.4.1-V1.4.3"."""
    first, _, last = text.partition("-")
    section, start = first.rsplit(".", 1)
    end = last.rsplit(".", 1)[1] if last else start
    return [f"{section}.{number}" for number in range(int(start), int(end) + 1)]


def asvs_rows() -> list[list[str]]:
    return [row.split(" | ") for row in ASVS.splitlines() if row.startswith("| V")]


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_every_named_test_exists(file: str, name: str) -> None:
    assert name in functions(file)


def test_every_named_file_exists() -> None:
    assert len(FILES) > 40
    assert [file for file in FILES if not (PROJECT / file).exists()] == []


def test_every_requirement_has_one_row_and_a_verdict() -> None:
    rows = asvs_rows()
    words = SECTIONS.split()
    sections = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    wanted = [f"{section}.{number}" for section, count in sections.items() for number in range(1, count + 1)]
    assert sorted(n for row in rows for n in requirements(row[0].removeprefix("| "))) == sorted(wanted)
    assert {row[2] for row in rows} <= VERDICTS


def test_the_page_counts_its_verdicts() -> None:
    found: Counter[str] = Counter()
    for row in asvs_rows():
        found[row[2]] += len(requirements(row[0].removeprefix("| ")))
    counted = re.search(
        r"Of (\d+) requirements (\d+) are met, (\d+) partly, (\d+) (?:is a gap|are gaps), and (\d+) do not apply", ASVS
    )
    assert counted
    expected = [found.total(), found["met"], found["partly"], found["**gap**"], found["n.a."]]
    assert list(map(int, counted.groups())) == expected
