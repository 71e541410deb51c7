"""Drill of docs/backup.md, "Changing the server's key", for XMPP devices: no device is cut off whose app starts while
both keys are served.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest
from coincurve import PrivateKey
from django.conf import LazySettings
from django.core.management import call_command
from django.utils import timezone

from notifications.queues.disabling import disable_dead
from registrations.models import Route
from waku_bridge import identity as waku_identity
from waku_bridge.codec.keys import Identity, chat_key
from xmpp_bridge import identity
from xmpp_bridge.canary import traces
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.component.announcing import find_ended, write_ends
from xmpp_bridge.models import App, Device
from xmpp_bridge.rules.limits import Rates
from xmpp_bridge.tests.talking import (
    SERVICE,
    Registered,
    Service,
    disabled_client,
    encrypted,
    error_of,
    make_app,
    publish,
    push2,
)

pytestmark = pytest.mark.django_db
OLD, NEW = b"\x21" * 32, b"\x22" * 32
ROMEO = "romeo@montague.example/x"
CACHED = (identity.client_keys, waku_identity.server_identity, waku_identity.server_identities)
Serve = Callable[..., Service]


@pytest.fixture
def serve(settings: LazySettings) -> Iterator[Serve]:
    """Return ``serve(key, *others)``, which restarts the component with these keys."""

    def restart(own: bytes, *others: bytes, rates: Rates | None = None) -> Service:
        settings.SERVER_PRIVATE_KEY, settings.OTHER_SERVER_PRIVATE_KEYS = own, list(others)
        forget()
        return Service(rates)

    def forget() -> None:
        for function in CACHED:
            function.cache_clear()

    yield restart
    forget()


def is_served(service: Service, device: Registered, *, sender: str = "capulet.test") -> bool:
    """Return whether a device gets pushes by Push 2.0 and by XEP-0357."""
    ciphertext = b64encode(device.client.encode()).decode()
    is_set = service.receive(push2(device.client, encrypted(ciphertext), sender=sender)) is not None
    answer = service.receive(publish(device.node, device.secret, sender=sender))
    assert answer is not None
    is_known = answer.get("type") == "result"
    assert is_known != is_set
    return is_known


def test_the_server_changes_its_key_and_no_device_is_cut_off(serve: Serve) -> None:
    make_app()
    service = serve(OLD)
    juliet, romeo = service.register(), service.register(sender=ROMEO)

    service = serve(OLD, NEW)
    assert service.register() == juliet
    assert is_served(service, juliet)

    service = serve(NEW, OLD)  # apps start one after another, and make their servers enable the new client string
    assert is_served(service, juliet)
    assert is_served(service, romeo, sender="montague.example")
    new_juliet = service.register()
    assert (new_juliet.node, Device.objects.count()) == (juliet.node, 2)
    assert new_juliet.client != juliet.client
    assert is_served(service, new_juliet)
    assert is_served(service, juliet)  # her server does not have the new client string yet
    new_romeo = service.register(sender=ROMEO)

    service = serve(NEW)  # every app has the new key
    assert is_served(service, new_juliet)
    assert is_served(service, new_romeo, sender="montague.example")
    assert error_of(service.receive(push2(juliet.client))) == ("cancel", "item-not-found")


def test_the_app_of_a_canary_with_the_old_key_is_offered_to_nobody_and_removed(serve: Serve) -> None:
    make_app()
    serve(OLD)
    traces.make_app()
    serve(NEW, OLD).register()
    traces.remove_traces()
    assert [app.slug for app in App.objects.all()] == ["chat"]


def test_an_account_has_no_more_devices_because_the_key_is_being_changed(serve: Serve) -> None:
    make_app()
    serve(OLD).register()
    service = serve(NEW, OLD, rates=Rates(devices_per_user=1))
    fields = {"token": "ab" * 32, "device-id": "tablet"}
    assert error_of(service.command("register-push-apns", fields)) == ("wait", "resource-constraint")


def test_unregistering_finds_a_device_of_the_old_key(serve: Serve) -> None:
    make_app()
    serve(OLD).register()
    serve(NEW, OLD).command("unregister-push-apns", {"device-id": "phone"})
    assert Device.objects.get().state == Device.State.UNREGISTERED


def test_an_end_is_announced_by_the_client_string_that_the_app_was_given(serve: Serve) -> None:
    make_app()
    service = serve(OLD)
    juliet = service.register()
    service.receive(push2(juliet.client))
    serve(NEW, OLD)
    route = Route.objects.get()
    disable_dead(route.pk, route.generation, route.address_digest, "dead", now=timezone.now())
    [announced] = write_ends(find_ended(), domain=SERVICE)
    assert disabled_client(parse(announced)) == juliet.client


def test_the_operator_sees_how_many_devices_depend_on_each_key(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    make_app()
    service = serve(OLD)
    service.register()
    service.register(sender=ROMEO)
    serve(NEW, OLD).register()
    call_command("server_keys")
    names = {key: chat_key(Identity(PrivateKey(key)).pub33) for key in (OLD, NEW)}
    own, other = [line.split() for line in capsys.readouterr().out.splitlines() if "XMPP devices" in line]
    assert own == ["1", "XMPP", "devices", names[NEW], "SERVER_PRIVATE_KEY"]
    assert other == ["1", "XMPP", "devices", names[OLD], "OTHER_SERVER_PRIVATE_KEYS"]

    serve(NEW)
    call_command("server_keys")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split()[:4] == ["1", "XMPP", "devices", "were"]
