"""Tests of the estimated number of rows in a table."""

import pytest

from kit.db.estimates import stored
from kit.db.statements import fetch
from tests.rig import rows


@pytest.mark.django_db(transaction=True)
def test_few_rows_are_counted() -> None:
    rows.make_device()
    assert fetch(stored("xmpp_bridge_device")) == [(1,)]
