"""What a registering client says, and which answers it believes."""

from itertools import pairwise

import pytest

from registrations.messages import TokenType
from waku_bridge.client.registering import Address, Preferences, RegisteringClient
from waku_bridge.codec import topics
from waku_bridge.codec.access_tokens import find_access_token
from waku_bridge.codec.envelope import Encoded, decode
from waku_bridge.codec.tests.examples import (
    ACCESS_TOKEN,
    CLIENT,
    NOW_NS,
    SENDER,
    SERVER,
    STRANGER,
    UUID,
    repeatable,
)
from waku_bridge.messages import Decoded, Registration, RegistrationError, RegistrationResponse

ADDRESS = Address(TokenType.APN, "device-token-1", "im.status.ethereum")
MESSAGE_ID = b"\x0e" * 32


@pytest.fixture
def client() -> RegisteringClient:
    return RegisteringClient(CLIENT, UUID, ACCESS_TOKEN, repeatable())


def test_a_registration_carries_a_grant_for_the_server_it_goes_to(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    for server in (SERVER, STRANGER):
        assert _opened(_encoded(client, server), server).grant_verified


def test_a_registration_goes_to_the_personal_topic_of_its_server(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    assert _encoded(client).message.content_topic == topics.content_topic(topics.personal_name(SERVER.pub33))


def test_every_change_is_a_higher_version(client: RegisteringClient) -> None:
    versions = []
    for step in (lambda: client.change(ADDRESS), lambda: client.change(ADDRESS), client.unregister):
        step()
        versions.append(_opened(_encoded(client)).registration.version)
    assert all(earlier < later for earlier, later in pairwise(versions))


def test_versions_go_on_from_where_an_earlier_run_stopped() -> None:
    client = RegisteringClient(CLIENT, UUID, ACCESS_TOKEN, repeatable(), version=41)
    client.change(ADDRESS)
    assert _opened(_encoded(client)).registration.version == 42


def test_a_repeat_says_the_same_to_the_byte_in_another_envelope(client: RegisteringClient) -> None:
    client.change(ADDRESS, Preferences(contacts_only=True, contacts=(SENDER.pub33,)))
    first, second = _encoded(client), _encoded(client)
    assert _opened(first).content == _opened(second).content
    assert first.message.payload != second.message.payload


def test_contacts_alone_can_open_the_access_token(client: RegisteringClient) -> None:
    client.change(ADDRESS, Preferences(contacts_only=True, contacts=(STRANGER.pub33, SENDER.pub33)))
    registration = _opened(_encoded(client)).registration
    assert find_access_token(registration.allowed_key_list, SENDER.private_key, CLIENT.pub33) == ACCESS_TOKEN
    assert find_access_token(registration.allowed_key_list, SERVER.private_key, CLIENT.pub33) is None


def test_open_to_all_means_that_no_contact_is_named(client: RegisteringClient) -> None:
    client.change(ADDRESS, Preferences(contacts=(SENDER.pub33,)))
    registration = _opened(_encoded(client)).registration
    assert registration.allowed_key_list == ()
    assert not registration.allow_from_contacts_only


def test_what_the_phone_wishes_is_what_the_server_reads(client: RegisteringClient) -> None:
    client.change(
        ADDRESS,
        Preferences(
            enabled=False,
            block_mentions=True,
            blocked_chats=(b"b" * 64,),
            muted_chats=(b"m" * 64,),
            mention_chats=(b"a" * 64,),
        ),
    )
    registration = _opened(_encoded(client)).registration
    assert (registration.token_type, registration.device_token, registration.apn_topic) == (
        TokenType.APN,
        "device-token-1",
        "im.status.ethereum",
    )
    assert (registration.enabled, registration.block_mentions) == (False, True)
    assert registration.blocked_chat_list == (b"b" * 64,)
    assert registration.muted_chat_list == (b"m" * 64,)
    assert registration.allowed_mentions_chat_list == (b"a" * 64,)


def test_unregistering_tells_no_token(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    client.unregister()
    registration = _opened(_encoded(client)).registration
    assert registration.unregister
    assert (registration.device_token, registration.access_token, registration.grant) == ("", "", b"")


def test_before_the_first_version_there_is_nothing_to_say(client: RegisteringClient) -> None:
    with pytest.raises(ValueError, match="nothing to say yet"):
        _encoded(client)


def test_an_answer_of_the_server_asked_is_believed(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    sent = _encoded(client)
    answered = client.receive(_answer(sent.request_id))
    assert answered is not None
    assert answered.is_accepted
    assert (answered.server, answered.version) == (SERVER.pub33, 1)


def test_the_answer_to_an_earlier_transmission_of_the_same_version_counts(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    first = _encoded(client)
    _encoded(client)
    assert client.receive(_answer(first.request_id)) is not None


@pytest.mark.parametrize(
    ("error", "understood"),
    [
        (RegistrationError.VERSION_MISMATCH, RegistrationError.VERSION_MISMATCH),
        (RegistrationError.NONE, RegistrationError.INTERNAL_ERROR),
        (77, 77),
    ],
    ids=["with a reason", "without a reason", "with a reason from the future"],
)
def test_a_refusal_is_a_refusal(client: RegisteringClient, error: int, understood: int) -> None:
    client.change(ADDRESS)
    answered = client.receive(_answer(_encoded(client).request_id, success=False, error=error))
    assert answered is not None
    assert not answered.is_accepted
    assert answered.error == understood


def test_a_forged_signer_is_not_believed(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    assert client.receive(_answer(_encoded(client).request_id, author=STRANGER.pub33)) is None


def test_one_server_cannot_answer_for_another(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    to_server, _to_stranger = _encoded(client), _encoded(client, STRANGER)
    assert client.receive(_answer(to_server.request_id, author=STRANGER.pub33)) is None


def test_an_unknown_request_id_is_not_believed(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    _encoded(client)
    assert client.receive(_answer(b"\x0f" * 64)) is None


def test_an_answer_to_an_older_version_is_out_of_date(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    sent = _encoded(client)
    client.change(ADDRESS)
    assert client.receive(_answer(sent.request_id)) is None


def test_another_kind_of_message_is_not_an_answer(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    sent = _encoded(client)
    assert client.receive(decode(sent.message.payload, [SERVER], SERVER)) is None


def _encoded(client: RegisteringClient, server=SERVER) -> Encoded:
    return client.encode_for(server.pub33, timestamp_ns=NOW_NS)


def _opened(encoded: Encoded, server=SERVER) -> Registration:
    return decode(encoded.message.payload, [server], server).body


def _answer(
    request_id: bytes, *, author: bytes = SERVER.pub33, success: bool = True, error: int = RegistrationError.NONE
) -> Decoded:
    return Decoded(author, MESSAGE_ID, RegistrationResponse(request_id, success, error))
