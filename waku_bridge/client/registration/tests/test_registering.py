"""The registering client: its registrations, their repetitions, and the answers that it accepts."""

from dataclasses import replace
from itertools import pairwise

import pytest

from registrations.messages import TokenType
from tests.factories import apn_token
from waku_bridge.client import (
    Accepted,
    Address,
    Advertised,
    GivenUp,
    Ignored,
    Preferences,
    Reason,
    Refused,
    RegisteringClient,
    Schedule,
    Standing,
    dump_state,
    load_state,
    new_identity,
    new_state,
)
from waku_bridge.client.registration.registering import MAX_REQUEST_IDS, needs_new_token
from waku_bridge.client.tests.model import SECOND, ModelServer, World, retimed
from waku_bridge.codec import topics
from waku_bridge.codec.crypto.access_tokens import find_access_token
from waku_bridge.codec.envelope import Identity, decode
from waku_bridge.codec.keys import author_hash
from waku_bridge.codec.tests.examples import CLIENT, NOW_NS, OUTSIDER, SENDER, SERVER, UUID, repeatable, sent_payload
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    MessageType,
    PushResponse,
    Registration,
    RegistrationError,
    RegistrationResponse,
)

ADDRESS = Address(TokenType.APN, apn_token("device-token-1"), "im.status.ethereum")
FRIENDS = Preferences(contacts_only=True, contacts=(SENDER.pub33, OUTSIDER.pub33))
SHORT = Schedule(base_seconds=1.0, max_attempts=3)
SIX_HOURS = 6 * 3600


@pytest.fixture
def server() -> ModelServer:
    return ModelServer(SERVER)


@pytest.fixture
def second() -> ModelServer:
    return ModelServer(OUTSIDER)


@pytest.fixture
def client() -> RegisteringClient:
    return _client(SERVER)


@pytest.mark.requirement("R1", "R2", "R11")
def test_a_registration_carries_a_grant_for_each_server_and_the_same_about_the_device() -> None:
    client = _client(SERVER, OUTSIDER)
    client.change(ADDRESS)
    first, second = client.tick(NOW_NS).messages
    to_server, to_outsider = _opened(first, SERVER), _opened(second, OUTSIDER)
    assert to_server.grant_verified
    assert to_outsider.grant_verified
    assert replace(to_server.registration, grant=b"") == replace(to_outsider.registration, grant=b"")


@pytest.mark.requirement("R3")
def test_a_registration_goes_to_the_personal_topic_of_its_server(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    (message,) = client.tick(NOW_NS).messages
    assert message.content_topic == topics.content_topic(topics.personal_name(SERVER.pub33))


@pytest.mark.requirement("R7")
def test_the_client_reads_the_topic_of_its_answers(client: RegisteringClient) -> None:
    topic = topics.content_topic(topics.partitioned_name(CLIENT.pub33))
    assert client.subscriptions() == {topic: (CLIENT,)}


@pytest.mark.requirement("R16")
def test_every_change_is_a_higher_version(client: RegisteringClient) -> None:
    versions = []
    for step in (lambda: client.change(ADDRESS), lambda: client.change(ADDRESS), client.unregister):
        step()
        versions.append(_shown(client).version)
    assert all(earlier < later for earlier, later in pairwise(versions))


@pytest.mark.requirement("R15")
def test_versions_go_on_from_where_an_earlier_run_stopped() -> None:
    client = _client(SERVER, version=41)
    client.change(ADDRESS)
    assert _shown(client).version == 42


@pytest.mark.requirement("R10")
def test_a_repetition_has_the_same_bytes_in_another_envelope(client: RegisteringClient) -> None:
    client.change(ADDRESS, FRIENDS)
    (first,) = client.tick(NOW_NS).messages
    (second,) = client.tick(client.deadline_ns).messages
    assert _opened(first).content == _opened(second).content
    assert first.payload != second.payload


@pytest.mark.requirement("R10")
def test_attempts_without_an_answer_follow_an_exponential_backoff_and_end(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    world = World(ModelServer(SERVER))
    world.mute = {SERVER.pub33}
    begin_ns, times = world.now_ns, []
    world.run(client)
    while (due_ns := client.deadline_ns) is not None:
        times.append((due_ns - begin_ns) / SECOND)
        world.now_ns = due_ns
        world.run(client)
    assert times == [30, 150, 510, 1470, 3870, 9630, 23070, 53790, 122910, 276510, 614430, 1351710]
    assert len(world.sent) == 12
    assert world.events == [GivenUp(SERVER.pub33, 1)]
    assert client.is_settled


def test_a_version_that_was_given_up_is_sent_again_on_request(client: RegisteringClient, server: ModelServer) -> None:
    world = _silent_world(client, server)
    world.wait(client, 2_000_000)
    world.mute.clear()
    client.retry()
    assert Accepted(SERVER.pub33, 1, is_registered=True) in world.run(client)


def test_contacts_alone_can_open_the_access_token(client: RegisteringClient) -> None:
    client.change(ADDRESS, FRIENDS)
    entries = _shown(client).allowed_key_list
    assert find_access_token(entries, SENDER.private_key, CLIENT.pub33) == client.access_token
    assert find_access_token(entries, SERVER.private_key, CLIENT.pub33) is None


def test_a_registration_open_to_all_names_no_contact(client: RegisteringClient) -> None:
    client.change(ADDRESS, Preferences(contacts=(SENDER.pub33,)))
    shown = _shown(client)
    assert shown.allowed_key_list == ()
    assert not shown.allow_from_contacts_only


@pytest.mark.requirement("R6")
def test_the_server_reads_the_preferences_of_the_phone(client: RegisteringClient) -> None:
    wishes = Preferences(
        enabled=False,
        block_mentions=True,
        blocked_chats=(author_hash(OUTSIDER.pub33),),
        muted_chats=(b"m" * 64,),
        mention_chats=(b"a" * 64,),
    )
    client.change(ADDRESS, wishes)
    shown = _shown(client)
    assert (shown.token_type, shown.device_token, shown.app_topic) == (1, ADDRESS.device_token, "im.status.ethereum")
    assert (shown.enabled, shown.block_mentions) == (False, True)
    assert shown.blocked_chat_list == wishes.blocked_chats
    assert shown.muted_chat_list == wishes.muted_chats
    assert shown.allowed_mentions_chat_list == wishes.mention_chats


@pytest.mark.requirement("R14")
def test_a_new_device_token_keeps_the_preferences_and_the_access_token(client: RegisteringClient) -> None:
    client.change(ADDRESS, Preferences(block_mentions=True))
    token = client.access_token
    client.change(replace(ADDRESS, device_token=apn_token("device-token-2")))
    shown = _shown(client)
    assert (shown.device_token, shown.block_mentions, shown.access_token) == (apn_token("device-token-2"), True, token)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Preferences(), Preferences(block_mentions=True), False),
        (Preferences(), FRIENDS, True),
        (FRIENDS, Preferences(), True),
        (FRIENDS, replace(FRIENDS, contacts=FRIENDS.contacts[:1]), True),
        (FRIENDS, replace(FRIENDS, contacts=(*FRIENDS.contacts, CLIENT.pub33)), False),
        (FRIENDS, replace(FRIENDS, contacts_only=False), False),
        (FRIENDS, FRIENDS, False),
    ],
    ids=["other preferences", "closed", "open again, no contacts", "contact removed", "contact added", "open", "same"],
)
def test_the_access_token_changes_when_somebody_must_not_use_it_any_more(
    before: Preferences, after: Preferences, expected: bool
) -> None:
    assert needs_new_token(before, after) is expected
    client = _client(SERVER)
    client.change(ADDRESS, before)
    token = client.access_token
    client.change(ADDRESS, after)
    assert (client.access_token != token) is expected


@pytest.mark.requirement("R12")
def test_an_unregistration_has_no_token(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    client.unregister()
    shown = _shown(client)
    assert shown.unregister
    assert (shown.device_token, shown.access_token, shown.grant) == ("", "", b"")


def test_before_the_first_version_the_client_sends_nothing(client: RegisteringClient) -> None:
    assert client.tick(NOW_NS).messages == ()
    assert client.deadline_ns is None


@pytest.mark.requirement("R17", "A3", "A4", "A5", "A6")
def test_an_accepted_registration_is_advertised_at_once_with_a_grant_for_each_server(
    server: ModelServer, second: ModelServer
) -> None:
    client, world = _client(SERVER, OUTSIDER), World(server, second)
    client.change(ADDRESS)
    events = world.run(client)
    assert [type(event) for event in events] == [Accepted, Advertised, Accepted, Advertised]
    code = _contact_code(world.sent[-1])
    assert {info.server_public_key for info in code.info} == {SERVER.pub33, OUTSIDER.pub33}
    assert {info.access_token for info in code.info} == {client.access_token}
    assert {info.version for info in code.info} == {1}


@pytest.mark.requirement("A3")
def test_an_advertisement_for_contacts_has_the_token_only_sealed(
    client: RegisteringClient, server: ModelServer
) -> None:
    world = World(server)
    client.change(ADDRESS, FRIENDS)
    world.run(client)
    (info,) = _contact_code(world.sent[-1]).info
    assert info.access_token == ""
    assert find_access_token(info.allowed_key_list, SENDER.private_key, CLIENT.pub33) == client.access_token


@pytest.mark.requirement("A1")
def test_the_contact_code_is_repeated_every_six_hours(client: RegisteringClient, server: ModelServer) -> None:
    world = World(server)
    client.change(ADDRESS)
    world.run(client)
    events = world.wait(client, 2 * SIX_HOURS)
    assert events == [Advertised(1, (SERVER.pub33,))] * 2


@pytest.mark.parametrize("wishes", [Preferences(enabled=False)], ids=["pushes switched off"])
def test_a_device_with_pushes_switched_off_advertises_no_server(
    client: RegisteringClient, server: ModelServer, wishes: Preferences
) -> None:
    world = World(server)
    client.change(ADDRESS, wishes)
    assert [type(event) for event in world.run(client)] == [Accepted]
    assert client.advertisement() is None


@pytest.mark.requirement("R13")
def test_after_unregistering_nothing_is_advertised(client: RegisteringClient, server: ModelServer) -> None:
    world = World(server)
    client.change(ADDRESS)
    world.run(client)
    client.unregister()
    assert world.run(client) == [Accepted(SERVER.pub33, 2, is_registered=False)]
    assert client.deadline_ns is None


@pytest.mark.requirement("R17")
def test_a_server_is_not_advertised_until_it_has_accepted_the_new_version(
    server: ModelServer, second: ModelServer
) -> None:
    client, world = _client(SERVER, OUTSIDER), World(server, second)
    client.change(ADDRESS)
    world.run(client)
    world.mute = {OUTSIDER.pub33}
    client.change(replace(ADDRESS, device_token=apn_token("device-token-2")))
    world.run(client)
    (info,) = client.advertisement().info
    assert (info.server_public_key, info.version) == (SERVER.pub33, 2)
    assert world.events[-1] == Advertised(2, (SERVER.pub33,))


@pytest.mark.requirement("R13")
def test_the_client_unregisters_from_a_server_it_leaves_and_registers_with_the_new_one(
    client: RegisteringClient, server: ModelServer, second: ModelServer
) -> None:
    world = World(server, second)
    client.change(ADDRESS)
    world.run(client)
    client.use([OUTSIDER.pub33])
    events = world.run(client)
    assert Accepted(OUTSIDER.pub33, 1, is_registered=True) in events
    assert Accepted(SERVER.pub33, 2, is_registered=False) in events
    assert client.standing(SERVER.pub33) is None
    client.change(ADDRESS)
    assert client.version == 3


@pytest.mark.requirement("R8")
@pytest.mark.parametrize("error", [RegistrationError.MALFORMED_MESSAGE, RegistrationError.UNSUPPORTED_TOKEN_TYPE])
def test_a_registration_that_was_refused_finally_is_not_repeated(
    client: RegisteringClient, server: ModelServer, error: int
) -> None:
    world = World(server)
    server.registration_errors = [error]
    client.change(ADDRESS)
    assert world.run(client) == [Refused(SERVER.pub33, 1, error, is_final=True)]
    world.wait(client, 1_000_000)
    assert len(world.sent) == 1


@pytest.mark.requirement("R9")
@pytest.mark.parametrize("error", [RegistrationError.INTERNAL_ERROR, 77], ids=["known", "from the future"])
def test_after_an_internal_error_attempts_follow_an_exponential_backoff(
    client: RegisteringClient, server: ModelServer, error: int
) -> None:
    world = World(server)
    server.registration_errors = [error] * 2
    client.change(ADDRESS)
    assert world.run(client) == [Refused(SERVER.pub33, 1, error, is_final=False)]
    world.wait(client, 29)
    assert len(world.sent) == 1
    world.wait(client, 200)
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


def test_a_refusal_without_a_reason_is_a_refusal(client: RegisteringClient) -> None:
    world, request_id = _asked(client)
    response = RegistrationResponse(request_id, success=False)
    events = world.report(client, ModelServer(SERVER).seal(response, CLIENT.pub33, world.now_ns))
    assert events == [Refused(SERVER.pub33, 1, RegistrationError.INTERNAL_ERROR, is_final=False)]


@pytest.mark.requirement("R15")
def test_a_client_that_lost_its_state_raises_its_version_until_the_server_accepts_it(server: ModelServer) -> None:
    world = World(server)
    old = _client(SERVER, version=5)
    old.change(ADDRESS)
    world.run(old)
    client = _client(SERVER, schedule=SHORT)
    client.change(replace(ADDRESS, device_token=apn_token("device-token-2")))
    world.run(client)
    world.wait(client, 100)
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED
    assert server.registrations[CLIENT.key_hash, UUID].device_token == apn_token("device-token-2")


def test_a_version_is_not_raised_for_ever(server: ModelServer) -> None:
    server.registration_errors = [RegistrationError.VERSION_MISMATCH] * 99
    client, world = _client(SERVER, schedule=SHORT), World(server)
    client.change(ADDRESS)
    world.run(client)
    events = world.wait(client, 10_000)
    assert events[-1] == Refused(SERVER.pub33, 8, RegistrationError.VERSION_MISMATCH, is_final=True)
    assert len(world.sent) == 4


def test_a_success_counts_after_a_refusal_of_the_repetition(client: RegisteringClient) -> None:
    """A strict server refuses the repetition of a version that it has. Its first answer may come later."""
    world, request_id = _asked(client)
    (repeat,) = client.tick(client.deadline_ns).messages
    server = ModelServer(SERVER)
    mismatch = RegistrationResponse(_opened(repeat).request_id, success=False, error=RegistrationError.VERSION_MISMATCH)
    world.report(client, server.seal(mismatch, CLIENT.pub33, NOW_NS))
    world.report(client, server.seal(RegistrationResponse(request_id, success=True), CLIENT.pub33, NOW_NS))
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED
    world.wait(client, 1000)
    assert client.version == 1


def test_a_stored_state_restores_the_same_client(server: ModelServer) -> None:
    world = World(server)
    client = _client(SERVER)
    client.change(ADDRESS, FRIENDS)
    (message,) = client.tick(world.now_ns).messages
    revived = RegisteringClient(CLIENT, load_state(dump_state(client.state)), repeatable())
    assert revived.state == client.state
    (answer,) = server.receive(message, world.now_ns)
    assert Accepted(SERVER.pub33, 1, is_registered=True) in world.report(revived, answer)
    (again,) = _repeated(revived, world)
    assert _opened(again).content == _opened(message).content


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "servers": 3}', "null"])
def test_any_other_text_than_a_state_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_state(text)


def test_neither_token_is_in_the_repr_of_a_state(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    assert ADDRESS.device_token not in repr(client.state)
    assert client.access_token not in repr(client.state)


@pytest.mark.requirement("M1", "M2")
def test_in_anonymous_mode_no_message_shows_the_chat_key(server: ModelServer) -> None:
    """All messages of the phone are opened as far as anybody could, and the chat key is in none of them."""
    anonymous = new_identity(repeatable())
    client = RegisteringClient(anonymous, new_state(SERVER.pub33, random_bytes=repeatable()), repeatable())
    world = World(server)
    client.change(ADDRESS, replace(FRIENDS, contacts=(SENDER.pub33,)))
    world.run(client)
    registration, code = world.sent
    opened = decode(registration.payload, [SERVER], SERVER)
    texts = [repr(opened), repr(_contact_code(code, anonymous)), registration.content_topic, code.content_topic]
    traces = (CLIENT.pub33.hex(), CLIENT.key_hash.hex(), repr(CLIENT.pub33)[2:-1], repr(CLIENT.key_hash)[2:-1])
    assert [trace for trace in traces for text in texts if trace in text] == []
    assert opened.author == anonymous.pub33
    (info,) = _contact_code(code, anonymous).info
    assert find_access_token(info.allowed_key_list, SENDER.private_key, anonymous.pub33) == client.access_token


def test_the_client_unregisters_also_from_a_server_with_a_newer_version(
    client: RegisteringClient, server: ModelServer, second: ModelServer
) -> None:
    world = World(server, second)
    client.change(ADDRESS)
    world.run(client)
    known = server.registrations[CLIENT.key_hash, UUID]
    server.registrations[CLIENT.key_hash, UUID] = replace(known, version=9)
    client.use([OUTSIDER.pub33])
    world.run(client)
    world.wait(client, 10_000)
    assert server.registrations[CLIENT.key_hash, UUID].unregister
    assert client.standing(SERVER.pub33) is None
    assert client.standing(OUTSIDER.pub33).standing is Standing.ACCEPTED


def test_a_client_that_retries_for_days_keeps_the_last_request_ids_only(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    for _ in range(MAX_REQUEST_IDS + 5):
        client.retry()
        (message,) = client.tick(NOW_NS).messages
    request_ids = client.standing(SERVER.pub33).request_ids
    assert len(request_ids) == MAX_REQUEST_IDS
    assert request_ids[-1] == _opened(message).request_id


# Bad input


@pytest.mark.parametrize(
    ("signer", "answer", "reason"),
    [
        (OUTSIDER, lambda asked: RegistrationResponse(asked, success=True), Reason.WRONG_SIGNER),
        (SERVER, lambda _: RegistrationResponse(b"\x0f" * 64, success=True), Reason.UNKNOWN_REQUEST),
        (SERVER, lambda _: PushResponse(b"\x0a" * 32), Reason.UNEXPECTED_TYPE),
    ],
    ids=["forged signer", "unknown request id", "another kind"],
)
def test_a_message_that_answers_no_request_is_ignored(client: RegisteringClient, signer, answer, reason) -> None:
    world, request_id = _asked(client)
    (ignored,) = world.report(client, ModelServer(signer).seal(answer(request_id), CLIENT.pub33, world.now_ns))
    assert (ignored.reason, ignored.author) == (reason, signer.pub33)
    assert client.standing(SERVER.pub33).standing is Standing.PENDING


def test_one_server_cannot_answer_for_another() -> None:
    client, world = _client(SERVER, OUTSIDER), World()
    client.change(ADDRESS)
    first, _ = client.tick(world.now_ns).messages
    response = RegistrationResponse(_opened(first).request_id, success=True)
    (ignored,) = world.report(client, ModelServer(OUTSIDER).seal(response, CLIENT.pub33, world.now_ns))
    assert ignored.reason is Reason.WRONG_SIGNER
    assert client.standing(OUTSIDER.pub33).standing is Standing.PENDING


def test_an_answer_to_an_older_version_is_ignored(client: RegisteringClient) -> None:
    world, request_id = _asked(client)
    client.change(ADDRESS)
    answer = ModelServer(SERVER).seal(RegistrationResponse(request_id, success=True), CLIENT.pub33, world.now_ns)
    (ignored,) = world.report(client, answer)
    assert ignored.reason is Reason.UNKNOWN_REQUEST
    assert client.standing(SERVER.pub33).standing is Standing.PENDING


def test_a_replayed_answer_is_ignored(client: RegisteringClient) -> None:
    world, request_id = _asked(client)
    server = ModelServer(SERVER)
    answer = server.seal(RegistrationResponse(request_id, success=True), CLIENT.pub33, world.now_ns)
    same_words = server.seal(RegistrationResponse(request_id, success=True), CLIENT.pub33, world.now_ns)
    world.report(client, answer)
    reasons = [
        event.reason
        for replay in (answer, retimed(answer, world.now_ns + 1), same_words)
        for event in world.report(client, replay)
    ]
    assert reasons == [Reason.DUPLICATE] * 3


def test_a_refusal_after_the_success_changes_nothing(client: RegisteringClient) -> None:
    world, request_id = _asked(client)
    server = ModelServer(SERVER)
    for response in (RegistrationResponse(request_id, success=True), RegistrationResponse(request_id, success=False)):
        events = world.report(client, server.seal(response, CLIENT.pub33, world.now_ns))
    assert [event.reason for event in events] == [Reason.ALREADY_SETTLED]
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


def test_garbage_on_the_clients_topics_is_ignored_with_a_reason(client: RegisteringClient) -> None:
    world, request_id = _asked(client)
    server = ModelServer(SERVER)
    good = server.seal(RegistrationResponse(request_id, success=True), CLIENT.pub33, world.now_ns)
    for_another = server.seal(RegistrationResponse(request_id, success=True), SENDER.pub33, world.now_ns)
    malformed = sent_payload(b"\xff" * 40, MessageType.REGISTRATION_RESPONSE, signer=SERVER, recipient=CLIENT.pub33)
    bad = {
        Reason.NOT_FOR_US: [
            replace(good, payload=b""),
            replace(good, payload=bytes(500)),
            replace(good, payload=good.payload[:-1]),
            replace(for_another, content_topic=good.content_topic),
        ],
        Reason.UNREADABLE: [replace(good, payload=bytes(2_000_000)), replace(good, payload=malformed)],
        Reason.UNSUPPORTED_VERSION: [replace(good, version=0)],
        Reason.FOREIGN_TOPIC: [replace(good, content_topic="/waku/1/0x00000000/rfc26"), for_another],
    }
    for reason, messages in bad.items():
        for message in messages:
            (ignored,) = world.report(client, message)
            assert isinstance(ignored, Ignored)
            assert ignored.reason is reason
    assert isinstance(world.report(client, good)[0], Accepted)


def _client(*servers: Identity, version: int = 0, **options: object) -> RegisteringClient:
    keys = (server.pub33 for server in servers)
    state = new_state(*keys, random_bytes=repeatable(), installation_id=UUID, version=version)
    return RegisteringClient(CLIENT, state, repeatable(), **options)


def _shown(client: RegisteringClient):
    (message,) = client.tick(NOW_NS).messages
    return _opened(message).registration


def _opened(message, server: Identity = SERVER) -> Registration:
    return decode(message.payload, [server], server).body


def _contact_code(message, client: Identity = CLIENT) -> ContactCodeAdvertisement:
    name = topics.contact_code_name(client.pub33)
    assert message.content_topic == topics.content_topic(name)
    decoded = decode(message.payload, [topics.symmetric_key(name)], client)
    assert decoded.author == client.pub33
    return decoded.body


def _asked(client: RegisteringClient) -> tuple[World, bytes]:
    """Return a client that waits for the answer to its first version."""
    world = World(now_ns=NOW_NS)
    client.change(ADDRESS)
    (message,) = client.tick(NOW_NS).messages
    return world, _opened(message).request_id


def _silent_world(client: RegisteringClient, server: ModelServer) -> World:
    client.change(ADDRESS)
    world = World(server)
    world.mute = {server.key}
    return world


def _repeated(client: RegisteringClient, world: World):
    client.repeat()
    return client.tick(world.now_ns).messages
