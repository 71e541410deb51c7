"""How many rows a table has, counted while they are few, and how full it is."""

import pytest

from kit.db.estimates import fill_ratio, stored
from kit.db.statements import fetch
from tests import factories


@pytest.mark.django_db(transaction=True)
def test_rows_are_counted_and_compared_with_what_there_may_be() -> None:
    factories.make_device()
    assert fetch(stored("xmpp_bridge_device")) == [(1,)]
    fetch("ANALYZE xmpp_bridge_device")
    assert fetch(fill_ratio("xmpp_bridge_device", 4)) == [(0.25,)]  # type: ignore[arg-type]  # a text of ours
