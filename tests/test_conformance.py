"""Each requirement of docs/conformance.md names modules that exist and has a test that proves it."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.conformance.page import PAGE, ROOT, Proof, data, page, proofs, proofs_of, requirements

DATA = data()
REQUIREMENTS = requirements(DATA)
PROOFS = proofs()
IDS = {requirement["id"] for requirement in REQUIREMENTS}
LEVELS = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}


def deviations(requirement: dict[str, Any]) -> set[str]:
    return set(re.findall(r"D\d+", requirement.get("deviation", "")))


def test_the_page_is_that_of_the_requirements_and_the_tests() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(DATA, PROOFS), "`python -m tests.conformance` writes it again"


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement["id"])
def test_a_requirement_has_a_level_modules_and_a_proof(requirement: dict[str, Any]) -> None:
    assert requirement["level"] in LEVELS
    assert requirement["modules"]
    assert [module for module in requirement["modules"] if not (ROOT / module).is_file()] == []
    assert any(requirement["id"] in proof.requirements for proof in PROOFS)
    assert deviations(requirement) <= set(DATA["deviations"]["table"])
    assert "|" not in requirement["text"] + requirement.get("deviation", "")


def test_no_id_is_used_twice_and_no_test_names_one_that_is_not_there() -> None:
    assert len(REQUIREMENTS) == len(IDS) > 70
    assert {(proof.test, each) for proof in PROOFS for each in proof.requirements if each not in IDS} == set()


def test_every_deviation_belongs_to_a_requirement() -> None:
    named = {deviation for deviation in DATA["deviations"]["table"] if re.fullmatch(r"D\d+", deviation)}
    assert set().union(*map(deviations, REQUIREMENTS)) == named


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_markers_are_read_from_functions_coroutines_and_classes() -> None:
    source = """
        import pytest

        @pytest.mark.requirement("R1", "R2")
        @pytest.mark.parametrize("x", [1])
        def test_one(x): ...

        @pytest.mark.requirement("R3")
        async def test_two(): ...

        @pytest.mark.nightly
        def test_three(): ...

        class TestFour:
            @pytest.mark.requirement("R4")
            def test_five(self): ...
    """
    assert list(proofs_of(dedent(source), Path("tests/test_x.py"))) == [
        Proof("tests/test_x.py::test_one", ("R1", "R2")),
        Proof("tests/test_x.py::test_two", ("R3",)),
        Proof("tests/test_x.py::TestFour::test_five", ("R4",)),
    ]


def test_the_page_has_the_tests_of_a_requirement_in_its_row() -> None:
    requirement = {"id": "R1", "level": "MAY", "text": "A client MAY", "modules": ["a.py"], "deviation": "D1"}
    known = {
        "introduction": "About it.",
        "section": [{"title": "Clients", "requirement": [requirement]}],
        "deviations": {"text": "Why.", "table": {"D1": "Because."}},
        "not_ours": {"… MUST": "others"},
    }
    made = page(known, [Proof("b.py::test_one", ("R1",)), Proof("b.py::test_two", ("R1", "R2"))])
    assert "\n| R1 | MAY | A client MAY | `a.py` | `b.py::test_one`, `b.py::test_two` | D1 |\n" in made
    assert "\n| D1 | Because. |\n" in made
