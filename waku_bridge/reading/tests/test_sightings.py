"""What each path missed, told two minutes later, as tables."""

import pytest

from waku_bridge.reading.sightings import MAX_SIGHTINGS, SETTLED_SECONDS, Reader, Sightings

SHARD = "/waku/2/rs/16/32"
LIVE, LIVE2 = Reader("live", "http://one:1", SHARD), Reader("live", "http://two:2", SHARD)
STORE, STORE2 = Reader("store", "http://one:1", SHARD), Reader("store", "http://two:2", SHARD)
BACKFILL = Reader("backfill", "http://one:1", SHARD)
ELSEWHERE = Reader("live", "http://one:1", "/waku/2/rs/16/64")
LATER = 10 + SETTLED_SECONDS


def missed(*saw, steady=(LIVE, STORE)):
    sightings = Sightings()
    for reader in steady:
        sightings.works(reader, 0)
    for number, reader in enumerate(saw):
        sightings.saw(reader, [b"message"], [b"message"] if not number else [], 10 + number)
    assert list(sightings.settle(LATER - 1)) == []
    return list(sightings.settle(LATER))


@pytest.mark.parametrize(
    ("saw", "steady", "expected"),
    [
        ([LIVE, STORE], [LIVE, STORE], []),
        ([STORE, LIVE], [LIVE, STORE], []),
        ([STORE], [LIVE, STORE], [("store_only", "one:1")]),
        ([STORE], [STORE], []),  # another bridge reads live
        ([STORE], [ELSEWHERE, STORE], []),
        ([LIVE], [LIVE, STORE], [("live_only", "one:1")]),
        ([LIVE], [LIVE], []),  # another bridge reads the store, or nobody does
        ([LIVE, STORE], [LIVE, STORE, STORE2], [("store_missing", "two:2")]),
        ([LIVE, STORE], [LIVE, LIVE2, STORE], []),  # one live path is enough
        ([BACKFILL], [LIVE, STORE], []),
        ([BACKFILL, STORE], [LIVE, STORE], []),
    ],
)
def test_a_path_missed_what_others_brought_while_it_worked(saw, steady, expected):
    assert missed(*saw, steady=steady) == expected


def test_a_path_that_failed_meanwhile_is_not_blamed():
    sightings = Sightings()
    sightings.works(LIVE, 0)
    sightings.works(STORE, 0)
    sightings.saw(LIVE, [b"message"], [b"message"], 10)
    sightings.fails(STORE)
    sightings.works(STORE, 11)
    assert list(sightings.settle(LATER)) == []


def test_what_another_process_took_in_is_not_compared():
    sightings = Sightings()
    sightings.works(LIVE, 0)
    sightings.saw(STORE, [b"message"], [], 10)
    assert list(sightings.settle(LATER)) == []


def test_the_oldest_of_too_many_are_let_go():
    sightings = Sightings()
    hashes = [number.to_bytes(4) for number in range(MAX_SIGHTINGS + 10)]
    sightings.saw(LIVE, hashes, set(hashes), 10)
    assert list(sightings.settle(11)) == []
    assert len(sightings._sightings) == MAX_SIGHTINGS
