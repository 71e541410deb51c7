"""Made-up installations and tombstones without end, beside honest new and returning users.

The real code decides from envelope to reply, and the clock is the test's. All is smaller by 2 500: 29 an hour stand for
20 a second, 10 an hour for 7 a second, and 800 places for two million.
"""

from datetime import datetime, timedelta
from itertools import count

import pytest
from coincurve import PrivateKey
from django.conf import LazySettings
from django.utils import timezone

from registrations.models import Registration
from registrations.upkeep import stock
from tests.batches import Process
from tests.conversation import registration, replies_to, say
from tests.factories import firebase_token
from waku_bridge.codec.keys import Identity
from waku_bridge.models import OutboundReply

pytestmark = [pytest.mark.chaos, pytest.mark.django_db]
PLACES, TOMBSTONES = 800, 40
BURST, STEADY = 29, 10  # new installations an hour, and as many tombstones
QUIET_HOURS, BURST_HOURS, STEADY_HOURS = 24, 2, 110
HOUR, STEPS = timedelta(hours=1), 3
keys = count(10_000)


class World:
    """A server to which time passes in hours. Its clock is ``now``."""

    def __init__(self) -> None:
        self.process = Process()
        self.now = datetime(2026, 3, 1, tzinfo=timezone.get_current_timezone())
        self.answers: list[bool] = []

    def hour(self, made_up: int) -> bytes:
        """Let an hour pass with a number of made-up installations, an honest new user and one who returns.

        Return the key hash of the new user.
        """
        new_user, returning = person(), person()
        say(registration(returning, unregister=True), now=self.now, process=self.process)
        for step in range(STEPS):
            self.now += HOUR / STEPS
            messages = [registration(person(), device_token=firebase_token()) for _ in range(step, made_up, STEPS)]
            messages += [registration(person(), unregister=True) for _ in range(step, made_up, STEPS)]
            if step == 1:
                honest = [registration(new_user), registration(returning, version=2)]
                messages[len(messages) // 2 : 0] = honest
            OutboundReply.objects.all().delete()
            say(*messages, now=self.now, process=self.process)
            if step == 1:
                self.answers += [replies_to(each)[-1].body.success for each in (new_user, returning)]
        return new_user.key_hash


def person() -> Identity:
    return Identity(PrivateKey(next(keys).to_bytes(32)))


def left_of(users: list[bytes]) -> int:
    return Registration.objects.filter(public_key_hash__in=users).count()


def test_made_up_installations_replace_each_other_and_keep_nobody_out(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MAX_REGISTRATIONS = PLACES
    monkeypatch.setattr(stock, "MAX_FORGETTABLE", TOMBSTONES)
    world = World()
    quiet = [world.hour(0) for _ in range(QUIET_HOURS)]
    attacked = [world.hour(BURST) for _ in range(BURST_HOURS)]
    full_after = 0
    for hour in range(STEADY_HOURS):
        attacked.append(world.hour(STEADY))
        if left_of(attacked) == len(attacked):
            full_after = hour + 1
    accepted = sum(world.answers) / len(world.answers)
    share = (PLACES - 2 * QUIET_HOURS) / (BURST_HOURS * (BURST + 2) + STEADY_HOURS * (STEADY + 2))
    print(
        f"\nattack 1: {accepted:.0%} of {len(world.answers)} honest registrations were accepted, and nobody went for "
        f"{full_after} hours. After {STEADY_HOURS} hours, {left_of(quiet)} of {len(quiet)} new users of quiet hours "
        f"are left, and {left_of(attacked)} of {len(attacked)} of the others ({share:.0%} by computation)."
    )
    assert accepted >= 0.95
    assert full_after >= (PLACES - 2 * QUIET_HOURS - BURST_HOURS * (BURST + 2)) // (STEADY + 2)
    assert left_of(quiet) == len(quiet)
    assert left_of(attacked) >= 0.75 * share * len(attacked)
    assert Registration.objects.filter(state="active").count() == PLACES
    assert Registration.objects.filter(state="unregistered").count() <= TOMBSTONES
