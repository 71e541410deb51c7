import pytest

from tests.faulty.node_faults import Faults, UnknownFaultError


def strikes(faults: Faults, times: int) -> list[bool]:
    return [faults.strikes("no_peers") for _ in range(times)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(False, [False, False, False]), (0, [False, False, False]), (2, [True, True, False]), (True, [True, True, True])],
)
def test_a_switch_strikes_as_often_as_it_is_set_to(value, expected):
    faults = Faults()
    faults.update({"no_peers": value})
    assert strikes(faults, 3) == expected


def test_setting_one_switch_leaves_the_others():
    faults = Faults()
    faults.update({"no_peers": True, "reply_delay_ms": 5})
    faults.update({"no_peers": 3})
    assert (faults.as_dict()["no_peers"], faults.as_dict()["reply_delay_ms"]) == (3, 5)


@pytest.mark.parametrize("switches", [{"typo": 1}, {"no_peers": "yes"}, {"no_peers": -1}, {"reply_delay_ms": True}])
def test_an_unknown_switch_is_refused_and_changes_nothing(switches):
    faults = Faults()
    with pytest.raises(UnknownFaultError):
        faults.update({"archive_refuses": True} | switches)
    assert faults == Faults()
