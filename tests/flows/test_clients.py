"""Reference clients end to end: phones and senders act by themselves against the real server."""

import os
import time

import pytest

from tests.rig.network import Network, android, new_identity, unregistered_phone
from waku_bridge.client import Notified, Outcome, Preferences, SendingClient, Timeouts

QUICK = Timeouts(gather_seconds=0)


@pytest.fixture
def sender() -> SendingClient:
    return SendingClient(new_identity(), os.urandom, timeouts=QUICK)


@pytest.mark.requirement("Q1")
def test_a_sender_finds_a_phone_and_has_it_notified_once(network: Network, sender: SendingClient) -> None:
    address, message_id = android(), os.urandom(32)
    phone = network.phone(address)
    assert _outcomes(network.send(sender, phone, message_id)) == [Outcome.NOTIFIED]
    assert network.send(sender, phone, message_id).is_notified
    assert len(network.pushes_to(address)) == 1


@pytest.mark.requirement("A7")
def test_a_contact_code_spares_the_query(network: Network, sender: SendingClient) -> None:
    address, since_ns = android(), time.time_ns()
    phone = network.phone(address)
    (found,) = network.follow(sender, phone)
    assert (found.server, found.access_token) == (network.server, phone.access_token)
    assert _outcomes(network.send(sender, phone)) == [Outcome.NOTIFIED]
    assert len(network.pushes_to(address)) == 1
    queries = """
        SELECT count(*) FROM waku_bridge_inboundenvelope WHERE message_type = 18 AND received_at >= to_timestamp(%s)
    """
    assert network.rows(queries, since_ns / 1e9) == [(0,)]


@pytest.mark.requirement("N9")
def test_a_sender_whose_token_is_outdated_finds_the_new_one_by_itself(network: Network, sender: SendingClient) -> None:
    old, new = android(), android()
    phone = network.phone(old)
    assert network.send(sender, phone).is_notified
    phone.change(new, Preferences(contacts_only=True, contacts=(sender.identity.pub33,)))
    network.register(phone)
    assert _outcomes(network.send(sender, phone)) == [Outcome.NOTIFIED]
    assert (len(network.pushes_to(old)), len(network.pushes_to(new))) == (1, 1)


@pytest.mark.requirement("N2", "N4")
def test_two_phones_of_one_user_are_notified_once_each_by_one_request(network: Network, sender: SendingClient) -> None:
    first_address, second_address = android(), android()
    first = network.phone(first_address)
    second = unregistered_phone(first.identity)
    second.change(second_address)
    network.register(second)
    result = network.send(sender, first)
    assert _outcomes(result) == [Outcome.NOTIFIED] * 2
    notified = {settled.installation_id for settled in result.installations}
    assert notified == {first.installation_id, second.installation_id}
    assert len(network.pushes_to(first_address)) == len(network.pushes_to(second_address)) == 1


@pytest.mark.requirement("M1", "M3")
def test_in_anonymous_mode_a_phone_is_notified_under_the_key_it_disclosed(
    network: Network, sender: SendingClient
) -> None:
    push_key, address = new_identity(), android()
    phone = unregistered_phone(push_key)
    phone.change(address, Preferences(contacts_only=True, contacts=(sender.identity.pub33,)))
    network.register(phone)
    assert network.follow(sender, phone)
    assert network.send(sender, phone).is_notified
    assert len(network.pushes_to(address)) == 1
    sql = "SELECT count(*) FROM registrations_registration WHERE public_key_hash = %s"
    assert network.rows(sql, push_key.key_hash) == [(1,)]


def _outcomes(result: Notified) -> list[Outcome]:
    return [settled.outcome for settled in result.installations]
