"""Documents: what they name exists, pages made from the code are as the code is, and none has too many words."""

import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands

from pushserver.api.tests import test_api
from pushserver.management.commands.reference import PAGES
from pushserver.tests import test_console_login
from tests import conformance, figures
from tests.limits import test_kept, test_waku, test_xmpp
from tests.limits.page import NUMBERS, PAGE, ROWS
from tests.recipes.stage import anchor
from waku_bridge.inbox.tests import test_remains
from waku_bridge.reading.tests import test_dead_letters

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
PARTS = (
    "bench|deploy|docs|embedded|kit|notifications|proto|pushserver|registrations|requirements|spark_reports|templates"
)
A_FILE = re.compile(rf"(?<![\w/.~-])(?:{PARTS}|tests|waku_bridge|xmpp_bridge)/[\w./-]*\w")
# Made by a command, or given by an operator.
MADE = ("bench/results",)
LINK = re.compile(r"\]\(([^)\s]*)\)")
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Variables of the shell, of other programs, and of compose.yaml and the Makefile.
OF_OTHERS = re.compile(
    r"(PG|GIT_|PIP_|UV_|SSL_CERT_|NODE_|AWS_|COMPOSE_|GORUSH_(IOS|ANDROID|CORE|STAT|LOG|GRPC|FEEDBACK|QUEUE)_)\w*|LC_ALL"
)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def headings(path: Path) -> frozenset[str]:
    """Return the anchors of a page, as they are made of its headings where it is shown."""
    prose = FENCED.sub("", text_of(path))
    return frozenset(map(anchor, re.findall(r"^#+ (.*)$", prose, re.MULTILINE)))


def commands(path: Path) -> Iterator[str]:
    """Yield each fenced block, and what stands between backticks."""
    text = text_of(path)
    for language, block in FENCED.findall(text):
        if language in {"", "sh", "bash", "shell", "console"}:
            yield block
    yield from re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def lost_links(path: Path) -> Iterator[str]:
    """Yield the links that lead to no page or heading."""
    for target in LINK.findall(FENCED.sub("", text_of(path))):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            page = (path.parent / file).resolve() if file else path
            if not page.exists() or (anchor and page.suffix == ".md" and anchor not in headings(page)):
                yield target


def unknown_commands(path: Path) -> set[str]:
    """Return the commands of `manage.py` and the targets of make that do not exist."""
    made = set(re.findall(r"^([a-z][\w-]*):", text_of(ROOT / "Makefile"), re.MULTILINE))
    texts = list(commands(path))
    named = {name for text in texts for name in re.findall(r"manage(?:\.py| ) ?([a-z][a-z_]+)\b", text)}
    targets = {name for text in texts for name in re.findall(r"(?:^|\n|&& |; |\$ )make ([a-z][\w-]*)", text)}
    return (named - get_commands().keys()) | (targets - made)


def missing_files(path: Path) -> set[str]:
    if path.name == "CHANGELOG.md":
        return set()  # it tells what was, too
    named = {name for text in commands(path) for name in A_FILE.findall(text)}
    return {name for name in named if not ((ROOT / name).exists() or "NAME" in name or name.startswith(MADE))}


def missing_tests(path: Path) -> set[tuple[str, str]]:
    named = set(re.findall(r"`([\w/]+\.py)::(?:\w+::)?(\w+)`", text_of(path)))
    return {(file, name) for file, name in named if f"def {name}(" not in text_of(ROOT / file)}


def unread_variables(path: Path) -> set[str]:
    """Return the variables that a command sets and nothing reads."""
    named = {name for text in commands(path) for name in re.findall(r"(?<![\w-])([A-Z][A-Z0-9]*_[A-Z0-9_]+)=", text)}
    return {name for name in named if name.removesuffix("_FILE") not in variables() and not OF_OTHERS.match(name)}


@cache
def variables() -> frozenset[str]:
    """Return every word of the code that may be the name of a variable."""
    sources = [ROOT / "pushserver" / "settings.py", ROOT / "compose.yaml", ROOT / "Makefile", ROOT / "conftest.py"]
    sources += [*(ROOT / "requirements").glob("*.sh"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "deploy").rglob("*")]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in sources if file.is_file()]
    return frozenset(re.findall(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+", "\n".join(texts)))


def broken_code(path: Path) -> list[str]:
    """Return the lines with a fence beside other text, or with code that ends in the next one.

    A paragraph was wrapped over them. They would be read wrongly, and followed by no test of recipes.
    """
    lines = (line for line in FENCED.sub("", text_of(path)).splitlines() if not re.fullmatch(r" *```\w*", line))
    return [line for line in lines if "```" in line or line.count("`") % 2]


CHECKS = (broken_code, lost_links, unknown_commands, missing_files, missing_tests, unread_variables)


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_each_link_command_file_test_and_variable_that_a_document_names_exists(path: Path) -> None:
    assert {check.__name__: wrong for check in CHECKS if (wrong := [*check(path)])} == {}


# Pages that are made from the code ------------------------------------------------------------------------------------
MADE_PAGES: dict[str, Callable[[], str]] = {
    "conformance.md": lambda: conformance.page(REQUIREMENTS, PROOFS),
    **{f"{name}.md": page for name, page in PAGES.items()},
    "figures.md": figures.page,
}
REQUIREMENTS, PROOFS = conformance.data(), conformance.proofs()
PROVEN = {each for proof in PROOFS for each in proof.requirements}


@pytest.mark.parametrize(("name", "page"), MADE_PAGES.items(), ids=MADE_PAGES)
def test_a_page_that_is_made_from_the_code_is_as_the_code_is(name: str, page: Callable[[], str]) -> None:
    assert text_of(ROOT / "docs" / name) == page(), "`make reference` writes it again"


def test_the_page_of_the_architecture_draws_the_layers_of_the_import_contract() -> None:
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each["name"] == "Messages flow one way"]
    drawings = [block for _, block in FENCED.findall(text_of(ROOT / "docs/architecture.md"))]
    assert layers in [[re.split(r"\s{2,}", line)[0] for line in drawing.splitlines()] for drawing in drawings]


@pytest.mark.parametrize("requirement", conformance.requirements(REQUIREMENTS), ids=lambda each: each["id"])
def test_a_requirement_has_a_level_modules_and_a_proof(requirement: dict[str, Any]) -> None:
    assert requirement["level"] in {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}
    assert requirement["modules"]
    assert [module for module in requirement["modules"] if not (ROOT / module).is_file()] == []
    assert requirement["id"] in PROVEN
    assert {*re.findall(r"D\d+", requirement.get("deviation", ""))} <= {*REQUIREMENTS["deviations"]["table"]}


def test_no_requirement_has_the_id_of_another_and_no_test_proves_one_that_is_not_there() -> None:
    ids = [requirement["id"] for requirement in conformance.requirements(REQUIREMENTS)]
    assert len(ids) == len({*ids}) > 70
    assert {*ids} >= PROVEN


# Decisions ------------------------------------------------------------------------------------------------------------
RECORDS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
MAX_WORDS_OF_RECORD = 350
PARTS_OF_RECORD = ["Question", "Options", "Outcome", "Tried and measured"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_is_short_dated_and_has_its_four_parts_in_order(record: Path) -> None:
    assert words(record) <= MAX_WORDS_OF_RECORD
    assert re.match(rf"# {record.stem[:4]} .+\n\n\d{{4}}-\d\d-\d\d\b", text_of(record))
    assert re.findall(rf"^\*\*({'|'.join(PARTS_OF_RECORD)})\b", text_of(record), re.MULTILINE) == PARTS_OF_RECORD


def test_the_index_names_each_decision_by_its_heading() -> None:
    headings = {record.name: text_of(record).splitlines()[0].removeprefix("# ") for record in RECORDS}
    index = text_of(ROOT / "docs" / "decisions" / "README.md")
    assert re.findall(r"\[(\d{4} .+?)\]\(([\w-]+\.md)\)", index) == [(title, name) for name, title in headings.items()]
    numbers = [int(name[:4]) for name in headings]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


# Words ----------------------------------------------------------------------------------------------------------------
# Made from the code or compared with it, and looked up instead of read.
GENERATED = {ROOT / "docs" / name for name in [*MADE_PAGES, "figures.md"]}
MAX_WORDS = {
    "pages at the root": ([ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")], 3_000),
    "hand-written documents": (sorted({*(ROOT / "docs").rglob("*.md")} - GENERATED), 27_000),
    "generated documents": (sorted(GENERATED), 14_000),
}


def words(path: Path) -> int:
    return len(text_of(path).split())


@pytest.mark.parametrize("kind", MAX_WORDS)
def test_documents_stay_within_their_word_limits(kind: str) -> None:
    """`pytest -s -n0 -k word_limits tests/test_documents.py` prints the totals, as `make check` does."""
    pages, maximum = MAX_WORDS[kind]
    count = {str(page.relative_to(ROOT)): words(page) for page in sorted(pages, key=words, reverse=True)}
    print(f"\n{kind}: {sum(count.values())} words of at most {maximum}")  # noqa: T201
    assert sum(count.values()) <= maximum, count


def test_the_start_page_names_every_page_and_answers_sixty_questions_each_by_a_heading() -> None:
    start = ROOT / "docs" / "README.md"
    named = set(re.findall(r"\]\(([\w-]+)\.md(?:#[\w-]+)?\)", text_of(start)))
    assert named == {file.stem for file in start.parent.glob("*.md")} - {"README"}
    rows = re.findall(r"^\* .*\? (\[.*)$", text_of(start), re.MULTILINE)
    assert len(rows) > 60
    assert [row for row in rows if not all("#" in target for target in LINK.findall(row))] == []


# Limits: each number of docs/limits.md has a test, and each test its number -------------------------------------------
# Tests of other folders meet some of the numbers.
MODULES = (test_api, test_console_login, test_dead_letters, test_kept, test_remains, test_waku, test_xmpp)


def shown(place: int) -> str:
    """Return the words around a number of the page."""
    return f"{NUMBERS[place]} in …{PAGE[max(0, place - 60) : place + 40]}…"


def test_each_number_of_the_page_is_met_by_a_test() -> None:
    met = {place for row in ROWS for place in row.found}
    assert [shown(place) for place in NUMBERS if place not in met] == []


def test_each_test_has_its_numbers_on_the_page() -> None:
    assert [row.words for row in ROWS if len(row.found) != row.words.count("{")] == []
