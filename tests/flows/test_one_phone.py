"""Abuse by one sender whose phone is registered under hundreds of names: it stops no app for other users."""

import itertools
import secrets
from uuid import UUID

import pytest
from django.utils import timezone

from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Incoming
from notifications.messages import Outcome, Push, PushNotification, PushRequest, Result
from notifications.models import Channel, Halt, Notification
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Route
from registrations.registering import intake
from registrations.registering.intake import Submission
from registrations.rules import PROVEN_PER_ADDRESS, Acceptance
from tests.budget import first_everyday
from tests.delivering import DeliveryProcess, RecordingGateway
from tests.factories import apn_token

APP = "im.status.ethereum"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
DELIVERED = Result(Outcome.DELIVERED)
REFUSALS = {
    "dead": Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True),
    "of another app": Result(Outcome.CONFIG, "DeviceTokenNotForTopic", is_guarded=True),
}
versions = itertools.count(1)

pytestmark = pytest.mark.django_db


def installation(name: bytes) -> str:
    return str(UUID(bytes=name[:16], version=4))


def register(names: list[bytes], tokens: list[str], *, app: str = APP) -> None:
    version = next(versions)
    messages = [
        RegistrationMessage(
            installation(name), version, TokenType.APN, token, app, TOKEN, grant=b"g" * 65, enabled=True
        )
        for token, name in zip(tokens, names, strict=True)
    ]
    shown = [
        Submission(name * 2, secrets.token_bytes(8), message, grant_verified=True)
        for name, message in zip(names, messages, strict=True)
    ]
    outcomes = intake.register(shown, bridge="waku", gateway="gorush", now=timezone.now())
    assert {outcome.decision for outcome in outcomes} == {Acceptance.REGISTER}


def ask(deliverer: DeliveryProcess, names: list[bytes]) -> None:
    """Notify each of these names from a sender of its own, and wait for the end."""
    batch = []
    for name in names:
        key = secrets.token_bytes(32)
        wanted = PushNotification(name * 2, installation(name), TOKEN, 1, b"chat", b"", b"sealed")
        batch.append(Incoming(key, key, b"back", key, PushRequest(key, (wanted,)), timezone.now()))
    sending = acceptance.Sending(deliverer.delivery.lease, deliverer.delivery.limits)
    accepted = acceptance.accept("test-bridge", batch, sending=sending, now=timezone.now())
    deliverer.delivery.accepted(accepted.claims, [])
    deliverer.process_backlog()


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("count", first_everyday(40, 500))
def test_neither_made_up_tokens_nor_a_token_of_another_app_stop_an_app(settings, refusal: str, count: int) -> None:
    """The abuser's own phone got a push under each name, and then each name gets a made-up token."""
    settings.SENDER_LIMITS = settings.GLOBAL_LIMITS
    good, victim = apn_token("of the stranger"), secrets.token_bytes(32)
    working = {good, apn_token("of a victim")}

    def answer(push: Push) -> Result:
        return DELIVERED if push.address.decode() in working and push.channel.app_topic == APP else REFUSALS[refusal]

    deliverer = DeliveryProcess(RecordingGateway(answer))
    names = [secrets.token_bytes(32) for _ in range(count)]
    register([*names, victim], [good] * count + [apn_token("of a victim")])
    ask(deliverer, [*names, victim])
    assert Notification.objects.filter(state="delivered").count() == count + 1
    assert Route.objects.filter(is_proven=True).count() == PROVEN_PER_ADDRESS + 1

    register(names, [apn_token() for _ in names])
    ask(deliverer, names)
    working.remove(good)  # the app is removed from the phone
    register(names, [good] * count)
    ask(deliverer, names)

    assert not Halt.objects.exists()
    assert not Channel.objects.filter(deaths_distrusted_since__isnull=False).exists()
    ask(deliverer, [victim])
    assert Notification.objects.filter(state="delivered", public_key_hash=victim * 2).count() == 2


def test_a_token_that_was_delivered_to_in_one_app_is_proven_in_no_other_one() -> None:
    good, name = apn_token("of the stranger"), secrets.token_bytes(32)
    deliverer = DeliveryProcess(RecordingGateway())
    register([name], [good], app="org.outsider")
    ask(deliverer, [name])
    assert Route.objects.get().is_proven
    register([name], [good], app=APP)
    assert not Route.objects.get().is_proven


def test_unregistering_leaves_nothing_proven() -> None:
    good, name = apn_token("of the stranger"), secrets.token_bytes(32)
    deliverer = DeliveryProcess(RecordingGateway())
    register([name], [good])
    ask(deliverer, [name])
    message = RegistrationMessage(installation(name), next(versions), unregister=True)
    intake.register(
        [Submission(name * 2, b"u", message, grant_verified=False)], bridge="waku", gateway="gorush", now=timezone.now()
    )
    register([name], [good])
    assert not Route.objects.get().is_proven
