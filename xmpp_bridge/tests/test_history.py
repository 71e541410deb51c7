"""History of devices, from which the churn reports are made: the recorded events, and the pseudonym of each."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from notifications.console import operator_actions
from notifications.queues import disabling
from registrations.models import RegistrationEvent, Route
from xmpp_bridge.devices import retention
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import FCM_TOKEN, T0, Service

pytestmark = pytest.mark.django_db


def history() -> list[tuple[str, int, str]]:
    """Return the recorded events. All of them are of this bridge."""
    events = RegistrationEvent.objects.order_by("pk")
    assert {event.bridge for event in events} <= {"xmpp"}
    return [(event.kind, event.token_type, event.app_topic) for event in events]


def unregister(service: Service, platform: str = "apns") -> None:
    service.command(f"unregister-push-{platform}", {"device-id": "phone"})


def test_each_registration_and_the_end_are_recorded_under_one_pseudonym(service: Service) -> None:
    service.register()
    service.register()
    yesterday = timezone.now() - timedelta(days=1)
    Device.objects.update(registered_at=yesterday)
    service.register()
    service.register()
    service.register(token="ef" * 32)
    service.register(platform="fcm")
    unregister(service, "fcm")

    apple, firebase = (1, "org.example.chat"), (2, "")
    assert history() == [
        ("registered", *apple),
        ("refreshed", *apple),
        ("token_changed", *apple),
        ("token_changed", *firebase),
        ("unregistered", *firebase),
    ]
    [pseudonym] = set(RegistrationEvent.objects.values_list("pseudonym", flat=True))
    assert pseudonym != Device.objects.get().pk
    assert not Route.objects.exists()  # so that nothing leads from the pseudonym to the device any more


def test_a_device_that_registers_again_after_its_end_gets_another_pseudonym(service: Service) -> None:
    service.register()
    unregister(service)
    service.register()

    assert [kind for kind, *_ in history()] == ["registered", "unregistered", "registered"]
    assert RegistrationEvent.objects.values("pseudonym").distinct().count() == 2


def test_the_death_and_the_revival_of_a_token_are_recorded(service: Service) -> None:
    service.register()
    route = Route.objects.get()

    disabling.disable_dead(route.pk, route.generation, route.address_digest, "device_gone", now=T0)
    operator_actions.enable_routes([route.pk], now=T0)
    disabling.disable_dead(route.pk, route.generation, route.address_digest, "device_gone", now=T0)
    service.register()

    assert [kind for kind, *_ in history()] == ["registered", "token_died", "revived", "token_died", "refreshed"]


def test_the_expiry_of_an_unused_device_is_recorded(service: Service) -> None:
    service.register()
    registered_at = Device.objects.get().registered_at

    assert sum(retention.expire(now=registered_at + timedelta(days=91), keep=timedelta(days=90))) == 1

    assert [kind for kind, *_ in history()] == ["registered", "expired"]


def test_a_device_without_history_begins_one_with_its_next_registration(service: Service) -> None:
    service.register(platform="fcm")
    Route.objects.update(pseudonym=None)
    RegistrationEvent.objects.all().delete()

    route = Route.objects.get()
    disabling.disable_dead(route.pk, route.generation, route.address_digest, "device_gone", now=T0)
    assert history() == []
    service.register(platform="fcm", token=FCM_TOKEN)

    assert history() == [("registered", 2, "")]


def test_the_page_of_a_device_leads_to_its_history(service: Service, admin_client: Client) -> None:
    service.register()

    page = admin_client.get(f"/admin/xmpp_bridge/device/{Device.objects.get().pk}/change/").content.decode()

    link = f"/admin/registrations/registrationevent/?q={Route.objects.get().pseudonym}"
    assert link in page
    assert "registered" in admin_client.get(link).content.decode()
