"""docs/conformance.md names modules and tests that exist, and says something about every requirement."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "conformance.md").read_text()
LEVELS = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}
ROW = re.compile(
    r"^\| (?P<id>[A-Z]+\d+) \| (?P<level>[A-Z ]+) \| (?P<text>[^|]+) "
    r"\| (?P<where>[^|]+) \| (?P<proof>[^|]+) \| (?P<why>[^|]*)\|$",
    re.MULTILINE,
)
ROWS = [match.groupdict() for match in ROW.finditer(TEXT)]
DEVIATIONS = set(re.findall(r"^\| (D\d+) \|", TEXT, re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_requirement_names_modules_and_tests_that_exist(row: dict[str, str]) -> None:
    modules, proofs = _quoted(row["where"]), _quoted(row["proof"])
    assert modules
    assert proofs
    assert row["level"] in LEVELS
    assert [module for module in modules if not (ROOT / module).is_file()] == []
    assert [proof for proof in proofs if not _is_test(proof)] == []
    assert set(re.findall(r"D\d+", row["why"])) <= DEVIATIONS


def test_no_row_is_overlooked_and_no_id_used_twice() -> None:
    """A row with a typo in its form would not be checked at all."""
    lines = [line for line in TEXT.splitlines() if re.match(r"\| (?!D)[A-Z]+\d+ ", line)]
    assert len(ROWS) == len(lines) == len({row["id"] for row in ROWS})
    assert len(ROWS) > 70


def test_every_deviation_belongs_to_a_requirement() -> None:
    assert set(re.findall(r"D\d+", " ".join(row["why"] for row in ROWS))) == DEVIATIONS


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _is_test(node_id: str) -> bool:
    path, *names = node_id.split("::")
    return (ROOT / path).is_file() and "::".join(names) in _tests(path)


@cache
def _tests(path: str) -> frozenset[str]:
    """The tests of a file as pytest names them, without parameters."""
    body = ast.parse((ROOT / path).read_text()).body
    found = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))
