"""A development gorush in this process, and a client connected to it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded.gorush.gateway import Settings
from embedded.gorush.http.server import create_app

Scenario = Callable[[TestClient], Awaitable[None]]


@pytest.fixture
def run() -> Callable[..., None]:
    """Run a scenario against a fresh server: `run(scenario)`, `run(scenario, Settings(...))`."""

    def run_scenario(scenario: Scenario, settings: Settings | None = None) -> None:
        async def main() -> None:
            async with TestClient(TestServer(create_app(settings or Settings()))) as client:
                await scenario(client)

        asyncio.run(main())

    return run_scenario
