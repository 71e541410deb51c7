"""Dead letters: unreadable messages are kept, up to limits."""

import json
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Barrier, BrokenBarrierError
from unittest.mock import Mock

import pytest
from django.db import OperationalError
from django.utils import timezone

from tests.limits.page import limit
from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.statements import at_once
from waku_bridge.models import DeadLetter
from waku_bridge.reading.intake import (
    MAX_LOOKED_AT_CHARACTERS,
    MAX_PER_MINUTE,
    MAX_RAW_CHARACTERS,
    DeadLetters,
)
from waku_bridge.reading.pages import Page, Reader

READER = Reader("live", "http://node:8645", PUBSUB_TOPIC)
NOW = timezone.now().replace(second=0)
pytestmark = pytest.mark.django_db


def keep(letters, *raws, now=NOW):
    letters.keep([(raw, "malformed") for raw in raws], Page(READER, now, []))


def test_a_dead_letter_has_the_beginning_of_the_raw_json():
    keep(DeadLetters(), {"payload": "é\x00", "version": 0}, {"payload": "x" * 1_400_000})
    letter, large = DeadLetter.objects.order_by("size_bytes")
    assert json.loads(letter.raw) == {"payload": "é\x00", "version": 0}
    assert letter.source == READER.node
    assert len(large.raw) == MAX_RAW_CHARACTERS
    assert large.size_bytes > 1_400_000


def test_a_letter_of_both_paths_is_kept_once():
    """Relay writes a ``proof``, and the store does not."""
    letters = DeadLetters()
    keep(letters, {"version": 0, "proof": ""})
    keep(letters, {"version": 0}, {"version": 0})
    assert DeadLetter.objects.count() == 1


@limit("dead letters ({a_minute} a minute of each bridge)")
def test_the_letters_kept_per_minute_are_limited(a_minute):
    letters = DeadLetters()
    keep(letters, *range(a_minute + 40))
    assert DeadLetter.objects.count() == a_minute
    keep(letters, "later", "too early", now=NOW + timedelta(seconds=60 / a_minute))
    assert DeadLetter.objects.count() == a_minute + 1


@pytest.mark.parametrize(
    ("stored_before", "pages"),
    [
        (
            [],
            [[number] for number in range(MAX_PER_MINUTE)] * 5,
        ),  # live path and stores bring each letter several times
        ([], [[*["again"] * 1000, *range(MAX_PER_MINUTE - 1)]]),
        # A restarted bridge reads the last minutes again, without the memory of its predecessor.
        (range(MAX_PER_MINUTE), [range(2 * MAX_PER_MINUTE)]),
    ],
    ids=["on pages", "on a page", "by another bridge"],
)
def test_repeated_letters_take_nothing_of_the_limit_and_hide_no_others(stored_before, pages):
    keep(DeadLetters(), *stored_before)
    letters = DeadLetters()
    for page in pages:
        keep(letters, *page)
    assert DeadLetter.objects.count() == len({letter for page in pages for letter in page})


def test_the_characters_compared_per_minute_are_limited():
    letters, large = DeadLetters(), "x" * (MAX_LOOKED_AT_CHARACTERS // 2)
    keep(letters, large, large, "one more")
    assert DeadLetter.objects.count() == 1
    keep(letters, "one more", now=NOW + timedelta(minutes=1))
    assert DeadLetter.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_readers_share_the_limit_of_a_minute(monkeypatch):
    letters, meeting, store = DeadLetters(), Barrier(2, timeout=0.3), DeadLetter.objects.bulk_create

    def store_beside_another(*args, **options):
        with suppress(BrokenBarrierError):  # the other reader does not reach this line
            meeting.wait()
        return store(*args, **options)

    monkeypatch.setattr(DeadLetter.objects, "bulk_create", store_beside_another)
    at_once(*(partial(keep, letters, *range(first, first + MAX_PER_MINUTE)) for first in (0, 100)))
    keep(letters, "one more")
    assert DeadLetter.objects.count() == MAX_PER_MINUTE


def test_letters_that_could_not_be_stored_take_nothing_of_the_limit(monkeypatch):
    letters = DeadLetters()
    with monkeypatch.context() as patched:
        patched.setattr(DeadLetter.objects, "bulk_create", Mock(side_effect=OperationalError))
        for _ in range(MAX_PER_MINUTE + 1):
            with pytest.raises(OperationalError):
                keep(letters, "kept later")
    keep(letters, "kept later")
    assert DeadLetter.objects.count() == 1


def test_the_letters_of_the_retention_time_fit_on_any_disk():
    assert 3 * 1440 * MAX_PER_MINUTE * MAX_RAW_CHARACTERS < 200_000_000


def test_a_message_nested_too_deeply_for_json_is_kept():
    raw = []
    for _ in range(100_000):
        raw = [raw]
    keep(DeadLetters(), raw)
    assert DeadLetter.objects.get().raw == ""
