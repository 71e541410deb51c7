"""Which of several processes is connected: one at a time, and the same while the database is away."""

import asyncio
from collections.abc import Callable

import pytest
from django.db import connection
from structlog.testing import capture_logs

from kit.db.reasons import AWAY
from xmpp_bridge.component import leading
from xmpp_bridge.component.leading import Leader, lock_key

pytestmark = pytest.mark.django_db(transaction=True)
DOMAIN = "push.montague.test"


class Process:
    """Somebody who would like to be connected, and how often they began."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.leader = Leader(DOMAIN)
        self.began = 0
        self.is_connected = False

    async def run(self) -> None:
        await self.leader.lead(self.stopped, self._work)

    async def _work(self, ended: asyncio.Event) -> None:
        self.began += 1
        self.is_connected = True
        await ended.wait()
        self.is_connected = False


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - other sessions have no events
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.ensure_connection()  # its settings are those of the test's database
    monkeypatch.setattr(leading, "BEAT_SECONDS", 0.05)


def test_one_is_connected_and_the_other_follows() -> None:
    async def story() -> None:
        one, two = Process(), Process()
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run())
            await until(lambda: one.is_connected)
            group.create_task(two.run())
            await until(lambda: two.leader._session is not None)
            assert (one.is_connected, two.is_connected) == (True, False)
            one.stopped.set()
            await until(lambda: two.is_connected)
            assert not one.is_connected
            two.stopped.set()

    asyncio.run(story())


def test_who_is_connected_stays_so_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = Process()
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run())
            await until(lambda: one.is_connected)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(leading, "_parameters", lambda: {"host": "127.0.0.1", "port": "1", "dbname": "none"})
                session = one.leader._session
                assert session is not None
                await session.close()
                await until(lambda: one.leader._session is None)
                await asyncio.sleep(0.3)  # it tries several times meanwhile
                assert one.is_connected
            await until(lambda: one.leader._session is not None)
            assert (one.is_connected, one.began) == (True, 1)
            one.stopped.set()

    with capture_logs() as logs:
        asyncio.run(story())
    assert [line["reason"] for line in logs if line["event"] == "lock_session_lost"] == [AWAY]


def test_who_lost_the_lock_to_another_stops() -> None:
    async def story() -> None:
        one, two = Process(), Process()
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run())
            await until(lambda: one.is_connected)
            group.create_task(two.run())
            await until(lambda: two.leader._session is not None)
            hold = one.leader._has_lock
            one.leader._has_lock = lambda: asyncio.sleep(0, result=True)  # type: ignore[method-assign]  # it hangs
            assert one.leader._session is not None
            await one.leader._session.close()
            await until(lambda: two.is_connected)
            one.leader._session = None
            one.leader._has_lock = hold  # type: ignore[method-assign]
            await until(lambda: not one.is_connected)
            one.stopped.set()
            two.stopped.set()

    asyncio.run(story())


def test_each_component_has_a_lock_of_its_own() -> None:
    assert lock_key("push.montague.test") != lock_key("push.capulet.test")
