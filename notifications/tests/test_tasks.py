"""Tests of the process that processes batches: what it opens before its first one."""

import pytest

from kit.batches.batch import Wakeup
from notifications.gateways import registry
from notifications.gateways.registry import AbsentGateway
from notifications.tasks import new_steps


@pytest.fixture
def opened(monkeypatch):
    """Return the names of the gateways that were opened. One more than usual is registered."""
    opened = []
    monkeypatch.setattr(registry, "_openers", dict(registry._openers))
    registry.register("other", lambda: opened.append("other") or AbsentGateway())
    yield opened
    registry.gateway_for.cache_clear()


def test_gateways_are_opened_before_the_first_push_as_an_upgrade_may_replace_the_code_before_it(opened, db):
    new_steps(Wakeup())
    assert opened == ["other"]
