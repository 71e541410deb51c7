"""Load of two thousand simultaneous requests."""

import pytest

from tests.rig import load
from tests.rig.network import Network

REQUESTS = 2000


@pytest.mark.requirement("SN3")
@pytest.mark.nightly
def test_two_thousand_requests_at_once_are_answered_once_and_delivered_once_each(network: Network) -> None:
    prepared = load.prepare(network, REQUESTS)
    network.publish(*prepared.messages)
    load.check_each_once(network, prepared)
