"""Tests that docs/delivery.md explains every state, class and report that an operator can see."""

from pathlib import Path

import pytest

from notifications.messages import Outcome
from notifications.models import Notification

DOCUMENT = (Path(__file__).parents[2] / "docs" / "delivery.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", [*Notification.State, *Outcome], ids=str)
def test_every_state_and_class_is_explained(word: str) -> None:
    assert f"\n| `{word}` |" in DOCUMENT


@pytest.mark.parametrize("report", Notification.Reports)
def test_every_reply_is_explained(report: str) -> None:
    assert report == "success" or f"\n| `{report.upper()}` |" in DOCUMENT
