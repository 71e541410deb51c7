from hashlib import shake_256

from waku_bridge.codec.keys import chat_hash


def test_the_hash_of_a_chat_is_shake_256_of_its_id():
    assert chat_hash("town-square-ü") == shake_256("town-square-ü".encode()).digest(64)
