"""Scenarios with the real client: each is a promise of the protocol, judged by status-go itself."""

import time
from pathlib import Path
from typing import Any

import pytest
from coincurve import PrivateKey

from embedded.stack import plan
from embedded.supervisor.processes import StopOrder
from tests.interop.status.conftest import (
    APN,
    FIREBASE,
    GORUSH,
    PROCESSES,
    SERVER_KEY,
    Messenger,
    Report,
    World,
    app_key,
    new_token,
)
from tests.rig.server import port_of, wait_until
from waku_bridge.codec.keys import key_hash, shake256

pytestmark = pytest.mark.status
MESSAGE = 1


def delivered(messenger: Messenger) -> Report:
    return Report(messenger.installation_id, success=True, error=0, retry_count=0, type=MESSAGE)


def hashed(text: str) -> str:
    return "0x" + shake256(text.encode()).hex()


def key_hash_of(messenger: Messenger) -> str:
    return "0x" + key_hash(PrivateKey(bytes.fromhex(messenger.private_key)).public_key.format()).hex()


def wait_for_report(sender: Messenger, message_id: str, receiver: Messenger) -> None:
    wait_until(lambda: sender.reports(message_id) == [delivered(receiver)], what="a report")


def wakes(world: World, sender: Messenger, receiver: Messenger, token: str, count: int = 1) -> dict[str, Any]:
    """Send a message, wait for the push about it, the phone's ``count``-th, and for the report, and return the push."""
    message_id = sender.ask("send", key=receiver.key, text="Hello!")
    found = world.wait_for_pushes(token, count)
    wait_for_report(sender, message_id, receiver)
    return found[-1]


def assert_shows_a_message(push: dict[str, Any], receiver: Messenger, sender: Messenger) -> None:
    """Check the text of a push, and the hashes by which the app finds the chat and the receiver."""
    body = push["body"]
    text = body["aps"]["alert"] if push["platform"] == "ios" else body["message"]["notification"]["body"]
    assert text == "New message in Messenger"
    assert (push["data"]["chatId"], push["data"]["publicKey"]) == (hashed(sender.key), key_hash_of(receiver))
    assert push["data"]["encryptedMessage"] == "0x"  # status-go sends no ciphertext


@pytest.mark.parametrize("token_type", [APN, FIREBASE], ids=["iOS", "Android"])
def test_a_message_wakes_the_phone_once(world: World, token_type: int) -> None:
    bob, token = world.phone(token_type=token_type)
    alice = world.messenger()
    assert_shows_a_message(wakes(world, alice, bob, token), bob, alice)


def test_each_device_of_a_user_is_woken_once(world: World) -> None:
    first, first_token = world.phone()
    second, second_token = world.phone(private_key=first.private_key, token_type=FIREBASE)
    alice = world.messenger()
    message_id = alice.ask("send", key=first.key, text="Hello!")
    world.wait_for_pushes(first_token)
    world.wait_for_pushes(second_token)
    reports = alice.reports(message_id)
    assert sorted(reports, key=str) == sorted([delivered(first), delivered(second)], key=str)


def test_only_contacts_wake_the_phone_and_a_stale_token_is_renewed(world: World) -> None:
    bob, token = world.phone()
    alice, mallory = world.messenger(), world.messenger()
    for sender in (alice, mallory):
        sender.ask("send", key=bob.key, text="Before")
    world.wait_for_pushes(token, 2)
    bob.befriend(alice)
    bob.ask("contacts_only", is_on=True)
    bob.wait_for_registration()
    world.settle()
    before = len(world.pushes(token))
    refused = mallory.ask("send", key=bob.key, text="After")
    allowed = alice.ask("send", key=bob.key, text="After")
    world.wait_for_pushes(token, before + 1)
    wait_until(lambda: any(report.success for report in alice.reports(allowed)), what="a success")
    assert not any(report.success for report in mallory.reports(refused))


def test_a_muted_chat_is_silent_until_it_is_unmuted_and_a_blocked_sender_for_good(world: World) -> None:
    alice, bob, token = world.acquainted()
    wait_until(lambda: alice.key in bob.ask("chats") or bob.ask("messages"), what="the message")
    bob.ask("mute", chat=alice.key)
    bob.wait_for_registration()
    muted = alice.ask("send", key=bob.key, text="Quiet")
    wait_until(lambda: alice.reports(muted), what="a report")
    world.settle()
    assert len(world.pushes(token)) == 1
    assert [report.success for report in alice.reports(muted)] == [True]
    bob.ask("unmute", chat=alice.key)
    bob.wait_for_registration()
    alice.ask("send", key=bob.key, text="Loud")
    world.wait_for_pushes(token, 2)
    bob.ask("block", key=alice.key)
    bob.wait_for_registration()
    alice.ask("send", key=bob.key, text="Blocked")
    world.settle()
    assert len(world.pushes(token)) == 2


def test_a_message_to_a_group_wakes_each_member_once(world: World) -> None:
    """The messages by which people become contacts and members may come late. No two pushes are about one message."""
    alice, (bob, first), (carol, second) = world.messenger(), world.phone(), world.phone(token_type=FIREBASE)
    for member in (bob, carol):
        alice.befriend(member)
    chat = alice.ask("group", name="Walkers", keys=[bob.key, carol.key])
    wait_until(lambda: chat in bob.ask("chats") and chat in carol.ask("chats"), what="the group")
    message_id = alice.ask("say", chat=chat, text="Tomorrow?")
    wait_until(lambda: len(alice.reports(message_id)) == 2, what="notified about both")
    wait_until(lambda: all(report.success for report in alice.reports(message_id)), what="reports")
    world.settle()
    for token in (first, second):
        pushes = world.pushes(token)
        assert any(push["data"]["chatId"] == hashed(chat) for push in pushes)
        assert len({push["collapse_id"] for push in pushes}) == len(pushes)
    assert {report.installation_id for report in alice.reports(message_id)} == {
        bob.installation_id,
        carol.installation_id,
    }


def test_a_new_token_replaces_the_old_one_until_the_phone_unregisters(world: World) -> None:
    alice, bob, old = world.acquainted()
    new = new_token(APN)
    bob.register(SERVER_KEY, new)
    time.sleep(1)
    alice.ask("send", key=bob.key, text="After")
    world.wait_for_pushes(new)
    assert len(world.pushes(old)) == 1
    bob.ask("unregister")
    time.sleep(2)
    message_id = alice.ask("send", key=bob.key, text="Again")
    world.settle()
    assert (len(world.pushes(old)), len(world.pushes(new))) == (1, 1)
    assert not any(report.success for report in alice.reports(message_id))


@pytest.mark.parametrize("seconds", [0.2, 0.6, 1.0])
def test_a_server_that_is_killed_loses_nothing(world: World, seconds: float) -> None:
    alice, bob, token = world.acquainted()
    message_id = alice.ask("send", key=bob.key, text="Hello!")
    time.sleep(seconds)
    world.restart()
    wait_until(lambda: len(world.pushes(token)) > 1, what="a push")
    world.settle()
    assert len({push["collapse_id"] for push in world.pushes(token)}) == 2
    wait_for_report(alice, message_id, bob)


def test_a_message_sent_while_gorush_is_away_arrives_afterwards(world: World) -> None:
    bob, token = world.phone()
    alice = world.messenger()
    world.servers.fleet.kill(GORUSH)
    message_id = alice.ask("send", key=bob.key, text="Hello!")
    wait_for_report(alice, message_id, bob)
    world.servers.real(GORUSH, port=port_of(world.gorush.url))
    world.wait_for_pushes(token)


def test_a_message_sent_while_the_server_is_down_arrives_afterwards(world: World) -> None:
    alice, bob, token = world.acquainted()
    world.kill(*PROCESSES)
    message_id = alice.ask("send", key=bob.key, text="Meanwhile")
    time.sleep(5)
    world.start(*PROCESSES)
    world.wait_for_pushes(token, 2)
    wait_for_report(alice, message_id, bob)


def test_a_light_client_registers_and_is_woken(world: World) -> None:
    """A light client cannot notify by any server: it subscribes to an answer four seconds after its query, and waits
    for three.
    """
    bob, token = world.phone(is_light=True, peers=[world.messenger(is_service=True).address])
    alice = world.messenger()
    wakes(world, alice, bob, token)


def test_a_contact_request_wakes_the_phone(world: World) -> None:
    bob, token = world.phone()
    alice = world.messenger()
    alice.ask("request_contact", key=bob.key, text="It is me")
    world.wait_for_pushes(token)


def test_a_mention_in_a_community_wakes_the_phone_with_its_own_text(world: World) -> None:
    alice, (bob, token) = world.messenger(), world.phone()
    community = alice.ask("community", name="Walkers")
    alice.ask("share", key=bob.key, chat=community["id"])
    wait_until(lambda: bob.ask("messages"), what="the invitation")
    bob.ask("spectate", chat=community["id"])
    assert community["chat"] in bob.ask("chats")
    bob.register(SERVER_KEY, token)  # with the chats of the community
    alice.ask("say", chat=community["chat"], text="Hello everybody")
    message_id = alice.ask("say", chat=community["chat"], text=f"And @{bob.key}")
    # status-go records the notification of a mention under the message.
    wait_for_report(alice, message_id, bob)
    world.settle()
    texts = [push["body"]["aps"]["alert"] for push in world.pushes(token)]
    assert sorted(texts) == ["New mention or reply in Communities", "New message in Messenger"]


def test_a_new_server_key_serves_those_who_know_the_old_one(world: World) -> None:
    """The server gets a new key and serves the old one beside it. Registered phones are found and woken by either."""
    alice, bob, token = world.acquainted()
    world.restart(SERVER_PRIVATE_KEY="03" * 32, OTHER_SERVER_PRIVATE_KEYS="02" * 32)
    wakes(world, alice, bob, token, 2)
    carol, other = world.messenger(), new_token(APN)
    carol.register(app_key(b"\x03" * 32), other)
    bob.ask("send", key=carol.key, text="With the new key")
    world.wait_for_pushes(other)
    world.restart(SERVER_PRIVATE_KEY="02" * 32, OTHER_SERVER_PRIVATE_KEYS="")


def test_a_phone_that_missed_the_answer_is_registered_at_its_next_start(world: World) -> None:
    bob, token = world.messenger(), new_token(APN)
    bob.ask("add_server", key=SERVER_KEY)
    bob.ask("register", token=token, topic="im.status.ethereum", token_type=APN)
    bob.kill()
    time.sleep(1)  # the answer was sent while the phone was off
    bob.start()
    bob.wait_for_registration()
    world.messenger().ask("send", key=bob.key, text="Hello!")
    world.wait_for_pushes(token)


def test_phones_of_a_status_go_server_are_woken_by_this_one_after_an_import(world: World, tmp_path: Path) -> None:
    old = world.messenger()
    old.ask("serve")
    bob, token = world.messenger(), new_token(APN)
    bob.register(old.key, token)
    old.stop()
    password = tmp_path / "password"
    password.write_text("password")
    world.restart(OTHER_SERVER_PRIVATE_KEYS=old.private_key)
    options = ["--server-key", old.key, "--password-file", str(password), "--iterations", "1"]
    file = str(old.folder / "app.db")
    world.server.run(plan.manage("import", "import_status_go", file, *options, stop_order=StopOrder.FRONT))
    alice = world.messenger()
    wakes(world, alice, bob, token)
    world.restart(OTHER_SERVER_PRIVATE_KEYS="")
