"""Load of two thousand simultaneous requests."""

from collections import Counter

import pytest

from tests.flows import load
from tests.flows.network import Network

REQUESTS = 2000


@pytest.mark.nightly
def test_two_thousand_requests_at_once_are_answered_once_and_delivered_once_each(network: Network) -> None:
    prepared = load.prepare(network, REQUESTS)
    network.publish(*prepared.messages)
    load.wait_until_all_processed(network, prepared)
    pushes = load.pushes_by_message(network, prepared)
    assert Counter(len(each) for each in pushes.values()) == {1: REQUESTS}
    replies = load.replies_by_message(network, prepared)
    assert replies == Counter(prepared.message_ids)
