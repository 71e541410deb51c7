import pytest

from waku_bridge.codec.crypto.access_tokens import find_access_token, seal_access_token
from waku_bridge.codec.crypto.symmetric import seal_body
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import parse_public_key, shared_key
from waku_bridge.codec.tests.examples import ACCESS_TOKEN, CLIENT, OUTSIDER, SENDER, repeatable


def entry_for(contact, token=ACCESS_TOKEN):
    return seal_access_token(token, CLIENT.private_key, contact.pub33, repeatable())


def test_a_contact_finds_the_token_among_entries_for_others_and_entries_without_a_uuid():
    shared = shared_key(CLIENT.private_key, parse_public_key(SENDER.pub33))
    no_text = seal_body(b"\xff" * 36, shared, repeatable())
    entries = [b"", b"too short", entry_for(OUTSIDER), entry_for(SENDER, "not a uuid"), no_text, entry_for(SENDER)]
    assert find_access_token(entries, SENDER.private_key, CLIENT.pub33) == ACCESS_TOKEN
    assert find_access_token(entries[:-1], SENDER.private_key, CLIENT.pub33) is None


def test_an_entry_is_64_bytes_and_does_not_contain_the_token():
    entry = entry_for(SENDER)
    assert len(entry) == 64
    assert ACCESS_TOKEN.encode() not in entry


def test_refuses_a_contact_that_is_no_key():
    with pytest.raises(BadPublicKey):
        seal_access_token(ACCESS_TOKEN, CLIENT.private_key, bytes(33), repeatable())
