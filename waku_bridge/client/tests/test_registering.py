"""The registering client: its registrations, their repetitions, the answers that it accepts, and its file."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from registrations.messages import TokenType
from tests.rig.rows import apn_token
from waku_bridge.client.access_tokens import find_access_token
from waku_bridge.client.core import Schedule, new_identity
from waku_bridge.client.events import Accepted, Advertised, GivenUp, Ignored, Reason, Refused
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.state import (
    Address,
    KeepingError,
    Kept,
    Preferences,
    Standing,
    new_state,
    read,
    write,
)
from waku_bridge.client.tests.model import BACKOFF, SECOND, ModelServer, World, sealed
from waku_bridge.codec import wire
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
    WakuMessage,
)

ADDRESS = Address(TokenType.APN, apn_token("device-token-1"), "im.status.ethereum")
ANOTHER = replace(ADDRESS, device_token=apn_token("device-token-2"))
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


@pytest.mark.requirement("R1", "R2", "R3", "R11")
def test_a_registration_carries_a_grant_for_each_server_and_the_same_about_the_device() -> None:
    client = _client(SERVER, OUTSIDER)
    client.change(ADDRESS)
    first, second = client.tick(NOW_NS).messages
    to_server, to_outsider = _opened(first, SERVER), _opened(second, OUTSIDER)
    assert to_server.grant_verified
    assert to_outsider.grant_verified
    assert replace(to_server.registration, grant=b"") == replace(to_outsider.registration, grant=b"")
    assert first.content_topic == wire.content_topic(wire.personal_name(SERVER.pub33))


@pytest.mark.requirement("R12", "R15", "R16")
def test_every_change_is_a_higher_version_than_all_that_were_used_before() -> None:
    client = _client(SERVER, version=41)
    assert (client.tick(NOW_NS).messages, client.deadline_ns) == ([], None)
    shown = []
    for step in (lambda: client.change(ADDRESS), lambda: client.change(ADDRESS), client.unregister):
        step()
        (message,) = client.tick(NOW_NS).messages
        shown.append(_opened(message).registration)
    assert [(each.version, each.unregister) for each in shown] == [(42, False), (43, False), (44, True)]
    assert (shown[-1].device_token, shown[-1].access_token, shown[-1].grant) == ("", "", b"")


@pytest.mark.requirement("R10")
def test_attempts_without_an_answer_follow_an_exponential_backoff_and_end(client, server) -> None:
    client.change(ADDRESS)
    world = World(server)
    world.mute = {SERVER.pub33}
    times = [world.now_ns]
    world.run(client)
    while (due_ns := client.deadline_ns) is not None:
        times.append(due_ns)
        world.now_ns = due_ns
        world.run(client)
    waits = [(later - earlier) / SECOND for earlier, later in pairwise(times)]
    status_go = BACKOFF["registration_seconds_after_attempt"]
    assert {str(n): wait for n, wait in enumerate(waits, start=1) if str(n) in status_go} == status_go
    assert (len(waits), len(world.sent), world.events) == (12, 12, [GivenUp(SERVER.pub33, 1)])
    assert client.standing(SERVER.pub33).standing is Standing.GIVEN_UP
    world.mute.clear()
    client.retry()
    assert Accepted(SERVER.pub33, 1, is_registered=True) in world.run(client)


@pytest.mark.requirement("R6", "R14")
def test_the_server_reads_the_preferences_of_the_phone_which_a_new_device_token_does_not_change(client, server) -> None:
    wishes = Preferences(
        enabled=False,
        contacts=(SENDER.pub33,),
        block_mentions=True,
        blocked_chats=(author_hash(OUTSIDER.pub33),),
        muted_chats=(b"m" * 64,),
        mention_chats=(b"a" * 64,),
    )
    client.change(ADDRESS, wishes)
    assert World(server).run(client) == [Accepted(SERVER.pub33, 1, is_registered=True)]
    assert client.advertisement() is None  # no server, as pushes are off
    shown = server.registrations[CLIENT.key_hash, UUID]
    assert (shown.token_type, shown.device_token, shown.app_topic) == (1, ADDRESS.device_token, "im.status.ethereum")
    assert (shown.enabled, shown.block_mentions, shown.allow_from_contacts_only) == (False, True, False)
    assert (shown.blocked_chat_list, shown.allowed_key_list) == (wishes.blocked_chats, ())
    assert (shown.muted_chat_list, shown.allowed_mentions_chat_list) == (wishes.muted_chats, wishes.mention_chats)
    client.change(ANOTHER)
    World(server).run(client)
    later = replace(shown, version=2, device_token=ANOTHER.device_token)
    assert server.registrations[CLIENT.key_hash, UUID] == later


@pytest.mark.requirement("A3")
def test_contacts_alone_can_open_the_access_token(client: RegisteringClient, server: ModelServer) -> None:
    world = World(server)
    client.change(ADDRESS, FRIENDS)
    world.run(client)
    (info,) = _contact_code(world.sent[-1]).info
    assert info.access_token == ""
    for entries in (info.allowed_key_list, server.registrations[CLIENT.key_hash, UUID].allowed_key_list):
        assert find_access_token(entries, SENDER.private_key, CLIENT.pub33) == client.access_token
        assert find_access_token(entries, SERVER.private_key, CLIENT.pub33) is None


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
def test_the_access_token_changes_when_somebody_must_not_use_it_any_more(client, before, after, expected) -> None:
    client.change(ADDRESS, before)
    token = client.access_token
    client.change(ADDRESS, after)
    assert (client.access_token != token) is expected


@pytest.mark.requirement("R13", "R17", "A1", "A3", "A4", "A5", "A6")
def test_a_registration_is_advertised_at_once_with_each_server_that_has_accepted_it_and_every_six_hours(
    server, second
) -> None:
    client, world = _client(SERVER, OUTSIDER), World(server, second)
    client.change(ADDRESS)
    events = world.run(client)
    assert [type(event) for event in events] == [Accepted, Advertised, Accepted, Advertised]
    code = _contact_code(world.sent[-1])
    assert {info.server_public_key for info in code.info} == {SERVER.pub33, OUTSIDER.pub33}
    assert {(info.access_token, info.version) for info in code.info} == {(client.access_token, 1)}
    assert world.wait(client, 2 * SIX_HOURS) == [Advertised(1, (SERVER.pub33, OUTSIDER.pub33))] * 2
    world.mute = {OUTSIDER.pub33}
    client.change(ANOTHER)
    assert world.run(client)[-1] == Advertised(2, (SERVER.pub33,))
    (info,) = client.advertisement().info
    assert (info.server_public_key, info.version) == (SERVER.pub33, 2)
    world.mute.clear()
    client.unregister()
    assert world.run(client) == [Accepted(key, 3, is_registered=False) for key in (SERVER.pub33, OUTSIDER.pub33)]
    assert (client.advertisement(), client.deadline_ns) == (None, None)


@pytest.mark.requirement("R13")
@pytest.mark.parametrize("stored", [1, 9], ids=["the version of the client", "a newer version"])
def test_the_client_unregisters_from_a_server_it_leaves_and_registers_with_the_new_one(
    client, server, second, stored
) -> None:
    world = World(server, second)
    client.change(ADDRESS)
    world.run(client)
    known = server.registrations[CLIENT.key_hash, UUID]
    server.registrations[CLIENT.key_hash, UUID] = replace(known, version=stored)
    client.use([OUTSIDER.pub33])
    world.run(client)
    world.wait(client, 10_000)
    assert server.registrations[CLIENT.key_hash, UUID].unregister
    assert client.standing(SERVER.pub33) is None
    assert client.standing(OUTSIDER.pub33).standing is Standing.ACCEPTED
    assert {info.server_public_key for info in client.advertisement().info} == {OUTSIDER.pub33}


@pytest.mark.requirement("R8", "R9")
@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (RegistrationError.MALFORMED_MESSAGE, True),
        (RegistrationError.UNSUPPORTED_TOKEN_TYPE, True),
        (RegistrationError.INTERNAL_ERROR, False),
        (77, False),
    ],
)
def test_a_refused_registration_is_repeated_with_a_backoff_unless_that_cannot_help(
    client, server, error, is_final
) -> None:
    world = World(server)
    server.registration_errors = [error] * 2
    client.change(ADDRESS)
    assert world.run(client) == [Refused(SERVER.pub33, 1, error, is_final)]
    world.wait(client, 29)
    assert len(world.sent) == 1
    world.wait(client, 200)
    assert (client.standing(SERVER.pub33).standing is Standing.ACCEPTED) is not is_final
    assert (len(world.sent) == 1) is is_final


@pytest.mark.requirement("R15")
@pytest.mark.parametrize(
    ("refusals", "versions", "standing"),
    [(2, [1, 2, 4], Standing.ACCEPTED), (99, [1, 2, 4, 8], Standing.REFUSED)],
)
def test_a_version_below_that_of_the_server_is_raised_a_few_times(server, refusals, versions, standing) -> None:
    """The client lost its state, or an answer to it got lost."""
    server.registration_errors = [RegistrationError.VERSION_MISMATCH] * refusals
    client, world = _client(SERVER, schedule=SHORT), World(server)
    client.change(ADDRESS)
    world.run(client)
    world.wait(client, 10_000)
    assert [message.body.registration.version for message in server.received] == versions
    assert client.standing(SERVER.pub33).standing is standing


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


@pytest.mark.requirement("R10", "R15")
def test_a_file_restores_the_same_client_which_repeats_the_same_bytes_in_another_envelope(
    client, server, tmp_path
) -> None:
    """Its owner alone can read the file."""
    world, path = World(server), tmp_path / "clients" / "me.json"
    client.change(ADDRESS, FRIENDS)
    write(path, Kept(CLIENT, client.state))
    (message,) = client.tick(world.now_ns).messages
    write(path, Kept(CLIENT, client.state))
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert [file.name for file in path.parent.iterdir()] == ["me.json"]
    kept = read(path)
    assert (kept.identity.pub33, kept.state) == (CLIENT.pub33, client.state)
    revived = RegisteringClient(kept.identity, kept.state, repeatable())
    (again,) = revived.tick(revived.deadline_ns).messages
    assert _opened(again).content == _opened(message).content
    assert again.payload != message.payload
    (answer,) = server.receive(message, world.now_ns)
    assert Accepted(SERVER.pub33, 1, is_registered=True) in world.report(revived, answer)


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


# Bad input

NO_PROTOBUF = sent_payload(b"\xff" * 40, MessageType.REGISTRATION_RESPONSE, signer=SERVER, recipient=CLIENT.pub33)
Spoil = Callable[[WakuMessage, bytes], WakuMessage]
SPOILED: dict[str, tuple[Reason, Spoil]] = {
    "another server": (Reason.WRONG_SIGNER, lambda _, asked: _answer(asked, signer=OUTSIDER)),
    "unknown request": (Reason.UNKNOWN_REQUEST, lambda *_: _answer(b"\x0f" * 64)),
    "another kind": (Reason.UNEXPECTED_TYPE, lambda *_: sealed(PushResponse(b"\x0a" * 32), CLIENT.pub33)),
    "no payload": (Reason.NOT_FOR_US, lambda good, _: replace(good, payload=b"")),
    "cut off": (Reason.NOT_FOR_US, lambda good, _: replace(good, payload=good.payload[:-1])),
    "for somebody else": (
        Reason.NOT_FOR_US,
        lambda good, asked: replace(good, payload=_answer(asked, recipient=SENDER).payload),
    ),
    "too large": (Reason.UNREADABLE, lambda good, _: replace(good, payload=bytes(2_000_000))),
    "no protobuf": (Reason.UNREADABLE, lambda good, _: replace(good, payload=NO_PROTOBUF)),
    "version 0": (Reason.UNSUPPORTED_VERSION, lambda good, _: replace(good, version=0)),
    "another topic": (Reason.FOREIGN_TOPIC, lambda _, asked: _answer(asked, recipient=SENDER)),
}


@pytest.mark.parametrize(("reason", "spoil"), SPOILED.values(), ids=SPOILED)
def test_a_bad_message_is_ignored_with_a_reason_and_the_good_one_counts(reason: Reason, spoil: Spoil) -> None:
    client = _client(SERVER, OUTSIDER)
    world, request_id = _asked(client)
    good = _answer(request_id)
    (ignored,) = world.report(client, spoil(good, request_id))
    assert isinstance(ignored, Ignored)
    assert ignored.reason is reason
    assert {client.standing(server.pub33).standing for server in (SERVER, OUTSIDER)} == {Standing.PENDING}
    assert isinstance(world.report(client, good)[0], Accepted)


def test_an_answer_counts_once_and_for_its_version_alone(client: RegisteringClient) -> None:
    world, old_id = _asked(client)
    client.change(ADDRESS)
    (message,) = client.tick(NOW_NS).messages
    asked = _opened(message).request_id
    answer, same_words, refusal = _answer(asked), _answer(asked), _answer(asked, success=False)
    assert [type(event) for event in world.report(client, answer)] == [Accepted, Advertised]
    late = (_answer(old_id), answer, replace(answer, timestamp_ns=world.now_ns + 1), same_words, refusal)
    reasons = [event.reason for message in late for event in world.report(client, message)]
    assert reasons == [Reason.UNKNOWN_REQUEST, *[Reason.DUPLICATE] * 3, Reason.ALREADY_SETTLED]
    assert client.standing(SERVER.pub33).standing is Standing.ACCEPTED


def test_a_refusal_without_a_reason_is_a_refusal(client: RegisteringClient) -> None:
    world, request_id = _asked(client)
    events = world.report(client, _answer(request_id, success=False))
    assert events == [Refused(SERVER.pub33, 1, RegistrationError.INTERNAL_ERROR, is_final=False)]


# The file of a client


WRONG = [{"format": 1}, {"servers": 3}, {"current": 3}, {"other": 1}, {"private_key": "ab"}, {"private_key": "a" * 32}]


@pytest.mark.parametrize("wrong", ["", "null", "[]", "{}", "not json", *WRONG], ids=str)
def test_another_file_is_refused_without_quoting_it(client, tmp_path: Path, wrong: str | dict) -> None:
    path = tmp_path / "me.json"
    write(path, Kept(CLIENT, client.state))
    path.write_text(wrong if isinstance(wrong, str) else json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(KeepingError, match=r"me\.json does not hold a client$"):
        read(path)


def test_the_repr_of_a_client_has_neither_key_nor_token(client: RegisteringClient) -> None:
    client.change(ADDRESS)
    shown = repr(Kept(client.identity, client.state)) + repr(client.state)
    secrets = (ADDRESS.device_token, client.access_token, client.identity.private_key.secret.hex())
    assert [secret for secret in secrets if secret in shown] == []


def _client(*servers: Identity, version: int = 0, **options: object) -> RegisteringClient:
    keys = (server.pub33 for server in servers)
    state = new_state(*keys, random_bytes=repeatable(), installation_id=UUID, version=version)
    return RegisteringClient(CLIENT, state, repeatable(), **options)


def _opened(message: WakuMessage, server: Identity = SERVER) -> Registration:
    return decode(message.payload, [server], server).body


def _contact_code(message: WakuMessage, client: Identity = CLIENT) -> ContactCodeAdvertisement:
    name = wire.contact_code_name(client.pub33)
    assert message.content_topic == wire.content_topic(name)
    decoded = decode(message.payload, [wire.symmetric_key(name)], client)
    assert decoded.author == client.pub33
    return decoded.body


def _asked(client: RegisteringClient) -> tuple[World, bytes]:
    """Have a client wait for the answer to its first version. Return the world, and the id of its first request."""
    client.change(ADDRESS)
    message, *_ = client.tick(NOW_NS).messages
    return World(now_ns=NOW_NS), _opened(message).request_id


def _answer(
    request_id: bytes, *, success: bool = True, signer: Identity = SERVER, recipient: Identity = CLIENT
) -> WakuMessage:
    return sealed(RegistrationResponse(request_id, success=success), recipient.pub33, signer)
