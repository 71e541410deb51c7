import hashlib
import itertools

from waku_bridge.reading.pages import SeenHashes


def hashes(start, count):
    return [hashlib.sha256(number.to_bytes(4)).digest() for number in range(start, start + count)]


def test_hashes_are_remembered_across_chunks():
    seen = SeenHashes(chunk=10, chunks=100)
    for start in range(0, 95, 5):
        seen.add(hashes(start, 5))
    assert all(each in seen for each in hashes(0, 95))
    assert not any(each in seen for each in hashes(95, 1000))


def test_the_oldest_hashes_are_forgotten_first():
    seen = SeenHashes(chunk=10, chunks=3)
    for start in itertools.count(0, 10):
        seen.add(hashes(start, 10))
        if start >= 100:
            break
    assert all(each in seen for each in hashes(80, 30))
    assert not any(each in seen for each in hashes(0, 70))
