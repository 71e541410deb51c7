from kit.http.failover import DISTRUST_SECONDS, Peers

FIRST, SECOND, THIRD = "http://first", "http://second", "http://third"


def test_servers_are_tried_in_the_order_of_the_settings():
    assert Peers([FIRST, SECOND, THIRD]).in_order(now=5.0) == [FIRST, SECOND, THIRD]


def test_a_server_that_failed_is_tried_last():
    peers = Peers([FIRST, SECOND, THIRD])
    peers.failed(FIRST, now=5.0)
    assert peers.in_order(now=6.0) == [SECOND, THIRD, FIRST]


def test_the_server_that_failed_first_is_tried_first_when_all_have_failed():
    peers = Peers([FIRST, SECOND])
    peers.failed(SECOND, now=5.0)
    peers.failed(FIRST, now=6.0)
    assert peers.in_order(now=7.0) == [SECOND, FIRST]


def test_a_server_is_trusted_again_after_a_while():
    peers = Peers([FIRST, SECOND])
    peers.failed(FIRST, now=5.0)
    assert peers.in_order(now=5.0 + DISTRUST_SECONDS) == [FIRST, SECOND]


def test_a_server_that_answers_is_trusted_again_at_once():
    peers = Peers([FIRST, SECOND])
    peers.failed(FIRST, now=5.0)
    peers.answered(FIRST)
    assert peers.in_order(now=6.0) == [FIRST, SECOND]


def test_a_single_server_is_tried_also_after_a_failure():
    peers = Peers([FIRST])
    peers.failed(FIRST, now=5.0)
    assert peers.in_order(now=5.0) == [FIRST]


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


def test_a_server_is_distrusted_for_at_least_the_given_seconds():
    peers = Peers([FIRST])
    peers.failed(FIRST, now=5.0, min_seconds=60)
    assert not peers.is_trusted(FIRST, now=64.0)
    assert peers.is_trusted(FIRST, now=65.0)


def test_a_much_slower_server_is_tried_after_the_quicker_one():
    peers = Peers([FIRST, SECOND])
    peers.took(FIRST, 0.5, now=0.0)
    assert peers.in_order(now=1.0) == [FIRST, SECOND]
    peers.took(SECOND, 0.01, now=0.0)
    assert peers.in_order(now=1.0) == [SECOND, FIRST]


def test_small_differences_do_not_change_the_order():
    peers = Peers([FIRST, SECOND])
    peers.took(FIRST, 0.09, now=0.0)
    peers.took(SECOND, 0.01, now=0.0)
    assert peers.in_order(now=1.0) == [FIRST, SECOND]


def test_one_slow_answer_among_quick_ones_does_not_change_the_order():
    peers = Peers([FIRST, SECOND])
    for _ in range(10):
        peers.took(FIRST, 0.01, now=0.0)
        peers.took(SECOND, 0.01, now=0.0)
    peers.took(FIRST, 0.5, now=0.0)
    assert peers.in_order(now=1.0) == [FIRST, SECOND]


def test_a_slow_server_gets_another_chance_after_a_minute():
    peers = Peers([FIRST, SECOND])
    peers.took(FIRST, 5.0, now=0.0)
    peers.took(SECOND, 0.01, now=59.0)
    assert peers.in_order(now=59.0) == [SECOND, FIRST]
    assert peers.in_order(now=60.0) == [FIRST, SECOND]


def test_a_slow_server_is_tried_before_one_that_failed():
    peers = Peers([FIRST, SECOND])
    peers.took(FIRST, 5.0, now=0.0)
    peers.took(SECOND, 0.01, now=0.0)
    peers.failed(SECOND, now=1.0)
    assert peers.in_order(now=2.0) == [FIRST, SECOND]
