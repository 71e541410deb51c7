"""Test-only gateway: it consists of its own files and its registration, and no other module names it."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from kit.db.base import fetch
from notifications import gateways
from notifications.models import Attempt
from pushserver.console import parts
from pushserver.console.health import traffic
from pushserver.console.models import Count
from registrations import messages, registering
from registrations.messages import RegistrationMessage
from registrations.models import Registration, RegistrationEvent, Route
from registrations.rules import Refusal, check_device_token, check_token_type
from spark_reports.export.queries import attempts
from tests.extending.web_push.gateway import NAME, TOKEN_TYPE, Subscription, WebPushGateway, check_address
from tests.extending.web_push.part import WEB_PUSH
from tests.rig.delivering import DeliveryProcess, fresh, make_due

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
INSTALLATION = "0d6f6d0e-9c3c-4a06-8d0b-6e6b1f2b9a11"
ACCESS_TOKEN = "9a1f2b9a-0d6f-4a06-8d0b-6e6b6d0e9c3c"
ENDPOINT = "https://push.test/endpoint"
SERVER = (
    "kit",
    "registrations",
    "notifications",
    "waku_bridge",
    "xmpp_bridge",
    "spark_reports",
    "pushserver",
    "templates",
)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, settings: LazySettings) -> WebPushGateway:
    """The gateway, with its app in INSTALLED_APPS, and its line in `pushserver/console/parts.py`."""
    for registered in ((gateways, "_openers"), (messages, "_kinds")):
        monkeypatch.setattr(*registered, dict(getattr(*registered)))
    monkeypatch.setattr(parts, "PARTS", [*parts.PARTS, WEB_PUSH])
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.extending.web_push"]
    opened = gateways.gateway_for(NAME)
    assert isinstance(opened, WebPushGateway)
    return opened


def register(endpoint: str = ENDPOINT, *, version: int = 1, gateway: str = NAME) -> Route:
    """Register an address, as a bridge does that takes subscriptions of browsers."""
    message = RegistrationMessage(
        INSTALLATION,
        version=version,
        token_type=TOKEN_TYPE,
        device_token=json.dumps({"endpoint": endpoint, "p256dh": "key", "auth": "secret"}),
        access_token=ACCESS_TOKEN,
        grant=b"g" * 65,
        enabled=True,
    )
    submission = registering.Submission(b"k" * 64, endpoint.encode(), message, grant_verified=True)
    [outcome] = registering.register([submission], bridge="waku", gateway=gateway, check_address=check_address, now=NOW)
    assert outcome.is_accepted
    return Registration.objects.get().route


@pytest.mark.django_db
def test_the_new_gateway_takes_the_pushes_of_its_routes(gateway: WebPushGateway) -> None:
    notification = make_due(route=register(), message=b"ciphertext")

    DeliveryProcess(gateways=gateways.gateway_for).process_backlog()

    assert gateway.sent == [(Subscription(ENDPOINT, "key", "secret"), b"ciphertext")]
    assert fresh(notification).state == "delivered"
    assert (Attempt.objects.get().gateway, Attempt.objects.get().outcome) == ("web_push", "delivered")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("endpoint", "sent", "code"), [("http://not.encrypted.test", 0, "no_endpoint"), (f"{ENDPOINT}/gone", 1, "gone")]
)
def test_an_address_that_is_faulty_or_gone_is_not_sent_to_again(
    gateway: WebPushGateway, endpoint: str, sent: int, code: str
) -> None:
    notification = make_due(route=register(endpoint))

    DeliveryProcess(gateways=gateways.gateway_for).process_backlog()

    assert (len(gateway.sent), fresh(notification).state, Attempt.objects.get().code) == (sent, "dead_token", code)
    assert (fresh(notification.route).state, fresh(notification.route).disabled_reason) == ("disabled", code)


@pytest.mark.django_db
@pytest.mark.usefixtures("gateway")
def test_the_same_address_at_another_gateway_is_another_one() -> None:
    register(gateway="another")
    route = register(version=2)

    assert b"push.test" not in bytes(route.address_encrypted)
    assert (route.gateway, route.generation) == ("web_push", 2)
    assert [event.kind for event in RegistrationEvent.objects.order_by("pk")] == ["registered", "token_changed"]


@pytest.mark.django_db
@pytest.mark.usefixtures("gateway")
def test_operators_see_the_new_gateway_like_any_other(admin_client: Client) -> None:
    notification = make_due(route=register(f"{ENDPOINT}/gone"))
    DeliveryProcess(gateways=gateways.gateway_for).process_backlog()

    board = admin_client.get("/admin/").content.decode()
    timeline = admin_client.get(f"/admin/timelines/{notification.pk}/").content.decode()
    route = admin_client.get(f"/admin/registrations/route/{notification.route_id}/change/").content.decode()

    assert "1 are gone" in board
    assert "Their attempts" in board  # in the menu
    assert 'href="/rules/gone"' in timeline
    assert "Browser" in route


@pytest.mark.django_db
@pytest.mark.usefixtures("gateway")
def test_traffic_and_reports_name_the_platform_of_the_new_gateway() -> None:
    make_due(route=register(), at=timezone.now())
    DeliveryProcess(gateways=gateways.gateway_for).process_backlog()
    started_at = Attempt.objects.get().started_at
    minute = started_at.replace(second=0, microsecond=0)

    traffic.count(minute, now=minute + traffic.MINUTE)
    exported = fetch(attempts(started_at.astimezone(UTC).date()))

    assert Count.objects.get(figure="attempts").subject == "Browser"
    assert [row[1:3] for row in exported] == [("web", "")]


@pytest.mark.usefixtures("gateway")
def test_waku_refuses_the_token_type_of_the_new_gateway() -> None:
    message = RegistrationMessage(INSTALLATION, version=1, token_type=TOKEN_TYPE, device_token="{}")

    assert check_device_token(message) is Refusal.UNSUPPORTED_TOKEN_TYPE
    assert check_token_type(message) is Refusal.UNSUPPORTED_TOKEN_TYPE


# Its line, its settings and tasks, its chain of the canary with the API's answer about that, its config checks, and the
# command that writes generated pages, one of which has gorush's error rules.
MAY_NAME = (
    r"pushserver/(settings|config/(kinds|role)|api/(answers|urls|views)|management/commands/reference"
    r"|console/(parts|models|tasks|canary/__init__|(canary|checks)/{0}))\.py"
)


@pytest.mark.parametrize(("name", "own"), [("gorush", "notifications/gateways/gorush"), ("xmpp", "xmpp_bridge")])
def test_few_files_outside_of_its_two_folders_name_a_gateway_or_bridge(name: str, own: str) -> None:
    """Each has a folder on the path and one in the console, and what is listed here."""
    files = [file for folder in SERVER for file in (ROOT / folder).rglob("*") if file.suffix in {".py", ".html"}]
    others = [
        file
        for file in files
        if not {ROOT / own, ROOT / "pushserver/console" / name} & set(file.parents)
        and not {"migrations", "tests"} & set(file.parts)
    ]

    assert len(others) > 300
    naming = [file for file in others if re.search(name, file.read_text(encoding="utf-8"), re.IGNORECASE)]
    assert [file for file in naming if not re.fullmatch(MAY_NAME.format(name), str(file.relative_to(ROOT)))] == []
