"""Finder of docstrings, comments, test names and labels that are read twice: `python -m tests.sentences kit`."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# A clause as a title: the thing comes first, by its name.
CLAUSE = r"(What|How|Who|Whoever|Whatever|That|Those|Such)\b"
# Words that only this project used, and idioms of its authors. A number has a name, and a machine does not tell.
IDIOMS = re.compile(
    r"\b(arsenal|ammunition|bells?|by hand|desks?|errands?|front doors?|hush|lanes?|newcomers?|on duty|parked|patience"
    r"|precedence|set aside|so many|so often|strangers?|tether|told|untold|work(?:ed|s)? off|whoever)\b",
    re.IGNORECASE,
)
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Finding(NamedTuple):
    """One sentence to mend: where it stands, what is wrong with it, and its first words."""

    file: str
    line: int
    fault: str
    text: str


def sources(*folders: str) -> list[str]:
    """List the Python files of the repository, or of folders of it, without generated ones."""
    paths = [path.relative_to(ROOT) for folder in folders or (".",) for path in sorted((ROOT / folder).rglob("*.py"))]
    return [str(path) for path in paths if not any(part.startswith(".") or part == "pb" for part in path.parts)]


def in_docstrings(file: str, text: str) -> Iterator[Finding]:
    """Find docstrings and test names that begin with a clause, docstrings without an end, and idioms in them."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, DEFINITIONS):
            continue
        name, line = getattr(node, "name", ""), getattr(node, "lineno", 1)
        if re.match(f"test_{CLAUSE}".replace(r"\b", "_"), name, re.IGNORECASE):
            yield Finding(file, line, "test name is a clause", name)
        if docstring := ast.get_docstring(node):
            yield from _faults(file, line, docstring)


def _faults(file: str, line: int, docstring: str) -> Iterator[Finding]:
    """Find the faults of one docstring."""
    first = docstring.split("\n\n", maxsplit=1)[0]
    if re.match(CLAUSE, first):
        yield Finding(file, line, "begins with a clause", first[:100])
    if not first.endswith((".", ":", "?", "!")):
        yield Finding(file, line, "ends without a full stop", first[-60:])
    for found in IDIOMS.finditer(docstring):
        yield Finding(file, line, f"says {found.group()!r}", docstring[max(0, found.start() - 40) : found.end() + 40])


def in_comments(file: str, text: str) -> Iterator[Finding]:
    """Find idioms in comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            for found in IDIOMS.finditer(token.string):
                yield Finding(file, token.start[0], f"says {found.group()!r}", token.string[:110])


def in_labels(file: str, text: str) -> Iterator[Finding]:
    """Find texts for people that begin with a clause. A question may: it ends with a question mark."""
    tree = ast.parse(text)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, DEFINITIONS))
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings and _is_clause(node.value):
            yield Finding(file, node.lineno, "label is a clause", str(node.value)[:100])


def _is_clause(value: object) -> bool:
    """Return whether a constant is a text that begins with a clause, and no question."""
    return isinstance(value, str) and bool(re.match(f"{CLAUSE} ", value)) and not value.endswith("?")


def in_headings() -> Iterator[Finding]:
    """Find headings of the console that begin with a clause."""
    for path in sorted((ROOT / "templates").rglob("*.html")):
        for found in re.finditer(rf"<(?:h\d|dt|th|summary)\b[^>]*>({CLAUSE}[^<]*)", path.read_text(encoding="utf-8")):
            yield Finding(str(path.relative_to(ROOT)), 1, "heading is a clause", found.group(1))


def findings(*folders: str) -> Iterator[Finding]:
    """Find every sentence to mend in the repository, or in folders of it."""
    for file in sources(*folders):
        text = (ROOT / file).read_text(encoding="utf-8")
        yield from in_docstrings(file, text)
        yield from in_comments(file, text)
        if "tests" not in Path(file).parts:
            yield from in_labels(file, text)
    yield from in_headings()


if __name__ == "__main__":
    found = list(findings(*sys.argv[1:]))
    lines = [f"{each.file}:{each.line}: {each.fault}: {' '.join(each.text.split())}" for each in found]
    sys.stdout.write("\n".join([*lines, f"{len(found)} to mend\n"]))
