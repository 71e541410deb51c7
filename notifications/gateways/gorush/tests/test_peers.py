from notifications.gateways.gorush.peers import DISTRUST_SECONDS, Peers

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
