"""Tests of pushes that gorush would silently drop or take for something else."""

from dataclasses import replace

import pytest

from notifications.gateways.gorush.sending.push_api import FAULTS, find_fault
from notifications.messages import ChannelKey, Push

PUSH = Push(1, 1, ChannelKey(2, ""), b"token", 1, b"key", b"chat", b"message", "c" * 64)
APPLE = ChannelKey(1, "im.status")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"channel": APPLE}, ""),
        ({"channel": ChannelKey(3, "")}, "unknown_platform"),
        ({"channel": APPLE, "address": b"x#1"}, "unsendable_token"),
        ({"channel": APPLE, "address": b"a%zz"}, "unsendable_token"),
        ({"channel": APPLE, "address": b"../x"}, "unsendable_token"),
        ({"channel": APPLE, "address": b"a\nb"}, "unsendable_token"),
        ({"channel": APPLE, "address": b"0fA9" * 16}, ""),
        ({"address": b"x#1/%"}, ""),
        ({"address": b"\xff"}, "unsendable_token"),
        ({"channel": ChannelKey(0, "")}, "unknown_platform"),
        ({"address": b""}, "no_device_token"),
        ({"collapse_id": "c" * 65}, "collapse_id_too_long"),
    ],
)
def test_a_push_that_gorush_would_drop_has_a_fault(change, fault):
    found = find_fault(replace(PUSH, **change))
    assert (found.code if found else "") == fault
    assert found is None or (found.outcome, found.is_untried) == (FAULTS[fault], True)
