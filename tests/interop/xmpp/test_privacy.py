"""Privacy of XMPP users: no table, log or push of the whole run contains their secrets (case 17)."""

import uuid

import pytest

from notifications.messages import Grade
from tests.interop.xmpp import peers
from tests.interop.xmpp.peers import USERS, write_to_absent
from tests.interop.xmpp.service import Service, android, ciphertext, iv
from tests.interop.xmpp.test_pushes import enable_push
from xmpp_bridge.client import Dialect, Notification, Stored
from xmpp_bridge.client.elements import CLIENT, element

pytestmark = pytest.mark.xmpp

TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"


@pytest.mark.requirement("X17")
async def test_no_body_sender_account_or_device_id_is_anywhere(push_service: Service) -> None:
    body, sender = f"body-{uuid.uuid4()}", f"sender-{uuid.uuid4().hex}@{USERS}"
    device, juliet = android(), push_service.peer.user("juliet")
    forwarded = element("message", CLIENT, {"from": sender}, element("body", CLIENT, text=body))
    async with push_service.user_server() as server:
        draft = await server.route(device)
        server.notify(draft, Notification(forwarded=forwarded))
        server.notify(draft, Notification(Grade.NORMAL, secret := ciphertext(), iv()))
        published = await server.route(other := android(), Dialect.XEP0357)
        server.notify(published, Notification(body=body, sender=sender))
        assert isinstance(await server.next_event(), Stored)
    await enable_push(push_service.peer, juliet, third := android())
    async with push_service.peer.account(push_service.peer.user("romeo"), "desk") as romeo:
        await write_to_absent(romeo, juliet, body)
        await romeo.ping()
    await push_service.wait_for_pushes(device, 2)
    for each in (other, third):
        await push_service.wait_for_push(each)
    names = [juliet.partition("@")[0], device.device_id, other.device_id]
    secrets = [draft.client, published.node, published.secret, device.token, secret]
    for name, text in push_service.own_logs().items():
        assert [each for each in (body, sender, *names, *secrets) if each in text] == [], name
    tables = dump(push_service)
    assert [each for each in (body, sender, *names, *secrets[:-1]) if each in tables] == []
    pushes = str(push_service.all_pushes())
    assert [each for each in (body, sender, *names, draft.client, published.secret) if each in pushes] == []
    assert peers.SERVICE_SECRET not in tables


def dump(service: Service) -> str:
    """Return every row of every table as text, with bytes decoded once more."""
    texts = []
    for (table,) in service.fleet.rows(TABLES):
        for row in service.fleet.rows(f'SELECT * FROM "{table}"'):
            texts.append(str(row))
            texts += [bytes(value).decode("utf-8", "replace") for value in row if isinstance(value, bytes | memoryview)]
    return "\n".join(texts)
