"""Tests of what is traced and what may leave: our own words, and nothing that identifies anybody or a message."""

import base64
import hashlib
import os

import pytest

from kit.tracing.allowed import EXPORTED, LOCATIONS, NAMES, exported, is_allowed, only_allowed
from kit.tracing.spans import trace_of

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
def test_no_secret_passes_under_any_name(what):
    assert not [name for name in NAMES.values() if is_allowed(name, SECRETS[what])]


@pytest.mark.parametrize("what", ["token of Apple", "access token", "key hash", "JID", "bytes"])
def test_no_secret_passes_as_a_place_in_the_code(what):
    assert not [name for name in LOCATIONS.values() if is_allowed(name, SECRETS[what])]


def test_words_figures_and_places_in_the_code_pass():
    assert all(is_allowed(name, word) for name in NAMES.values() for word in WORDS)
    assert all(is_allowed(name, place) for name in LOCATIONS.values() for place in FROM_THE_CODE)


def test_a_name_that_is_not_in_the_list_does_not_pass():
    assert exported({"outcome": "accepted", "key_hash": 1}) == {"pushserver.outcome": "accepted", "key_hash": 1}
    assert only_allowed({"outcome": "accepted", "key_hash": 1}) == {"pushserver.outcome": "accepted"}


def test_no_name_in_the_list_is_for_a_secret():
    words = {"key", "hash", "token", "topic", "jid", "address_encrypted", "installation", "payload", "url", "id"}
    assert [name for name in EXPORTED if words & set(name.replace(".", "_").split("_"))] == []


# Traces ---------------------------------------------------------------------------------------------------------------

KEYS = [hashlib.sha256(number.to_bytes(4)).digest() for number in range(4000)]


@pytest.fixture
def traced(settings):
    """Return a function that returns the keys of which messages are traced at this share."""

    def at_share(share):
        settings.TRACES_SHARE = share
        return {key for key in KEYS if trace_of(key)}

    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    return at_share


def test_a_message_has_a_trace_of_its_own_which_cannot_be_computed_without_the_key(traced, settings):
    traces = [trace_of(key) for key in KEYS]
    assert trace_of(bytes(bytearray(KEYS[0]))) == traces[0]  # as in every process
    assert len({trace.id for trace in traces}) == len({trace.first_span_id for trace in traces}) == len(KEYS)
    settings.TRACES_KEY = os.urandom(32)
    assert trace_of(KEYS[0]) != traces[0]


def test_the_same_share_of_the_messages_is_always_traced(traced, settings):
    tenth = traced(0.1)
    assert 0.08 < len(tenth) / len(KEYS) < 0.12
    assert tenth == traced(0.1)
    assert tenth < traced(0.2)
    assert traced(0.0) == set()
    settings.TRACES = False
    assert traced(1.0) == set()
