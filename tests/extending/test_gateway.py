"""A new gateway needs its own files and its registration: nothing else knows it, and nothing else has to."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import LazySettings

from notifications.gateways import registry
from notifications.models import Attempt
from registrations import intake
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Registration, RegistrationEvent, Route
from tests.delivering import DeliveryProcess, fresh, make_due
from tests.extending import web_push
from tests.extending.web_push import Subscription, WebPushGateway

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
INSTALLATION = "0d6f6d0e-9c3c-4a06-8d0b-6e6b1f2b9a11"
ACCESS_TOKEN = "9a1f2b9a-0d6f-4a06-8d0b-6e6b6d0e9c3c"
ENDPOINT = "https://push.test/endpoint"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> WebPushGateway:
    monkeypatch.setattr(registry, "_openers", dict(registry._openers))
    web_push.register()
    opened = registry.gateway_for(web_push.NAME)
    assert isinstance(opened, WebPushGateway)
    return opened


def register(endpoint: str = ENDPOINT, *, version: int = 1, gateway: str = web_push.NAME) -> Route:
    """As a bridge does that takes subscriptions of browsers."""
    message = RegistrationMessage(
        INSTALLATION,
        version=version,
        token_type=TokenType.FIREBASE,
        device_token=json.dumps({"endpoint": endpoint, "p256dh": "key", "auth": "secret"}),
        access_token=ACCESS_TOKEN,
        grant=b"g" * 65,
        enabled=True,
    )
    submission = intake.Submission(b"k" * 64, endpoint.encode(), message, grant_verified=True)
    [outcome] = intake.register([submission], gateway=gateway, is_address=web_push.is_address, now=NOW)
    assert outcome.is_accepted
    return Registration.objects.get().route


@pytest.mark.django_db
def test_a_gateway_that_nobody_else_knows_takes_the_pushes_of_its_routes(gateway: WebPushGateway) -> None:
    notification = make_due(route=register(), message=b"ciphertext")

    DeliveryProcess(gateways=registry.gateway_for).work_off()

    assert gateway.sent == [(Subscription(ENDPOINT, "key", "secret"), b"ciphertext")]
    assert fresh(notification).state == "delivered"
    assert (Attempt.objects.get().gateway, Attempt.objects.get().outcome) == ("web_push", "delivered")


@pytest.mark.django_db
def test_what_it_finds_faulty_is_not_sent(gateway: WebPushGateway) -> None:
    notification = make_due(route=register("http://not.encrypted.test"))

    DeliveryProcess(gateways=registry.gateway_for).work_off()

    assert (gateway.sent, fresh(notification).state, Attempt.objects.get().code) == ([], "dead_token", "no_endpoint")


@pytest.mark.django_db
@pytest.mark.usefixtures("gateway")
def test_an_address_that_is_gone_is_not_sent_to_again() -> None:
    route = register(f"{ENDPOINT}/gone")

    make_due(route=route)
    DeliveryProcess(gateways=registry.gateway_for).work_off()

    assert (fresh(route).state, fresh(route).disabled_reason) == ("disabled", "gone")


@pytest.mark.django_db
@pytest.mark.usefixtures("gateway")
def test_the_same_address_at_another_gateway_is_another_one() -> None:
    register(gateway="another")
    route = register(version=2)

    assert (route.gateway, route.generation) == ("web_push", 2)
    assert [event.kind for event in RegistrationEvent.objects.order_by("pk")] == ["registered", "token_changed"]


@pytest.mark.django_db
@pytest.mark.usefixtures("gateway")
def test_its_addresses_stay_secret() -> None:
    route = register()

    assert b"push.test" not in bytes(route.address_encrypted)


def test_registrations_of_phones_go_to_a_gateway_that_there_is(settings: LazySettings) -> None:
    assert settings.STATUS_GATEWAY in registry.names()


def test_nothing_else_in_notifications_says_gorush() -> None:
    own = ROOT / "notifications" / "gateways" / "gorush"
    others = [file for file in (ROOT / "notifications").rglob("*.py") if own not in file.parents]
    sources = [file for file in others if not {"migrations", "tests"} & set(file.parts)]

    assert len(sources) > 20
    assert [file.name for file in sources if re.search("gorush", file.read_text(encoding="utf-8"), re.IGNORECASE)] == []
