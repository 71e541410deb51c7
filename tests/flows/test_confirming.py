"""Confirmation of replies: a whole server looks for each of its replies in the store and finds it."""

from tests.rig.network import Network, new_sender
from tests.rig.server import wait_until
from waku_bridge.messages import MessageType

OPEN = "SELECT count(*) FROM waku_bridge_outboundreply WHERE state IN ('pending', 'published')"
STATES = "SELECT DISTINCT message_type, state, payload IS NULL FROM waku_bridge_outboundreply WHERE created_at >= %s"


def test_replies_are_confirmed_by_the_store_and_then_forgotten(network: Network) -> None:
    [(started_at,)] = network.rows("SELECT clock_timestamp()")
    phone = network.phone()
    sender = new_sender()
    network.notify(sender, network.query(sender, phone))

    wait_until(lambda: network.rows(OPEN) == [(0,)], what="all replies are confirmed or given up")

    assert set(network.rows(STATES, started_at)) == {
        (MessageType.REGISTRATION_RESPONSE, "confirmed", True),
        (MessageType.QUERY_RESPONSE, "unconfirmed", True),  # no store is asked for it
        (MessageType.RESPONSE, "confirmed", True),
    }
