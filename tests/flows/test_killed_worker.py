"""Workers that end in the middle of their work: what they held is taken up, and nothing is lost."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.flows import load
from tests.flows.fleet import Fleet, services, wait_until
from tests.flows.load import Load
from tests.flows.network import Network

# Two workers decide about a thousand in a second (`bench throughput`). The kill and the stop come in between: a worker
# takes 200 in a batch.
REQUESTS = 1000
GORUSH_DELAY_MS = 1000  # long enough for a kill between a push and its result


@pytest.fixture
def slow_gorush(network: Network) -> Iterator[None]:
    network.break_gorush(delay_ms=GORUSH_DELAY_MS)
    yield
    network.mend_gorush()


@pytest.mark.usefixtures("slow_gorush")
def test_what_a_killed_and_then_a_stopped_worker_held_is_not_lost_and_only_what_was_on_its_way_is_doubled(
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
    assert _in_flight(network) <= on_their_way  # until their leases end; of its own it leaves nothing
    network.mend_gorush()  # what follows need not be slow
    _start(fleet, "batches")
    load.wait_until_worked_off(network, prepared)
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
    """All envelopes in the inbox, and nobody there who would process them."""
    prepared = load.prepare(network, REQUESTS)
    fleet.stop("batches")
    network.publish(*prepared.messages)
    load.wait_until_received(network, prepared)
    return prepared


def _wait_for_the_middle(network: Network) -> None:
    """Some envelopes are decided, some not, and gorush is busy with pushes."""
    sql = "SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state IN ('received', 'postponed')"
    wait_until(network.pushes_under_way, what="gorush has pushes", pause_seconds=0.005)
    assert 0 < network.rows(sql)[0][0] < REQUESTS


def _in_flight(network: Network) -> set[bytes]:
    """Status messages whose push somebody held at the kill. A commit may end a moment after its client."""
    busy = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
    """
    wait_until(lambda: network.rows(busy) == [(0,)], what="the database is at rest", pause_seconds=0.005)
    rows = network.rows("SELECT message FROM notifications_notification WHERE state = 'in_flight'")
    return {bytes(message) for (message,) in rows}


def _lost_attempts(network: Network, prepared: Load) -> set[bytes]:
    """Status messages of which an attempt was lost with its worker."""
    sql = """
        SELECT request.message_id FROM notifications_attempt AS attempt
        JOIN notifications_notification AS notification ON notification.id = attempt.notification_id
        JOIN notifications_notificationrequest AS request ON request.id = notification.request_id
        WHERE attempt.code = 'worker_lost'
    """
    return {bytes(message_id) for (message_id,) in network.rows(sql)} & set(prepared.message_ids)
