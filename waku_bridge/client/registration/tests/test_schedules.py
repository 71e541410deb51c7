"""The times of repeated attempts, by the reference client's own numbers."""

import json
from pathlib import Path

import pytest

from waku_bridge.client import REGISTRATION, RESENDING
from waku_bridge.client.registration.schedules import SECOND_NS

BACKOFF = json.loads((Path(__file__).parents[4] / "tests" / "vectors" / "vectors.json").read_text())["backoff"]


@pytest.mark.requirement("R9")
@pytest.mark.parametrize(("attempt", "seconds"), BACKOFF["registration_seconds_after_attempt"].items())
def test_a_registration_is_repeated_when_status_go_repeats_it(attempt: str, seconds: int) -> None:
    assert REGISTRATION.delay_ns(int(attempt)) == seconds * SECOND_NS
    assert int(attempt) <= REGISTRATION.max_attempts


@pytest.mark.parametrize(("retry_count", "seconds"), BACKOFF["notification_seconds_after_retry_count"].items())
def test_a_notification_is_sent_again_when_status_go_sends_it_again(retry_count: str, seconds: int) -> None:
    assert RESENDING.delay_ns(int(retry_count)) == seconds * SECOND_NS
    assert RESENDING.max_attempts == 5
