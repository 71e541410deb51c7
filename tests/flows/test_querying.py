"""Queries: which sender gets the access token of a phone, and which gets no answer."""

import pytest

from tests.rig.network import Network, android, new_identity, new_sender, unregistered_phone
from tests.rig.server import wait_until
from waku_bridge.client import NoAnswer, Preferences


@pytest.mark.requirement("SQ1")
def test_anybody_finds_a_phone_that_is_open_to_all(network: Network) -> None:
    phone = network.phone()
    (destination,) = network.query(new_sender(), phone)
    assert destination.installation_id == phone.installation_id
    assert destination.access_token == phone.access_token
    assert destination.server == network.server


@pytest.mark.requirement("SQ1")
def test_every_installation_of_a_user_is_found(network: Network) -> None:
    first = network.phone()
    second = unregistered_phone(first.identity)
    second.change(android())
    network.register(second)
    found = {destination.installation_id for destination in network.query(new_sender(), first)}
    assert found == {first.installation_id, second.installation_id}


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


def test_a_query_that_finds_nothing_is_recorded_and_not_answered(network: Network) -> None:
    phone, sender = network.phone(preferences=Preferences(enabled=False)), new_sender()
    with pytest.raises(NoAnswer):
        network.query(sender, phone, timeout_seconds=1)
    query_id = sender.core._queries[phone.identity.pub33].message_id
    sql = "SELECT state, reason FROM waku_bridge_inboundenvelope WHERE message_id = %s"
    wait_until(lambda: network.rows(sql, query_id) == [("processed", "nothing_found")], what="the query is recorded")
