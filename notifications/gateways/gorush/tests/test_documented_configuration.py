"""Tests that docs/gorush.md, compose.yaml and the systemd unit agree, and satisfy the config check."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.http.connections import MAX_CONNECTIONS
from notifications.gateways.gorush.answers.feedback import SECRET_HEADER
from notifications.gateways.gorush.config_check import rules
from notifications.gateways.gorush.config_check.readings import Reading, read_config
from notifications.gateways.gorush.config_check.rules import Expectations, complaints

ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "gorush.md").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["gorush"]["environment"]
UNIT = (ROOT / "deploy" / "systemd" / "gorush.service").read_text(encoding="utf-8")
EXPECTED = Expectations(concurrency=MAX_CONNECTIONS)
# Containers reach each other on other interfaces. All other settings are the same everywhere.
OF_CONTAINERS = {"GORUSH_CORE_ADDRESS"}
OF_OPERATORS = {"GORUSH_IOS_KEY_ID", "GORUSH_IOS_TEAM_ID"}


def block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)[0]


def as_environment(values: Any, path: str = "GORUSH") -> dict[str, str]:
    if not isinstance(values, dict):
        return {path: str(values).lower() if isinstance(values, bool) else str(values)}
    found = {}
    for name, value in values.items():
        found |= as_environment(value, f"{path}_{name.upper()}")
    return found


DOCUMENTED = as_environment(yaml.safe_load(block("yaml")))


def test_both_documented_forms_agree() -> None:
    assert dict(line.split("=", maxsplit=1) for line in block("sh").splitlines()) == DOCUMENTED


def test_compose_has_the_documented_settings() -> None:
    of_document = {name: value for name, value in DOCUMENTED.items() if value and name not in OF_CONTAINERS}
    assert COMPOSE.keys() == of_document.keys()
    assert {n: v for n, v in COMPOSE.items() if n not in OF_OPERATORS} == {
        n: v for n, v in of_document.items() if n not in OF_OPERATORS
    }


def test_the_unit_has_the_documented_settings() -> None:
    """Its keys are credentials of the unit. The operator's own file names their owners."""
    of_document = {n: v for n, v in DOCUMENTED.items() if v and n not in OF_OPERATORS}
    of_unit = dict(re.findall(r"(GORUSH_\w+)=(\S+)", UNIT))
    assert {n: v.replace("%d/", "/run/secrets/") for n, v in of_unit.items()} == of_document


def test_the_documented_configuration_has_no_complaint() -> None:
    reading = Reading(is_reachable=True, config=read_config(block("yaml").encode()), counters={"ios": 0})
    assert complaints(reading, EXPECTED) == []


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r'^\s+f?"([a-z_{}]+)",$', Path(rules.__file__).read_text(), re.MULTILINE)))
)
def test_every_warning_is_explained(name: str) -> None:
    assert f"| `{name.replace('{platform}', 'ios')}`" in DOCUMENT


def test_the_documented_header_is_the_one_that_the_hook_checks() -> None:
    assert f"GORUSH_CORE_FEEDBACK_HEADER={SECRET_HEADER}:" in DOCUMENT
