import os
from dataclasses import replace

import pytest
from coincurve import PrivateKey

from registrations.messages import RegistrationMessage
from waku_bridge.codec import bodies, envelope, errors, frame, limits, metadata, topics
from waku_bridge.codec.crypto import ecies, symmetric
from waku_bridge.codec.keys import parse_public_key, shake256, shared_key
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


def framed(data, signer=CLIENT):
    """Return the Waku payload of a frame with any data, signed or not."""
    built = frame.build(data, signer.private_key if signer else None, repeatable())
    return ecies.seal(built, SERVER.pub33, repeatable())


def sealed_registration(content):
    """Return the Waku payload of a registration whose decrypted body is any bytes."""
    shared = shared_key(CLIENT.private_key, parse_public_key(SERVER.pub33))
    return sent_payload(symmetric.seal_body(content, shared, repeatable()), MessageType.REGISTRATION)


def assert_dropped(payload, error, keys=(SERVER,)):
    with pytest.raises(error):
        decode(payload, keys)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_message_encoded_to_a_key_is_decoded_as_the_same(body):
    encoded = sent(body)
    decoded = decode(encoded.message.payload)
    assert (decoded.author, decoded.message_id) == (CLIENT.pub33, encoded.message_id)
    assert (decoded.body.registration if isinstance(body, RegistrationMessage) else decoded.body) == body


@pytest.mark.parametrize(
    "body", [body for body in BODIES if body is not REGISTRATION], ids=lambda body: type(body).__name__
)
def test_a_message_encoded_on_a_topic_is_decoded_as_the_same(body):
    encoded = sent(body, recipient=None, topic_key=TOPIC_KEY)
    decoded = decode(encoded.message.payload, [TOPIC_KEY])
    assert (decoded.author, decoded.message_id, decoded.body) == (CLIENT.pub33, encoded.message_id, body)


def test_every_message_type_can_be_sent():
    assert {bodies.serialize(body)[0] for body in BODIES} == set(MessageType)


@pytest.mark.requirement("SR1")
def test_the_author_is_the_signer_of_the_message_and_not_of_the_frame():
    payload = sent(REQUEST, signer=SENDER, outer_signer=CLIENT).message.payload
    assert decode(payload).author == SENDER.pub33


def test_tries_each_key_because_names_may_share_a_topic():
    payload = sent(QUERY, recipient=None, topic_key=TOPIC_KEY).message.payload
    assert decode(payload, [SERVER, b"\x08" * 32, TOPIC_KEY]).body == QUERY


@pytest.mark.parametrize("keys", [[], [OUTSIDER], [b"\x08" * 32], [OUTSIDER, b"\x08" * 32]])
def test_drops_a_payload_that_no_key_opens(keys):
    assert_dropped(sent(REQUEST).message.payload, errors.NotDecryptable, keys)


def test_a_key_of_zeros_opens_no_payload():
    payload = symmetric.AESGCM(bytes(32)).encrypt(bytes(12), b"frame", None) + bytes(12)
    assert_dropped(payload, errors.NotDecryptable, [bytes(32)])


def test_drops_an_unsigned_frame():
    amm, _ = metadata.build(bodies.serialize(REQUEST)[1], MessageType.REQUEST, CLIENT)
    assert_dropped(framed(amm, signer=None), errors.UnsignedFrame)


@pytest.mark.requirement("W1")
def test_drops_a_message_without_signature_instead_of_trusting_the_frame():
    amm = ApplicationMetadataMessage(payload=bodies.serialize(REQUEST)[1], type=MessageType.REQUEST)
    assert_dropped(framed(amm.SerializeToString()), errors.UnsignedMessage)


@pytest.mark.parametrize("signature", [b"\1" * 64, b"\1" * 66, bytes(65), b"\1" * 64 + b"\x1b"])
def test_drops_a_message_with_an_unusable_signature(signature):
    amm = ApplicationMetadataMessage(signature=signature, payload=b"\1", type=MessageType.REQUEST)
    assert_dropped(framed(amm.SerializeToString()), errors.BadSignature)


@pytest.mark.parametrize("message_type", MessageType)
def test_drops_a_message_with_an_empty_payload(message_type):
    assert_dropped(sent_payload(b"", message_type), errors.EmptyPayload)


@pytest.mark.parametrize("message_type", [0, 1, 14, 22, 24, 99])
def test_drops_message_types_that_are_not_about_push(message_type):
    assert_dropped(sent_payload(b"\1", message_type), errors.UnknownType)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x7f", b"not a message", b"\x0a\x20cut off"])
def test_drops_data_that_is_no_message(data):
    assert_dropped(framed(data), errors.MalformedMessage)


def test_a_hash_without_a_payload_is_no_segment():
    assert_dropped(framed(b"\x0a\x20" + b"h" * 32), errors.UnknownType)


def test_reads_any_type_from_a_protocol_message():
    amm, _ = metadata.build(bodies.serialize(REQUEST)[1], MessageType.REQUEST, CLIENT)
    assert decode(framed(metadata.wrap(amm, UUID))).body == REQUEST


def test_drops_a_protocol_message_with_something_else_inside():
    assert_dropped(framed(metadata.wrap(b"\xff", UUID)), errors.MalformedMessage)
    foreign, _ = metadata.build(b"\1", 1, CLIENT)
    assert_dropped(framed(metadata.wrap(foreign, UUID)), errors.UnknownType)


def test_a_protocol_message_is_not_unwrapped_twice():
    amm, _ = metadata.build(bodies.serialize(REQUEST)[1], MessageType.REQUEST, CLIENT)
    assert_dropped(framed(metadata.wrap(metadata.wrap(amm, UUID), UUID)), errors.CodecError)


def test_drops_an_encrypted_protocol_message():
    assert_dropped(framed(ProtocolMessage(installation_id=UUID).SerializeToString()), errors.UnknownType)


@pytest.mark.requirement("W1")
def test_message_id_covers_the_bytes_as_received():
    amm, message_id = metadata.build(bodies.serialize(REQUEST)[1], MessageType.REQUEST, CLIENT)
    same_in_other_bytes = decode(framed(amm + b"\x78\x01"))  # an unknown field
    assert same_in_other_bytes.body == REQUEST
    assert same_in_other_bytes.message_id != message_id


def test_drops_a_payload_above_the_relay_limit():
    assert_dropped(b"\x04" * limits.MAX_PAYLOAD_BYTES, errors.NotDecryptable)
    assert_dropped(b"\x04" * (limits.MAX_PAYLOAD_BYTES + 1), errors.TooLarge)


def test_a_decoded_message_names_the_key_that_it_was_sealed_for():
    assert decode(sent(REQUEST).message.payload).recipient == SERVER.pub33
    assert decode(sent(REQUEST, recipient=None, topic_key=TOPIC_KEY).message.payload, [TOPIC_KEY]).recipient == b""


def test_the_key_that_opens_a_registration_is_the_server_that_its_grant_names():
    body = envelope.decode(sent(REGISTRATION).message.payload, [OUTSIDER, SERVER], OUTSIDER).body
    assert body.grant_verified


def test_a_query_that_names_no_keys_is_still_a_query():
    assert decode(sent_payload(UNKNOWN_FIELD_ONLY, MessageType.QUERY)).body == Query(())


@pytest.mark.parametrize("message_type", set(MessageType) - {MessageType.REGISTRATION})
def test_drops_a_body_that_does_not_parse(message_type):
    assert_dropped(sent_payload(b"\xff", message_type), errors.MalformedBody)


def test_drops_a_query_for_too_many_keys():
    most = Query((CLIENT.key_hash,) * limits.MAX_QUERY_KEYS)
    assert decode(sent(most).message.payload).body == most
    over = Query((*most.public_key_hashes, CLIENT.key_hash))
    assert_dropped(sent(over).message.payload, errors.TooLarge)


def test_drops_a_request_for_too_many_notifications():
    most = replace(REQUEST, notifications=(NOTIFICATION,) * limits.MAX_NOTIFICATIONS)
    assert decode(sent(most).message.payload).body == most
    over = replace(REQUEST, notifications=(*most.notifications, NOTIFICATION))
    assert_dropped(sent(over).message.payload, errors.TooLarge)


@pytest.mark.parametrize(
    "body",
    [
        Query((bytes(limits.MAX_BODY_BYTES),)),
        replace(REQUEST, message_id=bytes(limits.MAX_BODY_BYTES)),
        replace(REQUEST, notifications=(replace(NOTIFICATION, message=bytes(limits.MAX_BODY_BYTES)),)),
    ],
    ids=["query", "request", "request with a long message"],
)
def test_drops_a_body_above_the_limit(body):
    assert_dropped(sent(body).message.payload, errors.TooLarge)


def test_reads_no_registration_above_the_limit():
    content = bodies.serialize(replace(REGISTRATION, grant=bytes(limits.MAX_BODY_BYTES)))[1]
    assert decode(sealed_registration(content)).body.registration is None


class TestRegistration:
    def opened(self, registration):
        body = decode(sent(registration).message.payload).body
        assert isinstance(body, Registration)
        return body

    @pytest.mark.requirement("SR16")
    def test_names_the_request_by_the_sealed_body(self):
        encoded = sent(REGISTRATION)
        assert decode(encoded.message.payload).body.request_id == encoded.request_id
        assert len(encoded.request_id) == 64

    def test_keeps_the_decrypted_body_to_recognise_a_retransmission(self):
        first = sent(REGISTRATION, random_bytes=os.urandom)
        second = sent(REGISTRATION, random_bytes=os.urandom)
        assert first.request_id != second.request_id
        assert decode(first.message.payload).body.content == decode(second.message.payload).body.content

    def test_verifies_the_grant(self):
        assert self.opened(REGISTRATION).grant_verified

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
        ],
    )
    def test_does_not_verify_a_grant_for_anything_else(self, differences):
        assert not self.opened(replace(REGISTRATION, **differences)).grant_verified

    @pytest.mark.requirement("SR19")
    def test_does_not_verify_a_grant_of_another_client(self):
        assert not decode(sent(REGISTRATION, signer=OUTSIDER).message.payload).body.grant_verified

    @pytest.mark.requirement("SR19")
    def test_does_not_verify_a_grant_for_another_server(self):
        payload = sent(REGISTRATION, recipient=OUTSIDER.pub33).message.payload
        decoded = envelope.decode(payload, [OUTSIDER], OUTSIDER)
        assert decoded.body.registration == REGISTRATION
        assert not decoded.body.grant_verified

    def test_does_not_verify_the_grant_of_an_unregistration(self):
        assert not self.opened(replace(REGISTRATION, unregister=True)).grant_verified

    @pytest.mark.requirement("R5")
    def test_drops_a_body_sealed_for_another_server(self):
        content = bodies.serialize(REGISTRATION)[1]
        shared = shared_key(CLIENT.private_key, parse_public_key(OUTSIDER.pub33))
        payload = sent_payload(symmetric.seal_body(content, shared, repeatable()), MessageType.REGISTRATION)
        assert_dropped(payload, errors.BodyNotDecryptable)

    @pytest.mark.requirement("SR1")
    def test_drops_a_body_replayed_by_another_signer(self):
        content = bodies.serialize(REGISTRATION)[1]
        shared = shared_key(CLIENT.private_key, parse_public_key(SERVER.pub33))
        sealed = symmetric.seal_body(content, shared, repeatable())
        assert_dropped(sent_payload(sealed, MessageType.REGISTRATION, signer=OUTSIDER), errors.BodyNotDecryptable)

    @pytest.mark.parametrize("sealed", [b"x", b"x" * 11, b"x" * 27, b"x" * 100])
    def test_drops_a_body_that_was_never_sealed(self, sealed):
        assert_dropped(sent_payload(sealed, MessageType.REGISTRATION), errors.BodyNotDecryptable)

    @pytest.mark.parametrize("content", [b"\xff", b"\x12\x01\xff", bytes(limits.MAX_BODY_BYTES + 1)])
    def test_reports_a_body_that_decrypts_but_does_not_parse(self, content):
        body = decode(sealed_registration(content)).body
        assert body.registration is None
        assert body.content == content
        assert len(body.request_id) == 64

    @pytest.mark.parametrize(
        "differences",
        [
            {"device_token": "t" * (limits.MAX_TOKEN_BYTES + 1)},
            {"device_token": "é" * (limits.MAX_TOKEN_BYTES // 2 + 1)},
            {"app_topic": "t" * (limits.MAX_TOKEN_BYTES + 1)},
            {"access_token": "t" * (limits.MAX_TOKEN_BYTES + 1)},
            {"installation_id": "t" * (limits.MAX_TOKEN_BYTES + 1)},
            {"allowed_key_list": (b"\1",) * (limits.MAX_LIST_ENTRIES + 1)},
            {"blocked_chat_list": (b"\1",) * (limits.MAX_LIST_ENTRIES + 1)},
            {"muted_chat_list": (b"\1",) * (limits.MAX_LIST_ENTRIES + 1)},
            {"allowed_mentions_chat_list": (b"\1",) * (limits.MAX_LIST_ENTRIES + 1)},
        ],
        ids=lambda differences: next(iter(differences)),
    )
    def test_reports_a_body_over_a_limit_as_unreadable(self, differences):
        assert self.opened(replace(REGISTRATION, **differences)).registration is None

    def test_takes_a_body_at_the_limits(self):
        largest = replace(
            REGISTRATION,
            device_token="t" * limits.MAX_TOKEN_BYTES,
            blocked_chat_list=(b"\1",) * limits.MAX_LIST_ENTRIES,
        )
        assert self.opened(largest).registration == largest

    def test_the_largest_body_fits_into_what_a_server_stores(self):
        payload = sealed_registration(bytes(limits.MAX_BODY_BYTES))
        assert len(payload) <= limits.MAX_ENVELOPE_BYTES

    def test_empty_body_is_a_registration_without_anything(self):
        assert decode(sealed_registration(b"")).body.registration == RegistrationMessage("", 0)

    def test_hides_token_and_grant_from_its_repr(self):
        shown = repr(decode(sent(REGISTRATION).message.payload))
        assert REGISTRATION.device_token not in shown
        assert REGISTRATION.access_token not in shown
        assert CLIENT.private_key.secret.hex() not in shown


class TestEncode:
    @pytest.fixture
    def stamped(self):
        return {"timestamp_ns": NOW_NS, "random_bytes": repeatable()}

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
    def test_replies_go_to_the_partitioned_topic_of_the_author(self, body, stamped):
        message = envelope.encode_reply(body, identity=SERVER, recipient=SENDER.pub33, **stamped)
        assert message.content_topic == topics.content_topic(topics.partitioned_name(SENDER.pub33))
        assert (message.version, message.ephemeral, message.timestamp_ns) == (1, False, NOW_NS)
        decoded = envelope.decode(message.payload, [SENDER], SENDER)
        assert (decoded.author, decoded.body) == (SERVER.pub33, body)

    def test_registrations_go_to_the_personal_topic_of_the_server(self, stamped):
        encoded = envelope.encode_registration(REGISTRATION, identity=CLIENT, server=SERVER.pub33, **stamped)
        assert encoded.message.content_topic == topics.content_topic(topics.personal_name(SERVER.pub33))
        assert decode(encoded.message.payload).body.grant_verified

    def test_requests_go_to_the_partitioned_topic_of_the_server(self, stamped):
        encoded = envelope.encode_request(REQUEST, signer=SENDER, server=SERVER.pub33, **stamped)
        assert encoded.message.content_topic == topics.content_topic(topics.partitioned_name(SERVER.pub33))
        assert decode(encoded.message.payload).message_id == encoded.message_id
        assert encoded.request_id == b""

    @pytest.mark.requirement("Q3")
    def test_queries_go_to_the_query_topic_of_the_key_hash(self, stamped):
        encoded = envelope.encode_query(QUERY, signer=SENDER, topic_key=TOPIC_KEY, **stamped)
        assert encoded.message.content_topic == topics.content_topic(CLIENT.key_hash.hex())
        assert decode(encoded.message.payload, [TOPIC_KEY]).message_id == encoded.message_id

    @pytest.mark.requirement("A2", "A4")
    def test_contact_codes_are_wrapped_and_go_to_their_own_topic(self, stamped):
        advertisement = ContactCodeAdvertisement((INFO,))
        encoded = envelope.encode_advertisement(advertisement, identity=CLIENT, topic_key=TOPIC_KEY, **stamped)
        assert encoded.message.content_topic == topics.content_topic(topics.contact_code_name(CLIENT.pub33))
        data, _ = frame.parse(symmetric.unseal_frame(encoded.message.payload, TOPIC_KEY))
        assert ProtocolMessage.FromString(data).installation_id == INFO.installation_id
        assert decode(encoded.message.payload, [TOPIC_KEY]).body == advertisement

    @pytest.mark.parametrize(
        ("encode", "body", "sender"),
        [
            (envelope.encode_registration, REGISTRATION, {"identity": CLIENT, "server": SERVER.pub33}),
            (envelope.encode_request, REQUEST, {"signer": CLIENT, "server": SERVER.pub33}),
            (envelope.encode_query, QUERY, {"signer": CLIENT, "topic_key": TOPIC_KEY}),
            (envelope.encode_advertisement, ContactCodeAdvertisement(), {"identity": CLIENT, "topic_key": TOPIC_KEY}),
        ],
    )
    def test_every_message_bears_its_time(self, encode, body, sender, stamped):
        encoded = encode(body, **sender, **stamped)
        assert getattr(encoded, "message", encoded).timestamp_ns == NOW_NS

    def test_the_frame_of_a_query_or_a_request_may_be_signed_by_another_key(self, stamped):
        names = {"signer": SENDER, "outer_signer": OUTSIDER}
        query = envelope.encode_query(QUERY, topic_key=TOPIC_KEY, **names, **stamped)
        request = envelope.encode_request(REQUEST, server=SERVER.pub33, **names, **stamped)
        opened = [
            symmetric.unseal_frame(query.message.payload, TOPIC_KEY),
            ecies.unseal(request.message.payload, SERVER.private_key),
        ]
        assert [frame.parse(each)[1].format() for each in opened] == [OUTSIDER.pub33] * 2

    def test_a_contact_code_may_be_empty_and_still_wrapped(self):
        with pytest.raises(errors.EmptyPayload):
            decode(sent(ContactCodeAdvertisement()).message.payload)

    def test_an_ephemeral_sender_leaves_no_trace_of_the_identity(self, stamped):
        encoded = envelope.encode_request(REQUEST, signer=SENDER, server=SERVER.pub33, **stamped)
        _, outer = frame.parse(ecies.unseal(encoded.message.payload, SERVER.private_key))
        assert outer.format() == SENDER.pub33

    def test_encoding_needs_a_recipient_or_a_topic_key(self):
        with pytest.raises(ValueError, match="neither a recipient nor a topic key"):
            sent(REQUEST, recipient=None)

    def test_encoding_a_registration_needs_a_server(self):
        with pytest.raises(ValueError, match="sealed for one server"):
            sent(REGISTRATION, recipient=None, topic_key=TOPIC_KEY)

    def test_refuses_a_topic_key_of_zeros(self):
        with pytest.raises(ValueError, match="all zero"):
            sent(QUERY, recipient=None, topic_key=bytes(32))

    def test_refuses_a_recipient_that_is_no_key(self):
        with pytest.raises(errors.BadPublicKey):
            sent(REQUEST, recipient=bytes(33))

    @pytest.mark.parametrize("drawn", [b"\0", b"\xff"])
    def test_refuses_randomness_that_cannot_be_a_key(self, drawn):
        with pytest.raises(ValueError, match=r".+"):
            sent(REQUEST, random_bytes=lambda size: drawn * size)

    def test_draws_fresh_randomness_for_each_message(self):
        first, second = sent(REQUEST, random_bytes=os.urandom), sent(REQUEST, random_bytes=os.urandom)
        assert first.message_id == second.message_id  # the signature is deterministic
        assert first.message.payload[:65] != second.message.payload[:65]

    def test_request_id_is_the_hash_of_the_sealed_body(self):
        encoded = envelope.encode_payload(
            b"sealed elsewhere",
            MessageType.REGISTRATION,
            signer=CLIENT,
            recipient=SERVER.pub33,
            topic_name="a topic",
            timestamp_ns=NOW_NS,
            random_bytes=repeatable(),
        )
        assert encoded.request_id == shake256(b"sealed elsewhere")


def test_an_envelope_for_one_server_does_not_open_at_another():
    other = envelope.Identity(PrivateKey(b"\x06" * 32))
    with pytest.raises(errors.NotDecryptable):
        envelope.decode(sent(REGISTRATION).message.payload, [other], other)
