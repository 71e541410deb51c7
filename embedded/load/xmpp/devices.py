"""The devices of a load: Android phones, each of a user of its own, with a route of one dialect."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from xmpp_bridge.client.registering import Device, Platform, Registered
from xmpp_bridge.client.session import NotifyingServer
from xmpp_bridge.client.user_server import Route
from xmpp_bridge.messages import Dialect

AT_ONCE = 20


class NotRegisteredError(Exception):
    """The service refused a device. The text is its reason."""


async def register_devices(
    server: NotifyingServer, service: str, count: int, *, app: str = "", on_progress: Callable[[], None]
) -> list[tuple[Route, Device]]:
    """Register devices, each of a user of its own, and enable their routes.

    Raises NotRegisteredError, or TimeoutError.
    """
    free = asyncio.Semaphore(AT_ONCE)

    async def register(dialect: Dialect) -> tuple[Route, Device]:
        device = Device(Platform.FCM, f"load{uuid.uuid4().hex}", uuid.uuid4().hex, app)
        async with free:
            answer = await server.register(device.device_id, service, device)
        if not isinstance(answer, Registered):
            raise NotRegisteredError(str(answer))
        route = Route(answer.service, dialect, answer.client, answer.node, answer.secret)
        server.core.enable(route)
        on_progress()
        return route, device

    return await asyncio.gather(*(register(dialect) for dialect in islice(cycle(Dialect), count)))


async def unregister_devices(
    server: NotifyingServer, devices: Sequence[tuple[Route, Device]], *, on_progress: Callable[[], None]
) -> None:
    """Unregister the devices.

    Raises TimeoutError.
    """
    for route, device in devices:
        server.core.disable(route)
        await server.unregister(device.device_id, route.service, device)
        on_progress()
