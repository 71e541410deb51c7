"""Calls of hostile servers to a phone, beside those of its user's own server, for half an hour.

The user has accounts on all of these servers, each with a device that has the phone's token. Everything is real from
the stanza to the push, and the clock is the test's.
"""

from datetime import timedelta
from itertools import count

import pytest
from django.utils import timezone

from kit.db.clock import clock
from notifications.models import Notification
from tests.delivering import DeliveryProcess
from xmpp_bridge.models import Device
from xmpp_bridge.tests.talking import SERVER, Registered, Service, encrypted, make_app, push2

pytestmark = [pytest.mark.chaos, pytest.mark.django_db]
HOSTILE = [f"evil{number}.test" for number in range(3)]
SECONDS, HOSTILE_EVERY, HONEST_EVERY = 1800, 5, 60
texts = count()


def test_calls_of_hostile_servers_take_none_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    make_app()
    service, process = Service(), DeliveryProcess()
    phone = service.register()
    theirs = [service.register(sender=f"juliet@{domain}/phone") for domain in HOSTILE]
    began = now = timezone.now()
    monkeypatch.setattr(type(clock), "now", lambda _: now)
    honest, hostile = list[bool](), list[bool]()
    for seconds in range(0, SECONDS, HOSTILE_EVERY):
        now = began + timedelta(seconds=seconds)
        hostile += [call(service, device, domain) for device, domain in zip(theirs, HOSTILE, strict=True)]
        if seconds % HONEST_EVERY == 0:
            honest.append(call(service, phone, SERVER))
        process.process_backlog(now=now)
    rung = Notification.objects.filter(
        installation_id=str(Device.objects.get(domain=SERVER).pk), grade="voip", state="delivered"
    ).count()
    print(
        f"\n9: {len(honest)} honest calls in {SECONDS // 60} minutes: {sum(honest)} accepted, {rung} rang; of "
        f"{len(hostile)} by {len(HOSTILE)} hostile servers {sum(hostile)} were accepted"
    )
    assert rung >= 0.95 * len(honest)
    assert sum(hostile) < len(hostile)


def call(service: Service, device: Registered, domain: str) -> bool:
    """Call a device of a user of this domain, and return whether the call was accepted."""
    ciphertext = f"{next(texts):04}"
    return service.receive(push2(device.client, encrypted(ciphertext, voip=True), sender=domain)) is None
