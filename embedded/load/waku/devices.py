"""Registered phones to be notified, each of a user of its own."""

import asyncio
import os
from collections.abc import Callable, Sequence

from waku_bridge.client.core import new_identity
from waku_bridge.client.registration.addresses import android
from waku_bridge.client.registration.registering import RegisteringClient
from waku_bridge.client.session import Session
from waku_bridge.client.state import new_state

AT_ONCE = 16
# A registration without an answer within this time fails the load.
TIMEOUT_SECONDS = 30.0

OnProgress = Callable[[], None]


async def register_devices(
    session: Session, server: bytes, count: int, on_progress: OnProgress
) -> list[RegisteringClient]:
    """Register new phones.

    Raises what `Session.register` raises, as soon as one fails.
    """
    phones = [new_phone(server) for _ in range(count)]
    await _register_all(session, phones, on_progress)
    return phones


async def unregister_devices(session: Session, phones: Sequence[RegisteringClient], on_progress: OnProgress) -> None:
    """Unregister the phones."""
    for phone in phones:
        phone.unregister()
    await _register_all(session, phones, on_progress)


def new_phone(server: bytes) -> RegisteringClient:
    """Return the phone of a new user, which is not registered yet."""
    state = new_state(server, random_bytes=os.urandom)
    # The contact code is published once and never again, because it is not part of the measurement.
    phone = RegisteringClient(new_identity(os.urandom), state, os.urandom, advertise_every_seconds=10.0**6)
    phone.change(android(os.urandom))
    return phone


async def _register_all(session: Session, phones: Sequence[RegisteringClient], on_progress: OnProgress) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def register(phone: RegisteringClient) -> None:
        async with free:
            await session.register(phone, timeout_seconds=TIMEOUT_SECONDS)
        on_progress()

    async with asyncio.TaskGroup() as group:
        for phone in phones:
            group.create_task(register(phone))
