from embedded.node.gossip import SEEN_FOR_NS, SeenCache


def test_a_message_is_new_once_in_two_minutes():
    seen = SeenCache()
    assert seen.is_new("a", 0)
    assert not seen.is_new("a", SEEN_FOR_NS - 1)
    assert seen.is_new("a", SEEN_FOR_NS)


def test_messages_are_new_independently_of_each_other():
    seen = SeenCache()
    assert [seen.is_new(each, 0) for each in "abab"] == [True, True, False, False]
