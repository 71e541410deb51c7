"""Registrations: messages of a phone to the server, and the server's responses."""

import os

import pytest

from registrations.messages import TokenType
from tests.factories.tokens import apn_token, firebase_token
from tests.rig.network import Network, android, iphone, new_sender, unregistered_phone
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


def test_a_retransmission_gets_its_success_again(network: Network) -> None:
    contact = unregistered_phone().identity.pub33
    phone = network.phone(android(), Preferences(contacts_only=True, contacts=(contact,)))
    phone.repeat()
    assert network.register(phone) is Standing.ACCEPTED
    sql = "SELECT version FROM registrations_registration WHERE installation_id = %s"
    assert network.rows(sql, phone.installation_id) == [(1,)]


@pytest.mark.requirement("SR8")
def test_an_iphone_without_the_name_of_its_app_is_refused(network: Network) -> None:
    phone = unregistered_phone()
    phone.change(Address(TokenType.APN, apn_token()))
    with pytest.raises(RegistrationRefused, match=RegistrationError.MALFORMED_MESSAGE.name):
        network.register(phone)


@pytest.mark.requirement("SR2", "SR11")
def test_an_unknown_kind_of_token_is_refused(network: Network) -> None:
    phone = unregistered_phone()
    phone.change(Address(7, firebase_token()))
    with pytest.raises(RegistrationRefused, match=RegistrationError.UNSUPPORTED_TOKEN_TYPE.name):
        network.register(phone)


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


@pytest.mark.requirement("SR20")
def test_an_older_registration_does_not_bring_an_unregistered_phone_back(network: Network) -> None:
    phone = network.phone()
    replayed = _forgetful(phone)
    replayed.change(android())
    phone.unregister()
    network.register(phone)
    with pytest.raises(RegistrationRefused, match=RegistrationError.VERSION_MISMATCH.name):
        network.register(replayed)


def _forgetful(phone: RegisteringClient) -> RegisteringClient:
    """Return the same installation without its record of versions."""
    state = new_state(random_bytes=os.urandom, installation_id=phone.installation_id, access_token=phone.access_token)
    return RegisteringClient(phone.identity, state, os.urandom)
