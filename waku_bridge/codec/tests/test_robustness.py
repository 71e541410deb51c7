"""Robustness of the codec: any bytes give a result or a CodecError."""

from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest
from coincurve import PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from waku_bridge.client import access_tokens
from waku_bridge.codec import envelope, keys, wire
from waku_bridge.codec.errors import BadFrame, CodecError
from waku_bridge.codec.keys import parse_chat_key, parse_public_key, recover, sign, verify_grant
from waku_bridge.codec.tests.examples import BODIES, CLIENT, QUERY, SERVER, TOPIC_KEY, fixed, framed, repeatable, sent
from waku_bridge.messages import MessageType

PARSERS: dict[str, Callable[[bytes], object]] = {
    "envelope": lambda data: envelope.decode(data, [SERVER, TOPIC_KEY], SERVER),
    "ecies": lambda data: keys.unseal_to_key(data, SERVER.private_key),
    "ecies point": lambda data: keys.unseal_to_key(b"\4" + data.ljust(112, b"\1"), SERVER.private_key),
    "frame on a topic": lambda data: keys.unseal_on_topic(data, TOPIC_KEY),
    "sealed body": lambda data: keys.unseal_body(data, TOPIC_KEY),
    "data inside a valid frame": lambda data: envelope.decode(framed(data), [SERVER], SERVER),
    "frame": keys.parse_frame,
    "metadata": envelope.open_signed,
    "registration": wire.parse_registration,
    "signature": lambda data: recover(data, b"signed"),
    "public key": parse_public_key,
    **{
        message_type.name: lambda data, message_type=message_type: wire.parse(message_type, data)
        for message_type in set(MessageType) - {MessageType.REGISTRATION}
    },
}


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@given(data=st.binary(max_size=300))
def test_any_bytes_give_a_result_or_a_codec_error(parser, data):
    with suppress(CodecError):
        parser(data)


@given(st.text(max_size=140))
@example("z" * 49)
@example("0x" + "f" * 130)
def test_any_text_is_a_chat_key_or_a_codec_error(text):
    with suppress(CodecError):
        parse_chat_key(text)


@given(payload=st.binary(max_size=300), message_type=st.sampled_from(MessageType))
def test_any_payload_inside_a_valid_message_gives_a_result_or_a_codec_error(payload, message_type):
    amm, _ = envelope.build_signed(payload, message_type, CLIENT)
    with suppress(CodecError):
        envelope.decode(framed(amm), [SERVER], SERVER)


@given(st.binary(max_size=70), st.text(max_size=40))
def test_any_grant_verifies_or_does_not(grant, access_token):
    assert not verify_grant(grant, client=CLIENT.pub33, server=SERVER.pub33, access_token=access_token)


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_random_entries_yield_no_token(entries):
    assert access_tokens.find_access_token(entries, CLIENT.private_key, SERVER.pub33) is None


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_refuses_every_truncation_of_an_envelope_and_a_byte_too_many(body):
    payload = sent(body).message.payload
    for changed in (payload + b"\0", b"\0" + payload, *(payload[:end] for end in range(len(payload)))):
        with pytest.raises(CodecError):
            envelope.decode(changed, [SERVER], SERVER)


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_refuses_an_envelope_with_a_flipped_bit(position, bit):
    payload = bytearray(sent(QUERY).message.payload)
    payload[position % len(payload)] ^= 1 << bit
    with pytest.raises(CodecError):
        envelope.decode(bytes(payload), [SERVER], SERVER)


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_inside_the_frame_never_keeps_author_and_id(position, bit):
    amm, message_id = envelope.build_signed(wire.serialize(QUERY)[1], MessageType.QUERY, CLIENT)
    flipped = bytearray(amm)
    flipped[position % len(flipped)] ^= 1 << bit
    with suppress(CodecError):
        decoded = envelope.decode(framed(bytes(flipped)), [SERVER], SERVER)
        assert decoded.message_id != message_id


@given(st.binary(max_size=700), st.booleans())
def test_reads_every_frame_it_builds(data, signed):
    signer = CLIENT.private_key if signed else None
    built = keys.build_frame(data, signer, repeatable())
    read, author = keys.parse_frame(built)
    assert len(built) % keys.BLOCK_BYTES == 0
    assert read == data
    assert (author.format() if author else None) == (CLIENT.pub33 if signed else None)


@pytest.mark.parametrize("signed", [True, False])
def test_reads_every_truncation_of_a_frame_or_refuses_it(signed):
    built = keys.build_frame(b"data" * 20, CLIENT.private_key if signed else None, repeatable())
    for end in range(len(built)):
        with suppress(CodecError):
            data, author = keys.parse_frame(built[:end])
            assert data == b"data" * 20  # only padding was cut off
            assert author is None or author.format() != CLIENT.pub33


def test_the_shortest_and_the_longest_frame_are_read():
    for head, is_whole in ((b"\x05\x00", True), (b"\x04", False)):  # flags and a length at least
        with nullcontext() if is_whole else pytest.raises(BadFrame):
            data, signer = keys.parse_frame(head + sign(head, CLIENT.private_key))
            assert (data, signer.format()) == (b"", CLIENT.pub33)
    most = bytes(keys.MAX_DATA_BYTES)
    assert keys.parse_frame(keys.build_frame(most, None, repeatable())) == (most, None)
    with pytest.raises(ValueError, match="too much data"):
        keys.build_frame(most + b"\0", None, repeatable())


@given(st.binary(max_size=700), st.binary(min_size=32, max_size=32).filter(any))
def test_opens_every_ciphertext_it_seals(data, topic_key):
    assert keys.unseal_to_key(keys.seal_to_key(data, SERVER.pub33, repeatable()), SERVER.private_key) == data
    assert keys.unseal_on_topic(keys.seal_on_topic(data, topic_key, repeatable()), topic_key) == data
    assert keys.unseal_body(keys.seal_body(data, topic_key, repeatable()), topic_key) == data


def test_draws_padding_again_while_it_is_all_zero():
    assert keys.build_frame(bytes(253), None, fixed(b"\0", b"\0", b"\1"))[-1:] == b"\1"


@pytest.mark.parametrize("secret", [1, 2, 3])
def test_recipients_with_any_parity_can_be_encrypted_to(secret):
    key = PrivateKey(bytes([secret]) * 32)
    assert keys.unseal_to_key(keys.seal_to_key(b"data", key.public_key.format(), repeatable()), key) == b"data"
