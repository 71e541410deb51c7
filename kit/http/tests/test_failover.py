from kit.http.failover import DISTRUST_SECONDS, Peers

FIRST, SECOND, THIRD = "http://first", "http://second", "http://third"


def test_asks_in_the_order_of_the_settings_while_all_is_well():
    assert Peers([FIRST, SECOND, THIRD]).in_order(now=5.0) == [FIRST, SECOND, THIRD]


def test_asks_one_that_failed_last():
    peers = Peers([FIRST, SECOND, THIRD])
    peers.failed(FIRST, now=5.0)
    assert peers.in_order(now=6.0) == [SECOND, THIRD, FIRST]


def test_asks_the_one_that_failed_longest_ago_first_when_all_have_failed():
    peers = Peers([FIRST, SECOND])
    peers.failed(SECOND, now=5.0)
    peers.failed(FIRST, now=6.0)
    assert peers.in_order(now=7.0) == [SECOND, FIRST]


def test_trusts_again_after_a_while():
    peers = Peers([FIRST, SECOND])
    peers.failed(FIRST, now=5.0)
    assert peers.in_order(now=5.0 + DISTRUST_SECONDS) == [FIRST, SECOND]


def test_trusts_again_at_once_what_has_answered():
    peers = Peers([FIRST, SECOND])
    peers.failed(FIRST, now=5.0)
    peers.answered(FIRST)
    assert peers.in_order(now=6.0) == [FIRST, SECOND]


def test_knows_a_single_one_whatever_happens():
    peers = Peers([FIRST])
    peers.failed(FIRST, now=5.0)
    assert peers.in_order(now=5.0) == [FIRST]


def test_distrusts_longer_each_time_one_fails_again():
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


def test_failures_of_requests_that_were_under_way_together_count_once():
    peers = Peers([FIRST], max_distrust_seconds=1000)
    for _ in range(64):
        peers.failed(FIRST, now=5.0)
    assert peers.is_trusted(FIRST, now=5.0 + DISTRUST_SECONDS)


def test_one_that_asks_for_it_is_left_alone_for_longer():
    peers = Peers([FIRST])
    peers.failed(FIRST, now=5.0, min_seconds=60)
    assert not peers.is_trusted(FIRST, now=64.0)
    assert peers.is_trusted(FIRST, now=65.0)


def test_asks_one_that_is_much_slower_than_another_after_it():
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


def test_one_slow_answer_among_quick_ones_changes_nothing():
    peers = Peers([FIRST, SECOND])
    for _ in range(10):
        peers.took(FIRST, 0.01, now=0.0)
        peers.took(SECOND, 0.01, now=0.0)
    peers.took(FIRST, 0.5, now=0.0)
    assert peers.in_order(now=1.0) == [FIRST, SECOND]


def test_a_slow_one_gets_another_chance_after_a_minute():
    peers = Peers([FIRST, SECOND])
    peers.took(FIRST, 5.0, now=0.0)
    peers.took(SECOND, 0.01, now=59.0)
    assert peers.in_order(now=59.0) == [SECOND, FIRST]
    assert peers.in_order(now=60.0) == [FIRST, SECOND]


def test_a_slow_one_is_better_than_one_that_failed():
    peers = Peers([FIRST, SECOND])
    peers.took(FIRST, 5.0, now=0.0)
    peers.took(SECOND, 0.01, now=0.0)
    peers.failed(SECOND, now=1.0)
    assert peers.in_order(now=2.0) == [FIRST, SECOND]
