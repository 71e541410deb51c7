"""Dry-run push of the canary without a test phone: gorush accepts it, and it reaches neither Apple nor Google."""

import asyncio

import pytest

from kit.http.connections import new_client
from notifications.gateways.gorush.sending.client import GorushGateway
from notifications.gateways.gorush.sending.push_api import device_token
from notifications.messages import DRY_RUN, Outcome, Push, Result
from registrations.messages import TokenType
from tests.rig.peers import Server, new_push


def sent(server: Server, push: Push, *, dry_run_token: str) -> Result:
    async def main() -> Result:
        async with new_client(timeout_seconds=20) as client:
            return await GorushGateway([server.url], client, dry_run_tokens=[dry_run_token]).send(push)

    return asyncio.run(main())


@pytest.mark.parametrize("token_type", [TokenType.APN, TokenType.FIREBASE])
def test_a_dry_run_is_accepted_and_sent_to_nobody(server: Server, token_type: TokenType) -> None:
    before, push = server.last_push(), new_push(token_type)
    result = sent(server, push, dry_run_token=device_token(push))
    assert (result.outcome, result.code) == (Outcome.DELIVERED, DRY_RUN)
    other = new_push(token_type)
    sent(server, other, dry_run_token=device_token(push))
    assert [only["token"] for only in server.pushes(since=before)] == [device_token(other)]
