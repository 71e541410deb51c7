"""Words and sentences: no name, page or document has a word that the code gave up, and no text has to be read twice."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.sentences import findings

ROOT = Path(__file__).parents[1]
# What is not said any more, and what is said instead.
WORDS = {
    "ammunition": "payloads",
    "arsenal": "payloads",
    "bell": "wakeup",
    "desk": "the module or class says what it does",
    "door": "bridge",
    "doors": "bridges",
    "duty": "leader",
    "errand": "queued stanza",
    "errands": "queued stanzas",
    "flights": "in-flight sends",
    "hush": "clear",
    "lane": "concurrency limit, or priority",
    "newcomer": "unproven address",
    "parked": "a queue is covered by a halt",
    "patience": "timeout",
    "precedence": "priority",
    "shooting": "sender",
    "tether": "kill with parent",
    "turn": "batch",
    "turns": "batches",
    "undone": "rolled back",
}
# What no name of the code says, but a sentence may, and the name of a test is one.
IN_SENTENCES = {
    "doubt": "ambiguous",
    "doubts": "ambiguities",
    "room": "budget or capacity",
    "rooms": "budgets",
    "said": "the message itself",
    "stranger": "unproven, unknown or anonymous",
    "strangers": "unproven, unknown or anonymous",
    "told": "the report, answer or context itself",
    "untold": "unreported",
}
ALLOWED = {
    "turn_page": "the verb",
    "TURN_PAGE": "the verb",
    "in_turn": "one after the other",
    "test_a_few_networks_wait_for_their_turn_and_no_more": "one after the other",
    "test_a_system_that_works_is_green_and_turns_red_without_reloading": "the verb",
    "test_results_turn_red_with_the_advice_for_their_code_and_green_within_two_minutes": "the verb",
}
DOCUMENTS = (
    *("README.md", "docs/*.md", "docs/runbooks/*.md", "docs/monitoring/*"),
    *("templates/**/*.html", "deploy/**/*.md"),
)
PHRASES = re.compile(
    r"\b(front doors?|bells?|desks?|patience|errands?|tether|hush|on duty|newcomers?)\b", re.IGNORECASE
)


def names() -> Iterator[tuple[str, str]]:
    """Yield each file with each name in it, once."""
    for path in sorted(ROOT.rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if not file.startswith(".") and "/pb/" not in file and "/migrations/" not in file:
            tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
            yield from ((file, name) for name in {token.string for token in tokens if token.type == tokenize.NAME})


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_no_name_has_a_word_that_was_given_up() -> None:
    found = {
        (file, name): word
        for file, name in names()
        if not any(allowed in name for allowed in ALLOWED)
        for word in words_of(name) & {*WORDS, *(() if name.startswith("test_") else IN_SENTENCES)}
    }
    assert found == {}


def test_no_document_and_no_page_has_one() -> None:
    pages = {path: path.read_text(encoding="utf-8") for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    found = {str(path.relative_to(ROOT)): PHRASES.findall(text) for path, text in pages.items() if PHRASES.search(text)}
    assert len(pages) > 60
    assert found == {}


def test_no_docstring_comment_test_name_or_label_has_to_be_read_twice() -> None:
    assert [f"{found.file}:{found.line}: {found.fault}: {found.text}" for found in findings()] == []
