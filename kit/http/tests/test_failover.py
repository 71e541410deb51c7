import pytest

from kit.http.failover import DISTRUST_SECONDS, Peers

FIRST, SECOND, THIRD = "http://first", "http://second", "http://third"


@pytest.mark.parametrize(
    ("events", "now", "order"),
    [
        pytest.param([], 5, [FIRST, SECOND, THIRD], id="in the order of the settings"),
        pytest.param([("failed", FIRST, 5)], 6, [SECOND, THIRD, FIRST], id="one that failed is last"),
        pytest.param(
            [("failed", peer, at) for at, peer in enumerate((SECOND, THIRD, FIRST))], 7, [SECOND, THIRD, FIRST],
            id="of those that failed, the first",
        ),
        pytest.param([("failed", FIRST, 5)], 5 + DISTRUST_SECONDS, [FIRST, SECOND, THIRD], id="trusted after a while"),
        pytest.param([("failed", FIRST, 5), ("answered", FIRST)], 6, [FIRST, SECOND, THIRD], id="it has answered"),
        pytest.param([("took", FIRST, 0.5, 0)], 1, [FIRST, SECOND, THIRD], id="no other is known to be quicker"),
        pytest.param([("took", FIRST, 0.5, 0), ("took", SECOND, 0.01, 0)], 1, [SECOND, THIRD, FIRST], id="much slower"),
        pytest.param([("took", FIRST, 0.09, 0), ("took", SECOND, 0.01, 0)], 1, [FIRST, SECOND, THIRD], id="slower"),
        pytest.param(
            [("took", peer, 0.01, 0) for peer in (FIRST, SECOND)] * 10 + [("took", FIRST, 0.5, 0)], 1,
            [FIRST, SECOND, THIRD], id="slow once",
        ),
        pytest.param([("took", FIRST, 5, 0), ("took", SECOND, 0.01, 59)], 59, [SECOND, THIRD, FIRST], id="one minute"),
        pytest.param([("took", FIRST, 5, 0), ("took", SECOND, 0.01, 59)], 60, [FIRST, SECOND, THIRD], id="no longer"),
        pytest.param(
            [("took", FIRST, 5, 0), ("took", SECOND, 0.01, 0), ("failed", SECOND, 1)], 2, [THIRD, FIRST, SECOND],
            id="slow before failed",
        ),
    ],
)  # fmt: skip
def test_servers_are_tried_in_the_order_of_trust_and_speed(events, now, order):
    peers = Peers([FIRST, SECOND, THIRD])
    for method, *arguments in events:
        getattr(peers, method)(*arguments)
    assert peers.in_order(now=now) == order


def test_a_server_is_distrusted_for_longer_after_each_failure():
    peers = Peers([FIRST, SECOND], max_distrust_seconds=3 * DISTRUST_SECONDS)
    now = 0.0
    for span in (10, 20, 30, 30):
        peers.failed(FIRST, now)
        assert not peers.is_trusted(FIRST, now + span - 1)
        assert peers.is_trusted(FIRST, now + span)
        now += span
    peers.answered(FIRST)
    peers.failed(FIRST, now)
    assert peers.is_trusted(FIRST, now + 10)


def test_failures_of_parallel_requests_count_once():
    peers = Peers([FIRST], max_distrust_seconds=1000)
    for _ in range(64):
        peers.failed(FIRST, now=5.0)
    assert peers.is_trusted(FIRST, now=5.0 + DISTRUST_SECONDS)


def test_a_single_server_is_tried_also_while_it_is_distrusted_for_at_least_the_given_seconds():
    peers = Peers([FIRST])
    peers.failed(FIRST, now=5.0, min_seconds=60)
    assert (peers.is_trusted(FIRST, now=64.0), peers.is_trusted(FIRST, now=65.0)) == (False, True)
    assert peers.in_order(now=5.0) == [FIRST]
