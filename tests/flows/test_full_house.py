"""Registrations that one person makes up: while the table is full, and under hundreds of names for one phone.

All from envelope to reply. The clock is the test's, so that hours pass.
"""

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.utils import timezone

from notifications.messages import Outcome, Result
from notifications.models import Channel, Halt, Notification
from registrations.messages import TokenType
from registrations.models import Registration, Route
from registrations.rules import PROVEN_PER_ADDRESS
from tests.rig.conversation import OUTSIDER, anybody, push, registration, replies_to, request, say
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.rows import apn_token, delete_all, firebase_token
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import RegistrationError, WakuMessage
from waku_bridge.models import OutboundReply

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
OK = "NONE"


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
        delete_all(OutboundReply)
        say(*messages.values(), now=self.now, process=self.process)
        errors = [reply.body.error for identity in messages for reply in replies_to(identity)]
        return [RegistrationError(error).name for error in errors]

    def new_ones(self, number: int, *, after: timedelta = timedelta(), **fields: object) -> list[Identity]:
        """Let time pass and new identities register, and return them."""
        self.now += after
        found = [anybody() for _ in range(number)]
        assert self.register(*found, **fields) == [OK] * number
        return found

    def reach(self, *identities: Identity) -> None:
        """Have a push to each of these identities requested by a sender of its own, and tried."""
        for each in identities:
            wanted = request(push(each), signer=(sender := anybody()), message_id=sender.key_hash)
            say(wanted, now=self.now, process=self.process)
        self.process.process_backlog(now=self.now)

    def left_of(self, identities: list[Identity]) -> int:
        return Registration.objects.filter(public_key_hash__in=[each.key_hash for each in identities]).count()


@pytest.fixture
def house(settings: LazySettings) -> House:
    settings.MAX_REGISTRATIONS = 6
    return House()


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


# One phone ------------------------------------------------------------------------------------------------------------

APPLE = {"token_type": TokenType.APN, "app_topic": "im.status.ethereum"}
REFUSALS = {
    "dead": Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True),
    "of another app": Result(Outcome.CONFIG, "DeviceTokenNotForTopic", is_guarded=True),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_neither_made_up_tokens_nor_a_token_of_another_app_stop_an_app(
    house: House, settings: LazySettings, refusal: str
) -> None:
    """The abuser's own phone gets a push under each name, and then each name gets a made-up token."""
    settings.MAX_REGISTRATIONS, settings.SENDER_LIMITS = 1000, settings.GLOBAL_LIMITS
    good, of_victim = apn_token("of the stranger"), apn_token("of a victim")
    working = {good, of_victim}
    house.gateway.answer = lambda push: (
        Result(Outcome.DELIVERED) if push.address.decode() in working else REFUSALS[refusal]
    )
    names, [victim] = house.new_ones(40, device_token=good, **APPLE), house.new_ones(1, device_token=of_victim, **APPLE)
    house.reach(*names, victim)
    assert Notification.objects.filter(state="delivered").count() == 41
    assert Route.objects.filter(is_proven=True).count() == PROVEN_PER_ADDRESS + 1

    for name in names:
        assert house.register(name, version=2, device_token=apn_token(), **APPLE) == [OK]
    house.reach(*names)
    working.remove(good)  # the app is removed from the phone
    assert house.register(*names, version=3, device_token=good, **APPLE) == [OK] * 40
    house.reach(*names)

    assert not Halt.objects.in_force().exists()
    assert not Channel.objects.filter(deaths_distrusted_since__isnull=False).exists()
    house.reach(victim)
    assert Notification.objects.filter(state="delivered", public_key_hash=victim.key_hash).count() == 2
