"""What a sending client asks, and which answers it believes."""

from dataclasses import replace

import pytest

from notifications.messages import NotificationType, PushRequest, Report
from registrations.messages import QueryInfo
from waku_bridge.client.sending import Destination, Found, Reported, SendingClient
from waku_bridge.codec import frame, symmetric, topics
from waku_bridge.codec.access_tokens import seal_access_token
from waku_bridge.codec.envelope import Identity, decode
from waku_bridge.codec.grants import sign_grant
from waku_bridge.codec.keys import author_hash
from waku_bridge.codec.tests.examples import (
    ACCESS_TOKEN,
    CLIENT,
    INFO,
    NOW_NS,
    SENDER,
    SERVER,
    STRANGER,
    UUID,
    repeatable,
)
from waku_bridge.messages import Decoded, PushResponse, Query, QueryResponse

EPHEMERAL = Identity(type(CLIENT.private_key)(b"\x03" * 32))
MESSAGE_ID = b"\x0a" * 32
REPLY_ID = b"\x0e" * 32
DESTINATION = Destination(SERVER.pub33, CLIENT.key_hash, UUID, ACCESS_TOKEN, 1)
REPORTS = (Report(CLIENT.key_hash, UUID, success=True),)


@pytest.fixture
def sender() -> SendingClient:
    return SendingClient(SENDER, EPHEMERAL, repeatable())


def test_a_query_shows_the_ephemeral_key_only(sender: SendingClient) -> None:
    payload = sender.query(CLIENT.pub33, timestamp_ns=NOW_NS).message.payload
    topic_key = topics.symmetric_key(topics.query_name(CLIENT.key_hash))
    _data, outer_signer = frame.parse(symmetric.unseal_frame(payload, topic_key))
    asked = decode(payload, [topic_key], SERVER)
    assert asked.body == Query((CLIENT.key_hash,))
    assert asked.author == EPHEMERAL.pub33
    assert outer_signer.format() == EPHEMERAL.pub33


def test_a_request_repeats_what_the_answers_to_queries_said(sender: SendingClient) -> None:
    request = sender.request([DESTINATION], sender.one_to_one(b"sealed"), MESSAGE_ID, timestamp_ns=NOW_NS)
    asked = decode(request.message.payload, [SERVER], SERVER)
    assert isinstance(asked.body, PushRequest)
    (notification,) = asked.body.notifications
    me = author_hash(SENDER.pub33)
    assert asked.author == EPHEMERAL.pub33
    assert (notification.public_key_hash, notification.installation_id) == (CLIENT.key_hash, UUID)
    assert notification.access_token == ACCESS_TOKEN
    assert (notification.type, notification.chat_id, notification.author, notification.message) == (
        NotificationType.MESSAGE,
        me,
        me,
        b"sealed",
    )


def test_a_repeated_request_is_the_same_message_in_another_envelope(sender: SendingClient) -> None:
    first, second = (
        sender.request([DESTINATION], sender.one_to_one(), MESSAGE_ID, timestamp_ns=NOW_NS) for _ in range(2)
    )
    assert first.message_id == second.message_id
    assert first.message.payload != second.message.payload


@pytest.mark.parametrize("servers", [[], [SERVER, STRANGER]], ids=["none", "two"])
def test_one_request_goes_to_exactly_one_server(sender: SendingClient, servers: list[Identity]) -> None:
    destinations = [replace(DESTINATION, server=server.pub33) for server in servers]
    with pytest.raises(ValueError, match="exactly one server"):
        sender.request(destinations, sender.one_to_one(), MESSAGE_ID, timestamp_ns=NOW_NS)


def test_an_open_installation_is_found(sender: SendingClient) -> None:
    assert _found(sender, INFO) == (DESTINATION,)


def test_a_token_sealed_for_this_contact_is_found(sender: SendingClient) -> None:
    assert _found(sender, _for_contacts(STRANGER, SENDER)) == (DESTINATION,)


def test_a_token_sealed_for_others_is_not(sender: SendingClient) -> None:
    assert _found(sender, _for_contacts(STRANGER)) == ()


@pytest.mark.parametrize(
    "info",
    [
        replace(INFO, grant=b""),
        replace(INFO, grant=b"\x01" * 65),
        replace(INFO, grant=sign_grant(STRANGER.private_key, SERVER.pub33, ACCESS_TOKEN)),
        replace(INFO, grant=sign_grant(CLIENT.private_key, STRANGER.pub33, ACCESS_TOKEN)),
        replace(INFO, access_token=UUID),
        replace(INFO, access_token="no uuid", grant=sign_grant(CLIENT.private_key, SERVER.pub33, "no uuid")),
        replace(INFO, access_token=""),
        replace(INFO, public_key_hash=STRANGER.key_hash),
    ],
    ids=[
        "no grant",
        "nonsense for a grant",
        "a grant of somebody else",
        "a grant for another server",
        "a grant for another token",
        "a token that is none",
        "no token",
        "another client",
    ],
)
def test_what_the_client_did_not_grant_is_not_believed(sender: SendingClient, info: QueryInfo) -> None:
    assert _found(sender, info) == ()


def test_bad_entries_do_not_hide_a_good_one(sender: SendingClient) -> None:
    assert _found(sender, replace(INFO, grant=b"\x01" * 65), INFO) == (DESTINATION,)


def test_a_server_that_repeats_the_grant_of_another_is_not_believed(sender: SendingClient) -> None:
    query = sender.query(CLIENT.pub33, timestamp_ns=NOW_NS)
    response = QueryResponse(query.message_id, success=True, info=(INFO,))
    found = sender.receive(Decoded(STRANGER.pub33, REPLY_ID, response))
    assert found == Found(query.message_id, STRANGER.pub33, ())


def test_an_answer_to_a_query_of_somebody_else_is_not_ours(sender: SendingClient) -> None:
    sender.query(CLIENT.pub33, timestamp_ns=NOW_NS)
    response = QueryResponse(b"\x0f" * 32, success=True, info=(INFO,))
    assert sender.receive(Decoded(SERVER.pub33, REPLY_ID, response)) is None


def test_the_reports_of_the_server_asked_are_believed(sender: SendingClient) -> None:
    sender.request([DESTINATION], sender.one_to_one(), MESSAGE_ID, timestamp_ns=NOW_NS)
    assert _receive_reports(sender) == Reported(MESSAGE_ID, SERVER.pub33, REPORTS)


def test_the_reports_of_a_forged_signer_are_not_believed(sender: SendingClient) -> None:
    sender.request([DESTINATION], sender.one_to_one(), MESSAGE_ID, timestamp_ns=NOW_NS)
    assert _receive_reports(sender, author=STRANGER.pub33) is None


def test_reports_for_an_unknown_message_are_not_believed(sender: SendingClient) -> None:
    sender.request([DESTINATION], sender.one_to_one(), MESSAGE_ID, timestamp_ns=NOW_NS)
    assert _receive_reports(sender, message_id=b"\x0f" * 32) is None


def test_another_kind_of_message_is_not_an_answer(sender: SendingClient) -> None:
    assert sender.receive(Decoded(SERVER.pub33, MESSAGE_ID, Query((CLIENT.key_hash,)))) is None


def _found(sender: SendingClient, *info: QueryInfo) -> tuple[Destination, ...]:
    query = sender.query(CLIENT.pub33, timestamp_ns=NOW_NS)
    response = QueryResponse(query.message_id, success=True, info=info)
    found = sender.receive(Decoded(SERVER.pub33, REPLY_ID, response))
    assert isinstance(found, Found)
    return found.destinations


def _for_contacts(*contacts: Identity) -> QueryInfo:
    random_bytes = repeatable()
    entries = [seal_access_token(ACCESS_TOKEN, CLIENT.private_key, contact.pub33, random_bytes) for contact in contacts]
    return replace(INFO, access_token="", allowed_key_list=tuple(entries))


def _receive_reports(sender: SendingClient, *, message_id: bytes = MESSAGE_ID, author: bytes = SERVER.pub33):
    return sender.receive(Decoded(author, REPLY_ID, PushResponse(message_id, REPORTS)))
