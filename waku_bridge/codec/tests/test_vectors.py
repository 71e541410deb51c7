"""Every vector of the reference (tests/vectors/vectors.json), most of them executed by status-go's own functions."""

import json
from pathlib import Path

import pytest
from coincurve import PrivateKey

from registrations.messages import is_uuid
from waku_bridge.client import access_tokens
from waku_bridge.codec import envelope, keys, wire
from waku_bridge.codec.errors import CodecError, Segment, UnsignedMessage
from waku_bridge.codec.keys import (
    Identity,
    author_hash,
    chat_key,
    grant_material,
    keccak256,
    key_hash,
    parse_chat_key,
    parse_public_key,
    shake256,
    shared_key,
    sign_grant,
    verify_grant,
)
from waku_bridge.codec.tests.examples import CLIENT, SERVER, TOPIC_KEY, fixed
from waku_bridge.messages import MessageType, Registration, WakuMessage

REFERENCE = json.loads((Path(__file__).parents[3] / "tests" / "vectors" / "vectors.json").read_text(), object_hook=dict)
EXERCISED: set[str] = set()


def unhex(digits: str | None) -> bytes:
    return bytes.fromhex(digits or "")


def identity(private_key_hex: str) -> Identity:
    return Identity(PrivateKey(unhex(private_key_hex)))


def vectors_of(kind: str) -> pytest.MarkDecorator:
    """Run a test with every vector of a kind, and note that these vectors are exercised."""
    chosen = [vector for vector in REFERENCE["vectors"] if vector["kind"] == kind]
    EXERCISED.update(vector["id"] for vector in chosen)
    return pytest.mark.parametrize("vector", chosen, ids=lambda vector: vector["id"])


@vectors_of("key")
def test_derives_all_forms_of_a_key(vector):
    key = identity(vector["private_key"])
    assert key.pub65.hex() == vector["public_key_uncompressed"]
    assert key.pub33.hex() == vector["public_key_compressed"]
    assert key.key_hash.hex() == key_hash(key.pub33).hex() == vector["public_key_hash_shake256_64"]
    assert chat_key(key.pub33) == chat_key(key.pub65) == vector["chat_key_string"]
    assert author_hash(key.pub33).hex() == vector["author_hash_shake256_64"]
    assert parse_chat_key(vector["chat_key_string"]) == key.pub33


@vectors_of("shake256_64")
def test_hashes_with_shake256(vector):
    assert shake256(vector["input_utf8"].encode()).hex() == vector["output"]


@pytest.mark.requirement("W3")
@vectors_of("topic")
def test_names_topics(vector):
    public_key = parse_public_key(unhex(vector["public_key"])).format()
    name = {
        "partitioned": wire.partitioned_name,
        "personal": wire.personal_name,
        "contact_code": wire.contact_code_name,
        "query": lambda key: wire.query_name(key_hash(key)),
    }[vector["id"].split(".")[1]](public_key)
    assert name == vector["name"]
    assert wire.topic(name).hex() == vector["topic4"]
    assert wire.content_topic(name) == vector["content_topic"]


@pytest.mark.requirement("SR18")
@vectors_of("topic_negative")
def test_does_not_use_the_query_topic_of_the_spec_text(vector):
    assert wire.topic(vector["name"]).hex() == vector["topic4"]
    assert wire.query_name(CLIENT.key_hash) == vector["name"].removeprefix("0x")
    assert wire.content_topic(wire.query_name(CLIENT.key_hash)) != vector["content_topic"]


@pytest.mark.requirement("W3")
@vectors_of("pbkdf2")
def test_derives_topic_keys(vector):
    assert wire.symmetric_key(vector["password_utf8"]).hex() == vector["key"]


@vectors_of("ecdh_x")
def test_agrees_on_a_shared_key(vector):
    private_key, public_key = PrivateKey(unhex(vector["private_key"])), parse_public_key(unhex(vector["public_key"]))
    assert shared_key(private_key, public_key).hex() == vector["shared_key"]


@pytest.mark.requirement("R11")
@vectors_of("grant")
def test_signs_and_verifies_grants(vector):
    client, server = (
        identity(vector["client_private_key"]),
        parse_public_key(unhex(vector["server_public_key"])).format(),
    )
    material = grant_material(client.pub33, server, vector["access_token"])
    assert material.hex() == vector["material"]
    assert keccak256(material).hex() == vector["digest"]
    grant = sign_grant(client.private_key, server, vector["access_token"])
    assert grant.hex() == vector["grant"]
    assert verify_grant(grant, client=client.pub33, server=server, access_token=vector["access_token"])


@vectors_of("aes_gcm_nonce_first")
def test_seals_access_tokens_for_contacts(vector):
    client, contact = identity(vector["sender_private_key"]), identity(vector["recipient_private_key"])
    entry = access_tokens.seal_access_token(
        vector["plaintext_utf8"], client.private_key, contact.pub33, fixed(unhex(vector["nonce"]))
    )
    assert entry.hex() == vector["ciphertext"]
    assert access_tokens.find_access_token([entry], contact.private_key, client.pub33) == vector["plaintext_utf8"]


@pytest.mark.requirement("R5")
@vectors_of("registration")
def test_opens_and_seals_registrations(vector):
    plaintext, sealed, key = unhex(vector["plaintext_protobuf"]), unhex(vector["amm_payload"]), unhex(vector["key"])
    assert keys.unseal_body(sealed, key) == plaintext
    assert keys.seal_body(plaintext, key, fixed(unhex(vector["nonce"]))) == sealed
    assert wire.serialize(wire.parse_registration(plaintext)) == (MessageType.REGISTRATION, plaintext)
    assert shake256(sealed).hex() == vector["request_id"]


@vectors_of("envelope")
def test_decodes_envelopes(vector):
    message = WakuMessage(unhex(vector["v1_payload"]), vector["content_topic"], int(vector["timestamp_ns"]))
    assert wire.serialize_message(message).hex() == vector["waku_message"]
    decoded = envelope.decode(message.payload, [decryption_key(vector)], SERVER)
    assert decoded.author == identity(vector["amm_signer_private_key"]).pub33
    assert decoded.message_id.hex() == vector["message_id"]
    if isinstance(decoded.body, Registration):
        assert decoded.body.grant_verified
        assert decoded.body.request_id == shake256(unhex(vector["inner_payload"]))
        assert wire.serialize(decoded.body.registration)[1] == decoded.body.content
    else:
        assert wire.serialize(decoded.body) == (vector["amm_type"], unhex(vector["inner_payload"]))


@pytest.mark.requirement("R4", "A2", "Q2", "N5", "SR9", "SQ2", "SN4")
@vectors_of("envelope")
def test_encodes_envelopes_to_the_byte(vector):
    body = envelope.decode(unhex(vector["v1_payload"]), [decryption_key(vector)], SERVER).body
    encoded = envelope.encode(
        body.registration if isinstance(body, Registration) else body,
        signer=identity(vector["amm_signer_private_key"]),
        outer_signer=identity(vector["v1_signer_private_key"]),
        recipient=recipient(vector),
        topic_key=unhex(vector.get("sym_key")) or None,
        timestamp_ns=int(vector["timestamp_ns"]),
        random_bytes=fixed(*randomness(vector)),
    )
    assert encoded.message_id.hex() == vector["message_id"]
    assert encoded.message.content_topic == vector["content_topic"]
    assert wire.serialize_message(encoded.message).hex() == vector["waku_message"]
    assert wire.message_hash(vector["pubsub_topic"], encoded.message).hex() == vector["waku_message_hash"]


def recipient(vector):
    public_key = unhex(vector.get("recipient_public_key"))
    return parse_public_key(public_key).format() if public_key else None


def decryption_key(vector):
    return unhex(vector["sym_key"]) if "sym_key" in vector else identity(vector["recipient_private_key"])


def randomness(vector):
    """Return the draws of one message, in the order that the envelope module documents."""
    body_nonce = [unhex(vector["inner_payload"])[:12]] if vector["amm_type"] == MessageType.REGISTRATION else []
    sealing = ["iv"] if "sym_key" in vector else ["ecies_ephemeral_private_key", "ecies_iv"]
    return [*body_nonce, unhex(vector["v1_padding"]), *(unhex(vector[name]) for name in sealing)]


@pytest.mark.requirement("W2")
@vectors_of("v1_frame_size")
def test_pads_frames_to_whole_blocks(vector):
    signer = CLIENT.private_key if vector["signed"] else None
    padding = bytes((7 * i + 1) % 256 for i in range(vector["padding_length"]))
    built = keys.build_frame(bytes(vector["data_length"]), signer, fixed(padding))
    assert len(built) == vector["frame_length"]
    assert built[0] == vector["flags"]
    assert built[0] & keys.LENGTH_BYTES_MASK == vector["size_field_length"]
    assert keccak256(built).hex() == vector["frame_keccak256"]


@pytest.mark.requirement("W2")
@vectors_of("v1_case")
def test_accepts_the_frames_status_go_accepts(vector):
    opened = keys.unseal_on_topic(unhex(vector["v1_payload"]), unhex(vector["sym_key"]))
    assert opened.hex() == vector["v1_frame"]
    if vector["accepted"]:
        assert keys.parse_frame(opened)[0].hex() == vector["data"]
    else:
        with pytest.raises(CodecError):
            keys.parse_frame(opened)


@pytest.mark.requirement("W2")
@vectors_of("ecies_case")
def test_accepts_the_ciphertexts_status_go_accepts(vector):
    payload, private_key = unhex(vector["v1_payload"]), PrivateKey(unhex(vector["recipient_private_key"]))
    if vector["accepted"]:
        assert keys.parse_frame(keys.unseal_to_key(payload, private_key))[0].hex() == vector["data"]
    else:
        with pytest.raises(CodecError):
            keys.parse_frame(keys.unseal_to_key(payload, private_key))


@pytest.mark.requirement("W1")
@vectors_of("amm_recover")
def test_recovers_authors_as_status_go_does(vector):
    amm = unhex(vector["amm"])
    if vector["recovered_public_key"] is None:
        # status-go accepts one of these, the unsigned one: it then trusts the outer signer. We never do.
        with pytest.raises(UnsignedMessage if vector["accepted"] else CodecError):
            envelope.open_signed(amm)
    else:
        message = envelope.open_signed(amm)
        assert message.signer.format(compressed=False).hex() == vector["recovered_public_key"]
        assert message.message_id.hex() == vector["message_id"]
        assert message.type == vector["type"]


@vectors_of("segmentation")
def test_recognises_and_drops_segments(vector):
    whole = bytes((31 * i + 7) % 256 for i in range(vector["payload_length"]))
    assert keccak256(whole).hex() == vector["entire_message_hash"]
    assert len(vector["segments"]) == vector["data_segments"] + vector["parity_segments"]
    for segment in vector["segments"]:
        payload = keys.seal_on_topic(
            keys.build_frame(unhex(segment), CLIENT.private_key, lambda size: b"\1" * size),
            TOPIC_KEY,
            bytes,
        )
        with pytest.raises(Segment):
            envelope.decode(payload, [TOPIC_KEY], SERVER)


@pytest.mark.parametrize("case", REFERENCE["uuid_cases"]["cases"], ids=lambda case: repr(case["input"]))
def test_accepts_the_uuids_google_uuid_accepts(case):
    assert is_uuid(case["input"]) is case["accepted"]


def test_exercises_every_vector():
    assert {vector["id"] for vector in REFERENCE["vectors"]} == EXERCISED
