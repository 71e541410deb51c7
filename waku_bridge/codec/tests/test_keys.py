"""Keys in every form, and what two of them share: a secret, and the access tokens for contacts."""

from hashlib import shake_256

import pytest
from coincurve import PrivateKey

from waku_bridge.client.access_tokens import find_access_token, seal_access_token
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import (
    Identity,
    chat_hash,
    chat_key,
    compress,
    parse_chat_key,
    parse_public_key,
    seal_body,
    shared_key,
)
from waku_bridge.codec.tests.examples import ACCESS_TOKEN, CLIENT, OUTSIDER, SENDER, SERVER, repeatable

# The pair that status-go's own tests of the short form use.
SHORT_FORM = "zQ3shPyZJnxZK4Bwyx9QsaksNKDYTPmpwPvGSjMYVHoXHeEgB"
SHORT_FORM_KEY = "02261c55675e55ff25edb50b345cfb3a3f35f60712d251cbaaab97bd50054c6ebc"
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("text", "public_key"),
    [
        (chat_key(CLIENT.pub33), CLIENT.pub33.hex()),
        (chat_key(CLIENT.pub33).upper().replace("0X", "0x"), CLIENT.pub33.hex()),
        (CLIENT.pub65.hex(), CLIENT.pub33.hex()),
        (CLIENT.pub33.hex(), CLIENT.pub33.hex()),
        ("0x" + CLIENT.pub33.hex(), CLIENT.pub33.hex()),
        (SHORT_FORM, SHORT_FORM_KEY),
    ],
)
def test_reads_chat_keys_in_hex_and_in_the_short_form_of_status(text, public_key):
    assert parse_chat_key(text).hex() == public_key


def short_form(varint, public_key):
    number, digits = int.from_bytes(varint + public_key, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = BASE58[digit] + digits
    return "z" + digits


def test_reads_the_short_form_of_any_key():
    keys = [PrivateKey(bytes([secret]) * 32).public_key.format() for secret in range(1, 20)]
    forms = [short_form(b"\xe7\x01", key) for key in keys]
    assert set(BASE58) == set("".join(forms))
    assert [parse_chat_key(form) for form in forms] == keys


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "z",
        "04" * 65,  # not on the curve
        CLIENT.pub65.hex()[:-2],
        CLIENT.pub33.hex() + "00",
        " ".join((CLIENT.pub33.hex()[:2], CLIENT.pub33.hex()[2:])),
        "06" + CLIENT.pub65.hex()[2:],  # hybrid form
        SHORT_FORM[:-1],
        SHORT_FORM[:-1] + "0",  # 0 is no digit of base 58
        "z" + "z" * 48,  # more than 35 bytes
        "z" + "1" * 48,  # zeros
        SHORT_FORM[:5] + SHORT_FORM[6] + SHORT_FORM[5] + SHORT_FORM[7:],
        "ключ",
        short_form(b"\xe8\x01", CLIENT.pub33),  # another kind of key
    ],
)
def test_refuses_a_text_that_is_no_chat_key(text):
    with pytest.raises(BadPublicKey):
        parse_chat_key(text)


@pytest.mark.parametrize("public_key", [b"", bytes(33), bytes(65), b"\x02" + b"\xff" * 32, b"\x04" + bytes(64)])
def test_refuses_a_key_that_is_no_point_of_the_curve(public_key):
    with pytest.raises(BadPublicKey):
        parse_public_key(public_key)
    with pytest.raises(BadPublicKey):
        seal_access_token(ACCESS_TOKEN, CLIENT.private_key, public_key, repeatable())


def test_compresses_both_parities():
    keys = [PrivateKey(bytes([secret]) * 32).public_key for secret in range(1, 20)]
    assert {key.format()[0] for key in keys} == {2, 3}
    assert all(compress(key.format(compressed=False)) == key.format() for key in keys)


def test_both_sides_agree_on_the_shared_key():
    ours = shared_key(CLIENT.private_key, parse_public_key(SERVER.pub33))
    theirs = shared_key(SERVER.private_key, parse_public_key(CLIENT.pub65))
    assert ours == theirs


def test_an_identity_does_not_show_its_private_key():
    secret = bytes(range(1, 33))
    shown = repr(Identity(PrivateKey(secret)))
    assert secret.hex() not in shown
    assert repr(secret)[2:-1] not in shown
    assert "PrivateKey" not in shown


def test_identities_are_equal_when_their_keys_are():
    assert Identity(PrivateKey(b"\1" * 32)) == CLIENT
    assert len({CLIENT, SERVER, Identity(PrivateKey(b"\1" * 32))}) == 2


def test_the_hash_of_a_chat_is_shake_256_of_its_id():
    assert chat_hash("town-square-ü") == shake_256("town-square-ü".encode()).digest(64)


# Access tokens --------------------------------------------------------------------------------------------------------


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
