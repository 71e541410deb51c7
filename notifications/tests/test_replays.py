"""Tests of replayed requests: the protocol signs no time, so the keys of requests outlive their rows."""

import pytest
from django.conf import LazySettings
from django.utils import timezone

from notifications import retention, tasks
from notifications.acceptance.storing import DIGEST_BYTES, digest_of, find_repeats
from notifications.acceptance.tests.test_acceptance import (
    BRIDGE,
    DAY,
    NOW,
    accept,
    incoming,
    make_recipient,
    push,
    settled,
)
from notifications.models import Notification, NotificationRequest, RequestDigest
from notifications.rules import transitions

pytestmark = pytest.mark.django_db
MONTH = 30 * DAY


def end(accepted):
    """End the accepted pushes, so that nothing is under way."""
    transitions.end(Notification.objects.all(), Notification.State.DELIVERED, now=NOW)
    return settled(accepted)


def purge(now):
    list(retention.purge(now=now, keep=MONTH))
    return sum(retention.purge_digests(now=now, keep=3 * MONTH))


def test_a_recording_is_neither_carried_out_nor_answered_once_its_request_is_removed():
    make_recipient()
    end(accept([incoming(push())], now=NOW))
    assert purge(NOW + MONTH + DAY) == 0
    assert not NotificationRequest.objects.exists()
    replayed = accept([incoming(push(), envelope=b"\x0f" * 32)], now=NOW + MONTH + DAY)
    assert (replayed.claims, replayed.waiting, replayed.answers) == ([], [], [])
    assert replayed.replayed == {b"\x0f" * 32}
    assert not NotificationRequest.objects.exists()


def test_the_stored_digest_is_the_one_looked_up():
    make_recipient()
    end(accept([incoming(push(), amm=bytes([number]) * 32, message_id=b"%d" % number) for number in range(3)], now=NOW))
    purge(NOW + MONTH + DAY)
    keys = [bytes([number]) * 32 for number in range(4)]
    assert {bytes(each.digest) for each in RequestDigest.objects.all()} == {digest_of(BRIDGE, key) for key in keys[:3]}
    assert {len(each.digest) for each in RequestDigest.objects.all()} == {DIGEST_BYTES}
    assert find_repeats(BRIDGE, keys, now=NOW) == set(keys[:3])
    assert find_repeats("another-bridge", keys, now=NOW) == set()


def test_the_key_of_a_request_that_is_never_repeated_is_not_kept():
    make_recipient()
    end(accept([incoming(push(), amm=b"a key that ends with the time of the push")], now=NOW))
    assert purge(NOW + MONTH + DAY) == 0
    assert not RequestDigest.objects.exists()


def test_the_task_keeps_the_keys_of_all_requests_that_are_there(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
):
    settings.NOTIFICATION_RETENTION_DAYS = 30
    monkeypatch.setattr(tasks, "KEYS_KEPT", DAY)
    for days in (29, 31):
        RequestDigest.objects.create(digest=b"%016d" % days, received_at=timezone.now() - days * DAY)
    tasks.purge()
    assert [bytes(each.digest) for each in RequestDigest.objects.all()] == [b"%016d" % 29]
