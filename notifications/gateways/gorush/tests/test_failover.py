"""Tests of several gorush servers: which one is tried, and which one is tried first the next time."""

import asyncio

import httpx

from notifications.gateways.gorush.sending.client import GorushGateway
from notifications.gateways.gorush.tests.test_request import APPLE
from notifications.messages import Outcome

OK = {"success": "ok", "counts": 1, "logs": []}


def _asked(*, pushes: int, broken: dict[str, type[httpx.TransportError]]) -> tuple[list[str], list[Outcome]]:
    """Return the hosts in the order in which they were tried, and the outcome of each push."""
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host in broken:
            raise broken[request.url.host]("broken")
        return httpx.Response(200, json=OK)

    async def main() -> list[Outcome]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            gateway = GorushGateway(["http://one", "http://two"], client)
            return [(await gateway.send(APPLE)).outcome for _ in range(pushes)]

    outcomes = asyncio.run(main())
    return asked, outcomes


def test_a_server_that_cannot_be_reached_costs_one_connection_and_no_push():
    asked, outcomes = _asked(pushes=3, broken={"one": httpx.ConnectError})
    assert asked == ["one", "two", "two", "two"]
    assert outcomes == [Outcome.DELIVERED] * 3


def test_a_server_that_hangs_makes_one_push_ambiguous_and_is_avoided_afterwards():
    asked, outcomes = _asked(pushes=3, broken={"one": httpx.ReadTimeout})
    assert asked == ["one", "two", "two"]
    assert outcomes == [Outcome.AMBIGUOUS, Outcome.DELIVERED, Outcome.DELIVERED]
