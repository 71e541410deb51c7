"""Registrations of phones and the server's responses, and queries: which sender gets the access token of a phone."""

import os

import pytest

from tests.rig.network import Network, android, iphone, new_identity, new_sender, unregistered_phone
from waku_bridge.client import (
    Address,
    NoAnswer,
    Preferences,
    RegisteringClient,
    RegistrationRefused,
    Standing,
    new_state,
)
from waku_bridge.messages import RegistrationError


@pytest.mark.requirement("R7")
@pytest.mark.parametrize("address", [iphone(), android()], ids=["APN", "Firebase"])
def test_a_registration_is_accepted(network: Network, address: Address) -> None:
    phone = unregistered_phone()
    phone.change(address)
    assert network.register(phone) is Standing.ACCEPTED


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


# Queries --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("SQ1")
def test_anybody_finds_a_phone_that_is_open_to_all(network: Network) -> None:
    phone = network.phone()
    (destination,) = network.query(new_sender(), phone)
    assert destination.installation_id == phone.installation_id
    assert destination.access_token == phone.access_token
    assert destination.server == network.server


@pytest.mark.requirement("Q6")
def test_a_contact_can_open_a_token_for_contacts_only(network: Network) -> None:
    contact = new_identity()
    phone = network.phone(preferences=Preferences(contacts_only=True, contacts=(new_identity().pub33, contact.pub33)))
    (destination,) = network.query(new_sender(contact), phone)
    assert destination.access_token == phone.access_token


def test_a_stranger_cannot_open_a_token_for_contacts_only(network: Network) -> None:
    phone = network.phone(preferences=Preferences(contacts_only=True, contacts=(new_identity().pub33,)))
    assert network.query(new_sender(), phone, timeout_seconds=3) == ()


@pytest.mark.requirement("SQ3")
def test_nobody_answers_for_an_unknown_key(network: Network) -> None:
    with pytest.raises(NoAnswer):
        network.query(new_sender(), unregistered_phone(), timeout_seconds=1)


def _forgetful(phone: RegisteringClient) -> RegisteringClient:
    """Return the same installation without its record of versions."""
    state = new_state(random_bytes=os.urandom, installation_id=phone.installation_id, access_token=phone.access_token)
    return RegisteringClient(phone.identity, state, os.urandom)
