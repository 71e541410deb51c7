"""Registrations while the table is full: from envelope to reply. The clock is the test's, so that hours pass."""

from datetime import timedelta
from itertools import count

import pytest
from coincurve import PrivateKey
from django.conf import LazySettings
from django.utils import timezone

from notifications.messages import Outcome, Result
from notifications.models import Notification
from registrations.models import Registration, Route
from registrations.upkeep import stock
from tests.batches import Process
from tests.conversation import OUTSIDER, push, registration, replies_to, request, say
from tests.delivering import RecordingGateway
from tests.factories import firebase_token
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import RegistrationError, WakuMessage
from waku_bridge.models import OutboundReply

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
OK = "NONE"
keys = count(5000)


class House:
    """A server with places for ``size`` registrations. Its clock is ``now``."""

    def __init__(self) -> None:
        self.gateway = RecordingGateway()
        self.process = Process(self.gateway)
        self.now = timezone.now()

    def register(self, *identities: Identity, **fields: object) -> list[str]:
        """Have each of these identities register or unregister in one batch, and return the answer to each."""
        own = {} if "device_token" in fields else {"device_token": firebase_token()}
        return self.decide({each: registration(each, **own, **fields) for each in identities})

    def decide(self, messages: dict[Identity, WakuMessage]) -> list[str]:
        """Have messages decided in one batch, and return the answers."""
        OutboundReply.objects.all().delete()
        say(*messages.values(), now=self.now, process=self.process)
        errors = [reply.body.error for identity in messages for reply in replies_to(identity)]
        return [RegistrationError(error).name for error in errors]

    def new_ones(self, number: int, *, after: timedelta = timedelta(), **fields: object) -> list[Identity]:
        """Let time pass and new identities register, and return them."""
        self.now += after
        found = [person() for _ in range(number)]
        assert self.register(*found, **fields) == [OK] * number
        return found

    def reach(self, *identities: Identity) -> None:
        """Have a push to each of these identities requested and tried."""
        for number, each in enumerate(identities):
            say(request(push(each), message_id=b"to %d" % number), now=self.now, process=self.process)
        self.process.process_backlog(now=self.now)

    def left_of(self, identities: list[Identity]) -> int:
        return Registration.objects.filter(public_key_hash__in=[each.key_hash for each in identities]).count()


def person() -> Identity:
    return Identity(PrivateKey(next(keys).to_bytes(32)))


@pytest.fixture
def house(settings: LazySettings) -> House:
    settings.MAX_REGISTRATIONS = 6
    return House()


def test_new_installations_replace_made_up_installations_and_none_of_a_quiet_hour(house: House) -> None:
    quiet, crowd = house.new_ones(2), house.new_ones(4, after=HOUR)
    for _ in range(2):
        house.new_ones(1, after=2 * HOUR)
    assert (house.left_of(quiet), house.left_of(crowd)) == (2, 2)


def test_nobody_is_replaced_within_an_hour(house: House) -> None:
    crowd = house.new_ones(6)
    house.now += HOUR - timedelta(seconds=1)
    assert house.register(OUTSIDER) == ["INTERNAL_ERROR"]
    assert house.register(*crowd, version=2) == [OK] * 6  # known ones are never refused
    house.now += timedelta(seconds=1)
    assert house.register(OUTSIDER) == [OK]
    assert house.left_of(crowd) == 5


def test_disabled_ones_go_first_whatever_their_age(house: House) -> None:
    house.new_ones(2)
    crowd, dead = house.new_ones(3, after=3 * HOUR), house.new_ones(1)
    Route.objects.filter(registration__public_key_hash=dead[0].key_hash).update(state="disabled")
    house.new_ones(1)
    assert (house.left_of(crowd), house.left_of(dead)) == (3, 0)


def test_a_user_who_got_a_push_stays_also_with_another_token(house: House) -> None:
    proven = house.new_ones(6)
    house.reach(*proven)
    assert house.register(*proven[:2], version=2) == [OK] * 2
    house.now += 9 * HOUR
    assert house.register(OUTSIDER) == ["INTERNAL_ERROR"]
    assert house.register(proven[0], version=3, unregister=True) == [OK]
    assert house.register(OUTSIDER, version=2) == [OK]


def test_one_phone_under_many_keys_proves_twenty_of_them(house: House, settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 25
    phones = house.new_ones(25, device_token=firebase_token("one-phone"))
    house.reach(*phones)
    assert Notification.objects.filter(state="delivered").count() == 25
    house.new_ones(5, after=2 * HOUR)
    assert house.left_of(phones) == 20
    assert house.register(OUTSIDER) == ["INTERNAL_ERROR"]


def test_pushes_to_the_replaced_are_withdrawn(house: House) -> None:
    crowd = house.new_ones(6)
    house.gateway.answer = lambda _: Result(Outcome.TRANSIENT, "busy")
    house.reach(*crowd)
    assert Notification.objects.filter(state="retrying").count() == 6
    house.new_ones(1, after=2 * HOUR)
    assert Notification.objects.filter(state="withdrawn").count() == 1
    [gone] = Notification.objects.filter(state="withdrawn")
    assert not Registration.objects.filter(public_key_hash=gone.public_key_hash).exists()


def test_an_installation_that_is_named_in_the_same_batch_stays(house: House) -> None:
    crowd = house.new_ones(6)
    house.now += 2 * HOUR
    again = {each: registration(each, version=2) for each in crowd}
    assert house.decide({OUTSIDER: registration(OUTSIDER), **again}) == ["INTERNAL_ERROR", *[OK] * 6]
    assert house.left_of(crowd) == 6


def test_the_replaced_register_again_with_what_they_sent_before_and_newer_versions_count(house: House) -> None:
    crowd = house.new_ones(6, version=5)
    house.new_ones(1, after=2 * HOUR)
    [gone] = [each for each in crowd if not house.left_of([each])]
    assert house.register(gone, version=5) == [OK]
    assert Registration.objects.get(public_key_hash=gone.key_hash).grants.count() == 1
    assert house.register(gone, version=4) == ["VERSION_MISMATCH"]
    assert house.register(gone, version=6) == [OK]
    house.reach(gone)
    assert Notification.objects.filter(public_key_hash=gone.key_hash, state="delivered").exists()


def test_unregistering_never_fails_and_only_the_newest_of_unknown_are_remembered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "MAX_FORGETTABLE", 3)
    [reached, *_] = known = house.new_ones(2)
    house.reach(reached)
    assert house.register(*known, version=2, unregister=True) == [OK] * 2
    unknown = [person() for _ in range(5)]
    for each in unknown:
        house.now += timedelta(seconds=1)
        assert house.register(each, version=2, unregister=True) == [OK]
    remembered = [each for each in [*known, *unknown] if house.left_of([each])]
    assert remembered == [reached, *unknown[-3:]]
    assert house.register(*remembered, version=1) == ["VERSION_MISMATCH"] * 4
    assert house.register(known[1], version=1) == [OK]  # its recording may register again
