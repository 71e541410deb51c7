"""Runs without an XMPP server: the broken link, the row of the run, and the removal of its traces."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.utils import timezone

from tests import factories
from xmpp_bridge.canary import canary
from xmpp_bridge.component.status import MISSING
from xmpp_bridge.models import App, CanaryRun, CanaryStanza

pytestmark = pytest.mark.django_db(transaction=True)
State = CanaryRun.State


@pytest.fixture(autouse=True)
def _nobody_there(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.XMPP_COMPONENT_JID = "push.montague.test"
    monkeypatch.setattr("xmpp_bridge.canary.links.ANSWER_SECONDS", 0.1)
    cache.clear()
    yield
    cache.clear()


def test_a_component_that_is_away_breaks_the_first_link_and_leaves_no_rows() -> None:
    row = canary.run()
    assert row is not None
    assert (row.state, row.broken_link, row.cause, row.detail) == (State.BROKEN, "register", "component", MISSING)
    assert set(row.timings().values()) == {None}
    last = canary.last()
    assert last is not None
    assert (last.cause, last.is_dry_run) == ("component", True)
    assert last.words == f"the component does not take what it is sent ({MISSING})"
    assert not CanaryStanza.objects.exists()
    assert not App.objects.exists()


def test_a_run_that_was_killed_is_marked_as_interrupted_and_does_not_block_the_next() -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    killed = factories.make_xmpp_canary_run(state=State.RUNNING, finished_at=None, at=long_ago)
    assert canary.run() is not None
    killed.refresh_from_db()
    assert killed.state == State.INTERRUPTED


def test_a_second_run_does_not_start_while_one_is_under_way() -> None:
    factories.make_xmpp_canary_run(state=State.RUNNING, finished_at=None)
    assert canary.run() is None
    assert CanaryRun.objects.count() == 1
