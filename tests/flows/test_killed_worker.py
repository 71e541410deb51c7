"""Workers that end in the middle of their work: other workers claim their rows, and nothing is lost."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.flows import load
from tests.flows.load import Load
from tests.rig.network import Network
from tests.rig.server import Fleet, services, wait_until

# Two workers decide about a thousand requests in a second (`bench throughput`). The kill and the stop come in between,
# as a worker takes 200 in a batch.
REQUESTS = 1000
GORUSH_DELAY_MS = 1000  # long enough for a kill between a push and its result


@pytest.fixture
def slow_gorush(network: Network) -> Iterator[None]:
    network.break_gorush(delay_ms=GORUSH_DELAY_MS)
    yield
    network.mend_gorush()


@pytest.mark.usefixtures("slow_gorush")
def test_killed_and_stopped_workers_lose_nothing_and_only_pushes_under_way_are_doubled(
    fleet: Fleet, network: Network
) -> None:
    prepared = _fill_the_inbox(fleet, network)
    _start(fleet, "batches")
    _wait_for_the_middle(network)
    fleet.kill("batches")
    on_their_way = _in_flight(network)
    _start(fleet, "batches")
    _wait_for_the_middle(network)
    fleet.stop("batches")
    assert _in_flight(network) <= on_their_way  # until their leases end; a stopped worker leaves none of its own
    network.mend_gorush()  # the rest of the test need not be slow
    _start(fleet, "batches")
    load.wait_until_all_processed(network, prepared)
    pushes = load.pushes_by_message(network, prepared)
    twice = {message_id for message_id, each in pushes.items() if len(each) == 2}
    assert Counter(len(each) for each in pushes.values()) == {1: REQUESTS - len(twice), 2: len(twice)}
    assert 0 < len(twice) <= len(on_their_way)
    assert twice <= on_their_way
    assert all(each[0]["collapse_id"] == each[1]["collapse_id"] for each in pushes.values() if len(each) == 2)
    assert _lost_attempts(network, prepared) == on_their_way
    assert load.replies_by_message(network, prepared) == Counter(prepared.message_ids)


def _start(fleet: Fleet, *names: str) -> None:
    fleet.start(*(services()[name] for name in names))


def _fill_the_inbox(fleet: Fleet, network: Network) -> Load:
    """Fill the inbox with all envelopes while no worker runs."""
    prepared = load.prepare(network, REQUESTS)
    fleet.stop("batches")
    network.publish(*prepared.messages)
    load.wait_until_received(network, prepared)
    return prepared


def _wait_for_the_middle(network: Network) -> None:
    """Wait until some envelopes are decided, some are not, and gorush has pushes under way."""
    sql = "SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state IN ('received', 'postponed')"
    wait_until(network.pushes_under_way, what="gorush has pushes", pause_seconds=0.005)
    assert 0 < network.rows(sql)[0][0] < REQUESTS


def _in_flight(network: Network) -> set[bytes]:
    """Return the ids of messages whose push a worker held at the kill. A commit may end a moment after its client."""
    busy = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
    """
    wait_until(lambda: network.rows(busy) == [(0,)], what="the database is at rest", pause_seconds=0.005)
    rows = network.rows("SELECT message FROM notifications_notification WHERE state = 'in_flight'")
    return {bytes(message) for (message,) in rows}


def _lost_attempts(network: Network, prepared: Load) -> set[bytes]:
    """Return the ids of messages that lost an attempt with its worker."""
    sql = """
        SELECT request.message_id FROM notifications_attempt AS attempt
        JOIN notifications_notification AS notification ON notification.id = attempt.notification_id
        JOIN notifications_notificationrequest AS request ON request.id = notification.request_id
        WHERE attempt.code = 'worker_lost'
    """
    return {bytes(message_id) for (message_id,) in network.rows(sql)} & set(prepared.message_ids)
