from datetime import timedelta

import pytest
from django.utils import timezone

from notifications.models import NotificationRequest
from notifications.tasks import purge as purge_requests
from registrations.models import RegistrationEvent
from registrations.tasks import purge as purge_events
from tests import factories
from waku_bridge import retention, tasks
from waku_bridge.models import InboundEnvelope, OutboundReply

NOW = timezone.now()
KEEP = timedelta(days=3)
OLD = NOW - KEEP - timedelta(minutes=1)
YOUNG = NOW - KEEP + timedelta(minutes=1)
pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("state", "is_removed"), [("received", False), ("processed", True), ("dropped", True), ("failed", True)]
)
def test_old_envelopes_are_removed_unless_they_wait(state: str, is_removed: bool) -> None:
    factories.make_envelope(state=state, at=OLD)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == is_removed
    assert InboundEnvelope.objects.exists() is not is_removed


@pytest.mark.parametrize(
    ("state", "is_removed"),
    [("pending", False), ("published", True), ("confirmed", True), ("unconfirmed", True), ("abandoned", True)],
)
def test_old_replies_are_removed_unless_they_wait(state: str, is_removed: bool) -> None:
    factories.make_reply(state=state, at=OLD)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == is_removed
    assert OutboundReply.objects.exists() is not is_removed


def test_old_dead_letters_are_removed() -> None:
    factories.make_dead_letter(at=OLD)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 1


def test_what_is_young_stays() -> None:
    factories.make_envelope(state="processed", at=YOUNG)
    factories.make_dead_letter(at=YOUNG)
    factories.make_reply(state="published", at=YOUNG)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 0


def test_the_tasks_keep_each_table_as_long_as_its_setting_says() -> None:
    now = timezone.now()
    for days in (2, 4, 31, 401):
        at = now - timedelta(days=days)
        factories.make_envelope(state="processed", at=at)
        factories.make_reply(state="published", at=at)
        factories.make_answered_request(at=at)
        factories.make_event(at=at, kind="unregistered")

    for purge in (tasks.purge, purge_requests, purge_events):
        purge()

    tables = (InboundEnvelope, OutboundReply, NotificationRequest, RegistrationEvent)
    assert [table.objects.count() for table in tables] == [1, 1, 2, 3]
