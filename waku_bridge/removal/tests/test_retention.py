from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from kit.db.partitions import MADE_AHEAD, day_of
from tests.rig import rows
from waku_bridge.models import EnvelopeHash, InboundEnvelope, OutboundReply
from waku_bridge.removal import retention

NOW = timezone.now()
DAY = timedelta(days=1)
KEEP = timedelta(days=3)
# The partition of an earlier day is dropped as a whole.
BEGIN = datetime.combine(day_of(NOW - KEEP), datetime.min.time(), UTC)
OLD = BEGIN - timedelta(seconds=1)
pytestmark = pytest.mark.django_db


def purge(now: datetime = NOW) -> None:
    list(retention.purge(now=now, keep=KEEP))


@pytest.mark.parametrize("has_partition", [True, False])
@pytest.mark.parametrize("state", InboundEnvelope.State)
def test_old_envelopes_are_removed_unless_they_wait(state: InboundEnvelope.State, has_partition: bool) -> None:
    if has_partition:
        retention.ENVELOPES.make_from(OLD, to=NOW)
    rows.make_envelope(state=state, at=OLD)
    rows.make_envelope(state=state, at=BEGIN)
    purge()
    assert InboundEnvelope.objects.count() == (1 if state.is_terminal else 2)


@pytest.mark.parametrize("has_partition", [True, False])
@pytest.mark.parametrize("state", OutboundReply.State)
def test_old_replies_are_removed_unless_they_wait(state: OutboundReply.State, has_partition: bool) -> None:
    if has_partition:
        retention.REPLIES.make_from(OLD, to=NOW)
    rows.make_reply(state=state, at=OLD)
    rows.make_reply(state=state, at=BEGIN)
    purge()
    assert OutboundReply.objects.count() == (1 if state.is_terminal else 2)


def test_an_old_envelope_that_ended_today_stays() -> None:
    rows.make_envelope(state="failed", at=OLD, ended_on=day_of(NOW))
    purge()
    assert InboundEnvelope.objects.exists()


def test_hashes_are_kept_for_longer_than_a_message_is_accepted() -> None:
    for number, at in enumerate((OLD - DAY, BEGIN - DAY, BEGIN)):
        EnvelopeHash.objects.create(hash=bytes([number]) * 32, sent_on=day_of(at))
    purge()
    assert set(EnvelopeHash.objects.values_list("sent_on", flat=True)) == {day_of(BEGIN - DAY), day_of(BEGIN)}


def test_partitions_are_created_days_ahead() -> None:
    later = NOW + 30 * DAY
    purge(later)
    ahead = day_of(later + MADE_AHEAD * DAY)
    for table in (retention.HASHES, retention.ENVELOPES, retention.REPLIES):
        assert ahead in table.days()
        assert min(table.days()) >= day_of(later - KEEP - DAY)
