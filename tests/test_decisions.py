"""Decision records in docs/decisions: each can be read in a minute, has its four parts, and stands in the index."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
MAX_WORDS = 300
PARTS = ["Question", "Options", "Outcome", "Consequences"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_is_short_dated_and_has_its_four_parts_in_order(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert len(text.split()) <= MAX_WORDS, f"{len(text.split())} words in {record.name}"
    assert re.match(rf"# {record.stem[:4]} .+\n\n\d{{4}}-\d\d-\d\d\b", text)
    assert re.findall(rf"^\*\*({'|'.join(PARTS)})\b", text, re.MULTILINE) == PARTS


def test_the_index_names_each_decision_by_its_heading() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    headings = {
        record.name: record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for record in RECORDS
    }
    assert re.findall(r"\[(\d{4} .+?)\]\(([\w-]+\.md)\)", index) == [(title, name) for name, title in headings.items()]
