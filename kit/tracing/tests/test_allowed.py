"""Tests of the allowlist: our own words may leave in an attribute, and nothing that identifies anybody."""

import base64
import hashlib

import pytest

from kit.tracing.allowed import EXPORTED, LOCATIONS, NAMES, exported, is_allowed, only_allowed

KEY = hashlib.sha256(b"any").digest()
SECRETS = {
    "token of Apple": KEY.hex(),
    "token of Firebase": "dQw4w9WgXcQ:APA91b" + base64.urlsafe_b64encode(3 * KEY).decode(),
    "access token": "0b8a1f7e-5c4d-4e9a-9b1c-7d2f3a4b5c6d",
    "key hash": hashlib.shake_256(b"key").hexdigest(64),
    "its first digits": hashlib.shake_256(b"key").hexdigest(8),
    "in capitals": KEY.hex().upper(),
    "chat key": "zQ3shYSHp7GoiXaauJMnDcjwU2yNjdzpXLosAWapPS4CFxc11",
    "private key in base64": base64.b64encode(KEY).decode(),
    "content topic": "/waku/1/0x9f2e3a4b/rfc26",
    "JID": "ann@example.org/phone",
    "message": "See you at eight!",
    "bytes": KEY,
    "list": ["word"],
}
WORDS = ["accepted", "request", "node-1.example.org:8645", "[::1]:8645", "unreachable", "waku", "", 3, 0.5, True]
FROM_THE_CODE = [
    "envelope.py:31 in decode\ntasks.py:7 in <lambda>",
    "ServerDisconnectedErrorOfSomeLibrary",
    "kit.batches.batch",
]


@pytest.mark.parametrize("what", SECRETS)
@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_no_secret_passes_under_any_name(name, what):
    assert not is_allowed(name, SECRETS[what])


@pytest.mark.parametrize("what", ["token of Apple", "access token", "key hash", "JID", "bytes"])
@pytest.mark.parametrize("name", sorted(LOCATIONS.values()))
def test_no_secret_passes_as_a_place_in_the_code(name, what):
    assert not is_allowed(name, SECRETS[what])


def test_words_and_figures_pass():
    assert all(is_allowed(name, word) for name in NAMES.values() for word in WORDS)


def test_places_in_the_code_pass():
    assert all(is_allowed(name, place) for name in LOCATIONS.values() for place in FROM_THE_CODE)


def test_a_name_that_is_not_in_the_list_does_not_pass():
    assert exported({"outcome": "accepted", "key_hash": 1}) == {"pushserver.outcome": "accepted", "key_hash": 1}
    assert only_allowed({"outcome": "accepted", "key_hash": 1}) == {"pushserver.outcome": "accepted"}


def test_no_name_in_the_list_is_for_a_secret():
    words = {"key", "hash", "token", "topic", "jid", "address_encrypted", "installation", "payload", "url", "id"}
    assert [name for name in EXPORTED if words & set(name.replace(".", "_").split("_"))] == []
