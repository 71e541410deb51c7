"""Ended routes, and an unavailable database, as the user's server sees them (cases 10 and 11)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psycopg
import pytest

from notifications.messages import Grade
from tests.interop.xmpp.peers import SERVICE, write_to_absent
from tests.interop.xmpp.service import Service, android, ciphertext, iv, until
from tests.interop.xmpp.test_pushes import enable_push, write
from xmpp_bridge.client import Dialect, Disabled, Failed, Notification, Route, Stored

pytestmark = pytest.mark.xmpp

# A provider may report a dead token by mistake. For some kinds of error the server therefore requires a second report.
DEAD = "expired-"


async def kill(service: Service, route: Route, server: object, token: str) -> None:
    """Make Google report that the device is gone, and wait until the server has recorded it."""
    server.notify(route, Notification(Grade.NORMAL, ciphertext(), iv()))
    dead = """
        SELECT 1 FROM registrations_route AS route JOIN xmpp_bridge_device AS device ON device.route_id = route.id
        WHERE route.state = 'disabled' AND device.id = %s
    """
    [(device,)] = service.fleet.rows("SELECT id FROM xmpp_bridge_device ORDER BY registered_at DESC LIMIT 1")
    await until(lambda: service.fleet.rows(dead, device), what=f"the route is disabled: {token[:8]}")


@pytest.mark.requirement("X10")
async def test_the_end_of_a_route_is_announced_unasked_with_the_same_client_string(push_service: Service) -> None:
    device = android(DEAD)
    async with push_service.user_server() as server:
        route = await server.route(device)
        await kill(push_service, route, server, device.token)
        assert await server.next_event() == Disabled(route)
        assert server.core.routes == ()


@pytest.mark.requirement("X10")
async def test_the_end_is_announced_from_the_address_that_was_pushed_to(push_service: Service) -> None:
    device = android(DEAD)
    async with push_service.user_server() as server:
        route = await server.route(device, to=f"5891b5b522@{SERVICE}")
        await kill(push_service, route, server, device.token)
        assert await server.next_event() == Disabled(route)


@pytest.mark.requirement("X10")
async def test_a_push_to_a_dead_route_is_answered_gone_once_a_minute(push_service: Service) -> None:
    """Prosody's mod_push2 ignores the answer and goes on pushing."""
    device = android(DEAD)
    async with push_service.user_server() as server:
        route = await server.route(device)
        await kill(push_service, route, server, device.token)
        assert isinstance(await server.next_event(), Disabled)
        server.core.enable(route)
        [stanza] = server.notify(route, Notification())
        failed, disabled = await server.next_event(), await server.next_event()
        assert isinstance(failed, Failed)
        assert failed.identifier == stanza.get("id")
        assert str(failed.refusal) == "cancel/gone"
        assert failed.refusal.disabled_client == route.client
        assert disabled == Disabled(route)
        server.core.enable(route)
        for _ in range(3):
            server.notify(route, Notification())
        await server.wait_for_service()  # its answer comes after the three pushes, which got none
        with pytest.raises(TimeoutError):
            await server.next_event(timeout_seconds=0.2)


@pytest.mark.requirement("X10")
async def test_a_publish_to_a_dead_route_is_always_answered(push_service: Service) -> None:
    device = android(DEAD)
    async with push_service.user_server() as server:
        route = await server.route(device, Dialect.XEP0357)
        await kill(push_service, route, server, device.token)
        assert isinstance(await server.next_event(), Stored)
        for _ in range(3):
            server.notify(route, Notification())
            failed = await server.next_event()
            assert isinstance(failed, Failed)
            assert str(failed.refusal) == "cancel/item-not-found"


@pytest.mark.requirement("X10")
async def test_a_device_that_registers_again_after_its_end_is_pushed_to(push_service: Service) -> None:
    device = android(DEAD)
    async with push_service.user_server() as server:
        first = await server.register("phoenix", SERVICE, device)
        route = Route(SERVICE, Dialect.DRAFT, first.client)
        server.core.enable(route)
        await kill(push_service, route, server, device.token)
        assert isinstance(await server.next_event(), Disabled)
        moved = replace(device, token=android().token)
        again = await server.register("phoenix", SERVICE, moved)
        route = Route(SERVICE, Dialect.DRAFT, again.client)
        server.core.enable(route)
        server.notify(route, Notification())
        await push_service.wait_for_push(moved)


@asynccontextmanager
async def without_database(service: Service) -> AsyncIterator[None]:
    """End the connections to the service's database, and refuse new ones while the block runs."""
    url = service.fleet.environment["DATABASE_URL"]
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@pytest.mark.requirement("X11")
async def test_senders_get_wait_while_the_database_is_away_and_success_later(push_service: Service) -> None:
    device = android()
    async with push_service.user_server() as server:
        published = await server.route(device, Dialect.XEP0357)
        async with without_database(push_service):
            [stanza] = server.notify(published, Notification(Grade.NORMAL, ciphertext(), iv()))
            failed = await server.next_event()
            assert isinstance(failed, Failed)
            assert failed.refusal.kind == "wait"
            assert failed.refusal.condition in {"internal-server-error", "resource-constraint"}
        # The same id again, as the draft requires: the server does not remember a request that it answered with `wait`.
        event = failed
        while isinstance(event, Failed):
            event = await server.next_event()
        assert event == Stored(stanza.get("id"))
    assert len(await push_service.wait_for_pushes(device)) == 1


@pytest.mark.requirement("X11")
@pytest.mark.parametrize("dialect", [Dialect.DRAFT, Dialect.MOD_PUSH2])
async def test_a_message_gets_wait_while_the_database_is_away(push_service: Service, dialect: Dialect) -> None:
    async with push_service.user_server() as server:
        route = await server.route(android(), dialect)
        async with without_database(push_service):
            server.notify(route, Notification(Grade.NORMAL, ciphertext(), "" if dialect is Dialect.MOD_PUSH2 else iv()))
            failed = await server.next_event()
            assert isinstance(failed, Failed)
            assert failed.refusal.kind == "wait"
        server.core.disable(route)


@pytest.mark.requirement("X12")
async def test_prosody_recognises_a_wait(push_service: Service) -> None:
    """Case 12: Prosody would not recognise an error outside the namespace of the stream, and would count a failure."""
    juliet = push_service.peer.user("juliet")
    await enable_push(push_service.peer, juliet, android())
    async with without_database(push_service):
        await write(push_service.peer, juliet)
        await until(lambda: "Got error <wait:" in push_service.peer.log(), what="Prosody reads the error")
    assert "NOT increasing error count" in push_service.peer.log().rpartition("Got error <wait:")[2]


@pytest.mark.requirement("X11")
async def test_ejabberd_keeps_its_route_while_the_database_is_away(service_at_ejabberd: Service) -> None:
    """The server removes a route at the first `cancel`."""
    peer, device = service_at_ejabberd.peer, android()
    juliet = peer.user("juliet")
    await enable_push(peer, juliet, device)
    async with without_database(service_at_ejabberd), peer.account(peer.user("romeo"), "desk") as romeo:
        await write_to_absent(romeo, juliet)
        await romeo.ping()
        await until(lambda: "temporarily" in peer.log(), what="ejabberd reads the wait")
    await write(peer, juliet, "And now?")
    assert await service_at_ejabberd.wait_for_pushes(device)
