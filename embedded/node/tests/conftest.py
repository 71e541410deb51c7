"""A development node in this process, and a client connected to it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded.node.rest.server import create_app
from embedded.node.settings import Settings

NOW_NS = 1_700_000_000_000_000_000
Scenario = Callable[[TestClient], Awaitable[None]]


class Clock:
    """A clock that moves only by `advance`."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 10**9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(clock: Clock) -> Callable[..., None]:
    """Run a scenario against a fresh node: `run(scenario)`, `run(scenario, Settings(...))`."""

    def run_scenario(scenario: Scenario, settings: Settings | None = None) -> None:
        async def main() -> None:
            app = create_app(settings or Settings(), clock_ns=clock)
            async with TestClient(TestServer(app)) as client:
                await scenario(client)

        asyncio.run(main())

    return run_scenario
