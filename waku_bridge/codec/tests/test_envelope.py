import os
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from registrations.messages import RegistrationMessage
from waku_bridge.codec import envelope, errors, keys, wire
from waku_bridge.codec.keys import parse_public_key, shared_key
from waku_bridge.codec.pb.application_metadata_message_pb2 import ApplicationMetadataMessage
from waku_bridge.codec.pb.protocol_message_pb2 import ProtocolMessage
from waku_bridge.codec.tests.examples import (
    BODIES,
    CLIENT,
    INFO,
    NOTIFICATION,
    NOW_NS,
    OUTSIDER,
    QUERY,
    REGISTRATION,
    REQUEST,
    SENDER,
    SERVER,
    TOPIC_KEY,
    UUID,
    framed,
    repeatable,
    sent,
    sent_payload,
)
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    Registration,
    RegistrationResponse,
)

UNKNOWN_FIELD_ONLY = b"\x08\x07"


def decode(payload, keys=(SERVER,)):
    return envelope.decode(payload, keys, SERVER)


def sealed_registration(content, *, server=SERVER, signer=CLIENT):
    """Return the Waku payload of a registration of the client whose decrypted body is any bytes."""
    shared = shared_key(CLIENT.private_key, parse_public_key(server.pub33))
    return sent_payload(keys.seal_body(content, shared, repeatable()), MessageType.REGISTRATION, signer=signer)


def wrapped(amm):
    """Return the Waku payload of a ProtocolMessage, with which contact codes travel."""
    return framed(envelope.wrap(amm, UUID))


def message(**fields):
    """Return the Waku payload of an ApplicationMetadataMessage with these fields."""
    return framed(ApplicationMetadataMessage(**fields).SerializeToString())


AMM, MESSAGE_ID = envelope.build_signed(wire.serialize(REQUEST)[1], MessageType.REQUEST, CLIENT)
CONTENT = wire.serialize(REGISTRATION)[1]
MOST_KEYS = Query((CLIENT.key_hash,) * wire.MAX_QUERY_KEYS)
MOST_NOTIFICATIONS = replace(REQUEST, notifications=(NOTIFICATION,) * wire.MAX_NOTIFICATIONS)
LONG = bytes(wire.MAX_BODY_BYTES)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_message_is_decoded_as_it_was_encoded_to_a_key_or_on_a_topic(body):
    encoded = sent(body)
    decoded = decode(encoded.message.payload)
    assert (decoded.author, decoded.message_id, decoded.recipient) == (CLIENT.pub33, encoded.message_id, SERVER.pub33)
    assert (decoded.body.registration if isinstance(body, RegistrationMessage) else decoded.body) == body
    if isinstance(body, Query | ContactCodeAdvertisement):
        encoded = sent(body, recipient=None, topic_key=TOPIC_KEY)
        decoded = decode(encoded.message.payload, [TOPIC_KEY])
        assert (decoded.author, decoded.message_id, decoded.recipient) == (CLIENT.pub33, encoded.message_id, b"")
        assert decoded.body == body


def test_every_message_type_can_be_sent():
    assert {wire.serialize(body)[0] for body in BODIES} == set(MessageType)


@pytest.mark.requirement("SR1")
def test_the_author_is_the_signer_of_the_message_and_not_of_the_frame():
    payload = sent(REQUEST, signer=SENDER, outer_signer=CLIENT).message.payload
    assert decode(payload).author == SENDER.pub33


def test_tries_each_key_because_names_may_share_a_topic():
    payload = sent(QUERY, recipient=None, topic_key=TOPIC_KEY).message.payload
    assert decode(payload, [SERVER, b"\x08" * 32, TOPIC_KEY]).body == QUERY


@pytest.mark.parametrize("keys", [[], [OUTSIDER], [b"\x08" * 32], [OUTSIDER, b"\x08" * 32], [bytes(32)]])
def test_drops_a_payload_that_no_key_opens(keys):
    under_zeros = AESGCM(bytes(32)).encrypt(bytes(12), b"frame", None) + bytes(12)
    for payload in (sent(REQUEST).message.payload, under_zeros):
        with pytest.raises(errors.NotDecryptable):
            decode(payload, keys)


# The payloads that are dropped for each reason. They are made in the test, which may find a fault in the making, too.
DROPPED = {
    errors.NotDecryptable: lambda: [b"\x04" * wire.MAX_PAYLOAD_BYTES],
    errors.UnsignedFrame: lambda: [framed(AMM, signer=None)],
    # the signer of the frame is not trusted instead
    errors.UnsignedMessage: lambda: [message(payload=CONTENT, type=MessageType.REQUEST)],
    errors.BadSignature: lambda: [
        message(signature=signature, payload=b"\1", type=MessageType.REQUEST)
        for signature in (b"\1" * 64, b"\1" * 66, bytes(65), b"\1" * 64 + b"\x1b")
    ],
    errors.EmptyPayload: lambda: [
        *(sent_payload(b"", message_type) for message_type in MessageType),
        sent(ContactCodeAdvertisement()).message.payload,
    ],
    errors.UnknownType: lambda: [
        *(sent_payload(b"\1", message_type) for message_type in (0, 1, 14, 22, 24, 99)),
        framed(b"\x0a\x20" + b"h" * 32),  # a hash without a payload is no segment
        wrapped(envelope.build_signed(b"\1", 1, CLIENT)[0]),
        framed(ProtocolMessage(installation_id=UUID).SerializeToString()),  # encrypted
    ],
    errors.MalformedMessage: lambda: [
        *map(framed, (b"\xff", b"\x0a\x7f", b"not a message", b"\x0a\x20cut off")),
        wrapped(b"\xff"),
    ],
    errors.CodecError: lambda: [wrapped(envelope.wrap(AMM, UUID))],  # it is not unwrapped twice
    errors.MalformedBody: lambda: [
        sent_payload(b"\xff", message_type) for message_type in set(MessageType) - {MessageType.REGISTRATION}
    ],
    errors.TooLarge: lambda: [
        b"\x04" * (wire.MAX_PAYLOAD_BYTES + 1),
        *(
            sent(body).message.payload
            for body in (
                Query((*MOST_KEYS.public_key_hashes, CLIENT.key_hash)),
                replace(REQUEST, notifications=(*MOST_NOTIFICATIONS.notifications, NOTIFICATION)),
                Query((LONG,)),
                replace(REQUEST, message_id=LONG),
                replace(REQUEST, notifications=(replace(NOTIFICATION, message=LONG),)),
            )
        ),
    ],
    errors.BodyNotDecryptable: lambda: [
        *(sent_payload(sealed, MessageType.REGISTRATION) for sealed in (b"x", b"x" * 11, b"x" * 27, b"x" * 100)),
        sealed_registration(CONTENT, server=OUTSIDER),
        sealed_registration(CONTENT, signer=OUTSIDER),  # replayed by another signer
    ],
}


@pytest.mark.requirement("W1", "R5", "SR1")
@pytest.mark.parametrize("error", DROPPED, ids=lambda error: error.__name__)
def test_drops_a_payload_with_its_reason(error):
    for payload in DROPPED[error]():
        with pytest.raises(error):
            decode(payload)


@pytest.mark.parametrize("body", [MOST_KEYS, MOST_NOTIFICATIONS], ids=lambda body: type(body).__name__)
def test_reads_a_body_with_the_maximum_of_entries(body):
    assert decode(sent(body).message.payload).body == body


def test_reads_any_type_from_a_protocol_message():
    assert decode(wrapped(AMM)).body == REQUEST


@pytest.mark.requirement("W1")
def test_message_id_covers_the_bytes_as_received():
    same_in_other_bytes = decode(framed(AMM + b"\x78\x01"))  # an unknown field
    assert same_in_other_bytes.body == REQUEST
    assert same_in_other_bytes.message_id != MESSAGE_ID


def test_the_key_that_opens_a_registration_is_the_server_that_its_grant_names():
    body = envelope.decode(sent(REGISTRATION).message.payload, [OUTSIDER, SERVER], OUTSIDER).body
    assert body.grant_verified


def test_a_query_that_names_no_keys_is_still_a_query():
    assert decode(sent_payload(UNKNOWN_FIELD_ONLY, MessageType.QUERY)).body == Query(())


# Registrations --------------------------------------------------------------------------------------------------------


def opened(registration):
    body = decode(sent(registration).message.payload).body
    assert isinstance(body, Registration)
    return body


@pytest.mark.requirement("SR16")
def test_a_registration_is_named_by_its_sealed_body_and_recognised_by_the_opened_one():
    first, second = (sent(REGISTRATION, random_bytes=os.urandom) for _ in "12")
    assert len(first.request_id) == 64
    assert first.request_id != second.request_id
    opened_first, opened_second = (decode(each.message.payload).body for each in (first, second))
    assert (opened_first.request_id, opened_second.request_id) == (first.request_id, second.request_id)
    assert opened_first.content == opened_second.content


@pytest.mark.parametrize(
    "differences",
    [
        {"grant": b""},
        {"grant": REGISTRATION.grant[:-1]},
        {"grant": REGISTRATION.grant + b"\0"},
        {"grant": bytes(65)},
        {"grant": b"\1" + REGISTRATION.grant[1:]},
        {"access_token": UUID},
        {"access_token": REGISTRATION.access_token.upper()},
        {"unregister": True},
    ],
)
def test_verifies_a_grant_for_this_token_alone_and_none_of_an_unregistration(differences):
    assert opened(REGISTRATION).grant_verified
    assert not opened(replace(REGISTRATION, **differences)).grant_verified


@pytest.mark.requirement("SR19")
def test_does_not_verify_a_grant_of_another_client_or_for_another_server():
    assert not decode(sent(REGISTRATION, signer=OUTSIDER).message.payload).body.grant_verified
    body = envelope.decode(sent(REGISTRATION, recipient=OUTSIDER.pub33).message.payload, [OUTSIDER], OUTSIDER).body
    assert (body.registration, body.grant_verified) == (REGISTRATION, False)


TEXTS = ("device_token", "app_topic", "access_token", "installation_id")
LISTS = ("allowed_key_list", "blocked_chat_list", "muted_chat_list", "allowed_mentions_chat_list")
UNREADABLE = {
    "no protobuf": b"\xff",
    "no UTF-8": b"\x12\x01\xff",
    "too long": bytes(wire.MAX_BODY_BYTES + 1),
    "too long a grant": replace(REGISTRATION, grant=LONG),
    "too long a text in bytes": replace(REGISTRATION, device_token="é" * (wire.MAX_TOKEN_BYTES // 2 + 1)),
    **{name: replace(REGISTRATION, **{name: "t" * (wire.MAX_TOKEN_BYTES + 1)}) for name in TEXTS},
    **{name: replace(REGISTRATION, **{name: (b"\1",) * (wire.MAX_LIST_ENTRIES + 1)}) for name in LISTS},
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_reports_a_body_that_decrypts_and_cannot_be_read(case):
    unreadable = UNREADABLE[case]
    content = unreadable if isinstance(unreadable, bytes) else wire.serialize(unreadable)[1]
    body = decode(sealed_registration(content)).body
    assert (body.registration, body.content, len(body.request_id)) == (None, content, 64)


def test_reads_a_body_at_the_limits_and_an_empty_one():
    largest = replace(
        REGISTRATION,
        device_token="t" * wire.MAX_TOKEN_BYTES,
        blocked_chat_list=(b"\1",) * wire.MAX_LIST_ENTRIES,
    )
    assert opened(largest).registration == largest
    assert len(sealed_registration(LONG)) <= wire.MAX_ENVELOPE_BYTES
    assert decode(sealed_registration(b"")).body.registration == RegistrationMessage("", 0)


def test_the_repr_of_a_registration_hides_token_and_grant():
    shown = repr(decode(sent(REGISTRATION).message.payload))
    assert REGISTRATION.device_token not in shown
    assert REGISTRATION.access_token not in shown
    assert CLIENT.private_key.secret.hex() not in shown


# Encoding -------------------------------------------------------------------------------------------------------------


STAMPED = {"timestamp_ns": NOW_NS, "random_bytes": os.urandom}


@pytest.mark.requirement("SR17", "SQ6", "SN5")
@pytest.mark.parametrize(
    "body",
    [
        RegistrationResponse(b"\1" * 64, success=True),
        QueryResponse(b"\1" * 32, success=True, info=(INFO,)),
        PushResponse(b"\1" * 32),
    ],
    ids=lambda body: type(body).__name__,
)
def test_replies_go_to_the_partitioned_topic_of_the_author(body):
    reply = envelope.encode(body, signer=SERVER, recipient=SENDER.pub33, **STAMPED).message
    assert reply.content_topic == wire.content_topic(wire.partitioned_name(SENDER.pub33))
    assert (reply.version, reply.ephemeral, reply.timestamp_ns) == (1, False, NOW_NS)
    decoded = envelope.decode(reply.payload, [SENDER], SENDER)
    assert (decoded.author, decoded.body) == (SERVER.pub33, body)


ADVERTISEMENT = ContactCodeAdvertisement((INFO,))
TO_SERVER, ON_TOPIC = {"recipient": SERVER.pub33}, {"topic_key": TOPIC_KEY}
ENCODED = {
    "registration": (REGISTRATION, TO_SERVER, wire.personal_name(SERVER.pub33)),
    "request": (REQUEST, TO_SERVER, wire.partitioned_name(SERVER.pub33)),
    "query": (QUERY, ON_TOPIC, CLIENT.key_hash.hex()),
    "contact code": (ADVERTISEMENT, ON_TOPIC, wire.contact_code_name(CLIENT.pub33)),
}


@pytest.mark.requirement("Q3", "A4")
@pytest.mark.parametrize("name", ENCODED)
def test_each_message_goes_to_its_topic_and_bears_its_time(name):
    body, sealed, topic_name = ENCODED[name]
    encoded = envelope.encode(body, signer=CLIENT, **sealed, **STAMPED)
    assert encoded.message.content_topic == wire.content_topic(topic_name)
    assert encoded.message.timestamp_ns == NOW_NS
    decoded = decode(encoded.message.payload, [SERVER, TOPIC_KEY])
    assert (decoded.message_id, decoded.author) == (encoded.message_id, CLIENT.pub33)
    assert bool(encoded.request_id) is (body is REGISTRATION)
    if body is REGISTRATION:
        assert decoded.body.grant_verified


@pytest.mark.parametrize("outer_signer", [None, OUTSIDER])
def test_the_frame_is_signed_by_the_signer_unless_another_key_is_given(outer_signer):
    """So an ephemeral sender leaves no trace of its identity."""
    names = {"signer": SENDER, "outer_signer": outer_signer}
    query = envelope.encode(QUERY, **ON_TOPIC, **names, **STAMPED)
    request = envelope.encode(REQUEST, **TO_SERVER, **names, **STAMPED)
    frames = [
        keys.unseal_on_topic(query.message.payload, TOPIC_KEY),
        keys.unseal_to_key(request.message.payload, SERVER.private_key),
    ]
    assert [keys.parse_frame(each)[1].format() for each in frames] == [(outer_signer or SENDER).pub33] * 2


@pytest.mark.parametrize(
    ("body", "differences", "error", "text"),
    [
        (QUERY, {"recipient": None}, ValueError, "neither a recipient nor a topic key"),
        (REQUEST, {"recipient": None, "topic_key": TOPIC_KEY}, ValueError, "sealed for one recipient"),
        (REGISTRATION, {"recipient": None, "topic_key": TOPIC_KEY}, ValueError, "sealed for one recipient"),
        (QUERY, {"recipient": None, "topic_key": bytes(32)}, ValueError, "all zero"),
        (REQUEST, {"recipient": bytes(33)}, errors.BadPublicKey, "bad_public_key"),
        (REQUEST, {"random_bytes": bytes}, ValueError, "zeros only"),
        (REQUEST, {"random_bytes": lambda size: b"\xff" * size}, ValueError, ".+"),
    ],
)
def test_refuses_to_encode_without_the_keys_and_the_randomness_that_it_needs(body, differences, error, text):
    with pytest.raises(error, match=text):
        sent(body, **differences)


def test_draws_fresh_randomness_for_each_message():
    first, second = sent(REQUEST, random_bytes=os.urandom), sent(REQUEST, random_bytes=os.urandom)
    assert first.message_id == second.message_id  # the signature is deterministic
    assert first.message.payload[:65] != second.message.payload[:65]


# Errors ---------------------------------------------------------------------------------------------------------------

REASONS = {
    *("bad_frame", "bad_public_key", "bad_signature", "body_not_decryptable", "empty_payload", "malformed_body"),
    *("malformed_message", "not_decryptable", "not_for_servers", "segment", "too_large"),
    *("unknown_type", "unsigned_frame", "unsigned_message"),
}


def test_reasons_are_stable_and_distinct_and_all_that_an_error_shows():
    classes = errors.CodecError.__subclasses__()
    assert {error.reason for error in classes} == {str(error()) for error in classes} == REASONS
    assert len(classes) == len(REASONS)
