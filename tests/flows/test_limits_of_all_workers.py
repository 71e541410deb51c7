"""Limits that two workers share: below them every push arrives with its content, whichever worker decides about it."""

from contextlib import closing

import pytest

from embedded.stack import plan
from tests.budget import first_everyday
from tests.rig import load
from tests.rig.network import network_of
from tests.rig.server import OF_FLOWS, NewFleet, served

PUSHES = 15  # to each phone, at once: half of what `ROUTE_LIMITS` allow


@pytest.mark.parametrize("phones", first_everyday(40, 200))
def test_no_push_below_the_limit_of_an_address_loses_its_content(new_fleet: NewFleet, phones: int) -> None:
    limited = new_fleet("limited", **OF_FLOWS | {"ROUTE_LIMITS": "30/10,600/3600"})
    with served(limited) as fleet, closing(network_of(fleet)) as network:
        fleet.start(plan.worker("second", "batches", "--pool=prefork", "--concurrency=1"))
        prepared = load.prepare(network, PUSHES * phones, recipients=phones)
        network.publish(*prepared.messages)
        load.check_each_once(network, prepared)
