"""Licences of the packages that the server runs with: each is free to use, by the package's own metadata."""

import importlib.util
from types import ModuleType

import pytest

from embedded.supervisor.processes import PROJECT


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", PROJECT / "requirements" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_licence_is_one_that_was_accepted(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.show_licences() == []
    assert "django " in capsys.readouterr().out


def test_a_licence_is_judged_by_its_words(audit: ModuleType) -> None:
    free = ("MIT", "LGPL-3.0-only", "MPL-2.0 AND (Apache-2.0 OR MIT)")
    other = ("AGPL-3.0", "GPL-3.0-or-later", "Other/Proprietary License", "")
    assert [text for text in (*free, *other) if audit.is_accepted("somebody", text)] == [*free]


def test_a_package_whose_licence_is_unavailable_fails_the_audit(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "audit", lambda _lock: [{"name": "django", "skip_reason": "nobody answers"}])
    assert audit.main() == 2
    assert "nobody answers" in capsys.readouterr().out
