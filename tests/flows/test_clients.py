"""Clients end to end: registrations and queries one by one, and phones and senders that act by themselves, as the
reference client does, against the real server.
"""

import os
import time

import pytest

from tests.rig.network import Network, android, iphone, new_identity, new_sender, unregistered_phone
from waku_bridge.client.events import Notified, Outcome
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import NoAnswer, RegistrationRefused
from waku_bridge.client.state import Address, Preferences, Standing, new_state
from waku_bridge.messages import RegistrationError


@pytest.mark.requirement("R7", "SQ1")
@pytest.mark.parametrize("address", [iphone(), android()], ids=["APN", "Firebase"])
def test_a_registration_is_accepted_and_anybody_finds_the_phone(network: Network, address: Address) -> None:
    phone = unregistered_phone()
    phone.change(address)
    assert network.register(phone) is Standing.ACCEPTED
    (destination,) = network.query(new_sender(), phone)
    assert (destination.installation_id, destination.access_token) == (phone.installation_id, phone.access_token)
    assert destination.server == network.server


@pytest.mark.requirement("R14")
def test_a_registration_again_moves_the_phone_to_its_new_address(network: Network) -> None:
    old, new = android(), iphone()
    phone = network.phone(old)
    phone.change(new)
    network.register(phone)
    sender = new_sender()
    (destination,) = network.query(sender, phone)
    network.notify(sender, [destination])
    assert destination.version == 2
    assert len(network.pushes_to(new)) == 1
    assert network.pushes_to(old) == []


@pytest.mark.requirement("SR13")
def test_a_stale_version_is_refused_and_changes_nothing(network: Network) -> None:
    address = android()
    phone = network.phone(address)
    forgetful = _forgetful(phone)
    forgetful.change(android())
    with pytest.raises(RegistrationRefused, match=RegistrationError.VERSION_MISMATCH.name):
        network.register(forgetful)
    sender = new_sender()
    network.notify(sender, network.query(sender, phone))
    assert len(network.pushes_to(address)) == 1


@pytest.mark.requirement("R12")
def test_an_unregistered_phone_is_found_no_more_until_it_registers_again(network: Network) -> None:
    address, sender = android(), new_sender()
    phone = network.phone(address)
    phone.unregister()
    assert network.register(phone) is Standing.ACCEPTED
    with pytest.raises(NoAnswer):
        network.query(sender, phone, timeout_seconds=1)
    phone.change(address)
    network.register(phone)
    assert len(network.query(sender, phone)) == 1


@pytest.mark.requirement("Q6")
def test_a_contact_and_no_stranger_can_open_a_token_for_contacts_only(network: Network) -> None:
    contact = new_identity()
    phone = network.phone(preferences=Preferences(contacts_only=True, contacts=(new_identity().pub33, contact.pub33)))
    (destination,) = network.query(new_sender(contact), phone)
    assert destination.access_token == phone.access_token
    assert network.query(new_sender(), phone, timeout_seconds=3) == ()


@pytest.mark.requirement("SQ3")
def test_nobody_answers_for_an_unknown_key(network: Network) -> None:
    with pytest.raises(NoAnswer):
        network.query(new_sender(), unregistered_phone(), timeout_seconds=1)


def _forgetful(phone: RegisteringClient) -> RegisteringClient:
    """Return the same installation without its record of versions."""
    state = new_state(random_bytes=os.urandom, installation_id=phone.installation_id, access_token=phone.access_token)
    return RegisteringClient(phone.identity, state, os.urandom)


# Reference clients ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sender() -> SendingClient:
    return SendingClient(new_identity(), os.urandom, gather_seconds=0)


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
