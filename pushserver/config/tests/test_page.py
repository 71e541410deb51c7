"""The catalogue has every variable that the settings read, and explains it."""

import re
from pathlib import Path

from pushserver.config.catalogue import EMBEDDED, GENERATED, GROUPS
from pushserver.config.page import readings

ROOT = Path(__file__).parents[3]
SETTINGS = [setting for own in GROUPS.values() for setting in own]
READINGS = readings()


def test_every_variable_that_is_read_is_in_the_catalogue_once() -> None:
    source = (ROOT / "pushserver/settings.py").read_text(encoding="utf-8")
    names = [setting.name for setting in SETTINGS]
    assert sorted(names) == sorted(READINGS) == sorted(set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', source)))
    assert 60 < len(names) <= 80


def test_a_setting_has_a_meaning_and_one_default() -> None:
    """A default that is a constant of the code stands there alone; any other is explained in words."""
    for setting in SETTINGS:
        assert setting.meaning
        assert "|" not in setting.meaning, "it stands in a table"
        constant = READINGS[setting.name].default
        assert setting.default or constant is not None, setting.name
        assert not (setting.default and constant), setting.name


def test_bounds_are_constants_of_the_code() -> None:
    numbers = {name: reading for name, reading in READINGS.items() if reading.kind in {"count", "number"}}
    assert len(numbers) > 20
    assert [name for name, reading in numbers.items() if None in {reading.minimum, reading.maximum}] == []


def test_the_readme_names_what_every_installation_sets() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    without_default = {setting.name for setting in SETTINGS if setting.default in {EMBEDDED, GENERATED}}
    on_a_network = {"ALLOWED_HOSTS", "BEHIND_HTTPS_PROXY", "METRICS_TOKEN"}
    assert sorted(rows) == sorted(without_default | on_a_network)
