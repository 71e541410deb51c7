"""Page docs/conformance.md, made from `conformance.toml` and from the markers of the tests that prove a requirement.

A test names what it proves: `@pytest.mark.requirement("R5", "A2")`. The source of a test is read, and no test imported.
`python -m tests.conformance` writes the page.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/conformance.md"
DATA = Path(__file__).with_name("conformance.toml")
MARKER = "requirement"
TABLE = "| id, level | requirement, deviation | proof |\n| --- | --- | --- |"


@dataclass(frozen=True, slots=True)
class Proof:
    """A test and the ids of the requirements that it proves. ``test`` is its node id, without parameters."""

    test: str
    requirements: tuple[str, ...]


def proofs(root: Path = ROOT) -> list[Proof]:
    """Return the marked tests below a folder, by file and in the order of the file."""
    return [proof for path in _test_files(root) for proof in proofs_of(path.read_text("utf-8"), path.relative_to(root))]


def _test_files(root: Path) -> list[Path]:
    """Return the test modules, without those of installed packages."""
    return sorted(path for path in root.glob("[!.]*/**/test_*.py") if "node_modules" not in path.parts)


def proofs_of(source: str, file: Path) -> Iterator[Proof]:
    """Yield the marked tests of one file."""
    if f"mark.{MARKER}" not in source:
        return
    for node in ast.parse(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        inside = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and (ids := tuple(_ids_of(member))):
                yield Proof(f"{file}::{inside}{member.name}", ids)


def _ids_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{MARKER}":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def data(path: Path = DATA) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def requirements(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the requirements of all sections."""
    return [requirement for section in known["section"] for requirement in section.get("requirement", ())]


def page(known: Mapping[str, Any], proven: Iterable[Proof]) -> str:
    """Return the whole page in Markdown."""
    tests: dict[str, list[str]] = {}
    for proof in proven:
        for requirement in proof.requirements:
            tests.setdefault(requirement, []).append(proof.test)
    parts = ["# Conformance", known["introduction"]]
    for section in known["section"]:
        rows = [_row(requirement, tests) for requirement in section.get("requirement", ())]
        parts += [f"## {section['title']}", section.get("text", ""), "\n".join([TABLE, *rows]) if rows else ""]
    parts += ["## Deviations", known["deviations"]["text"], _table(known["deviations"]["table"])]
    parts += ["## Not ours", _table(known["not_ours"], "| requirement | whose |")]
    return "\n\n".join(filter(None, map(str.strip, parts))) + "\n"


def _row(requirement: Mapping[str, Any], tests: Mapping[str, list[str]]) -> str:
    proof = ", ".join(f"`{test}`" for test in tests.get(requirement["id"], ()))
    deviation = f" ({requirement['deviation']})" if "deviation" in requirement else ""
    return f"| {requirement['id']} {requirement['level']} | {requirement['text']}{deviation} | {proof} |"


def _table(rows: Mapping[str, str], head: str = "| | |") -> str:
    return "\n".join([head, "| --- | --- |", *(f"| {first} | {second} |" for first, second in rows.items())])


if __name__ == "__main__":
    PAGE.write_text(page(data(), proofs()), encoding="utf-8")
