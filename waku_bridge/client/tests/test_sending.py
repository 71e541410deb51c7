"""The sending client: its queries and requests, their order, and the answers that it accepts."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

import pytest

from notifications.messages import NotificationType, PushNotification, PushRequest, Report, ReportError
from registrations.messages import QueryInfo
from waku_bridge.client.access_tokens import seal_access_token
from waku_bridge.client.events import Destination, Event, Ignored, Learned, LookedUp, Outcome, Reason
from waku_bridge.client.sending import LISTEN_SECONDS, MAX_INFOS, SendingClient
from waku_bridge.client.tests.model import (
    BACKOFF,
    MESSAGE_ID,
    RANDOM,
    SECOND,
    SECOND_SERVER,
    TABLET,
    ModelServer,
    World,
    sealed,
    topic_key,
)
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import decode, encode
from waku_bridge.codec.keys import (
    Identity,
    author_hash,
    chat_hash,
    parse_frame,
    sign_grant,
    unseal_on_topic,
    unseal_to_key,
)
from waku_bridge.codec.tests.examples import (
    ACCESS_TOKEN,
    CLIENT,
    INFO,
    NOW_NS,
    OUTSIDER,
    SENDER,
    SERVER,
    UUID,
    repeatable,
)
from waku_bridge.codec.wire import PlainBody
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    Decoded,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationResponse,
    WakuMessage,
)

OTHER_ID = b"\x0b" * 32
PHONES = [f"{number}0000000-0000-4000-8000-000000000000" for number in range(1, 6)]
NEW_TOKEN = "c0ffee00-0000-4000-8000-000000000002"
CODE_NAME = wire.contact_code_name(CLIENT.pub33)


@pytest.fixture
def server() -> ModelServer:
    server = ModelServer(SERVER)
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    return server


@pytest.fixture
def second() -> ModelServer:
    """A server with a newer registration than ``server``, so that it is asked first."""
    server = ModelServer(SECOND_SERVER)
    server.enrol(CLIENT, UUID, NEW_TOKEN, version=2)
    return server


@pytest.fixture
def sender() -> SendingClient:
    return _sender()


# Messages


@pytest.mark.requirement("Q3", "Q4", "N8")
def test_queries_and_requests_show_keys_that_are_used_once(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    sender.notify(CLIENT.pub33, sender.one_to_one(), OTHER_ID)
    _look_up(world, sender)
    query, request = world.sent[:2]
    key = topic_key(wire.query_name(CLIENT.key_hash))
    _data, query_signer = parse_frame(unseal_on_topic(query.payload, key))
    _data, request_signer = parse_frame(unseal_to_key(request.payload, SERVER.private_key))
    assert decode(query.payload, [key], SERVER).body == Query((CLIENT.key_hash,))
    authors = [message.author for message in server.received]
    assert authors[:2] == [query_signer.format(), request_signer.format()]
    assert len({*authors, SENDER.pub33}) == 5


@pytest.mark.requirement("Q5")
@pytest.mark.parametrize("chat", [b"", chat_hash("town-square")], ids=["one-to-one", "mention"])
def test_a_request_to_the_topic_of_its_server_carries_the_content_of_the_sender(sender, server, chat) -> None:
    me = author_hash(SENDER.pub33)
    world = _notified(sender, server, content=sender.mention(chat, b"sealed") if chat else sender.one_to_one(b"sealed"))
    assert world.sent[-1].content_topic == wire.content_topic(wire.partitioned_name(SERVER.pub33))
    (asked,) = server.received[-1].body.notifications
    assert (asked.public_key_hash, asked.installation_id, asked.access_token) == (CLIENT.key_hash, UUID, ACCESS_TOKEN)
    kind = NotificationType.MENTION if chat else NotificationType.MESSAGE
    assert (asked.type, asked.chat_id, asked.author, asked.message) == (kind, chat or me, me, b"sealed")
    assert server.received[-1].body.message_id == MESSAGE_ID


# Finding out


def _info(
    *, version: int = 1, token: str = ACCESS_TOKEN, signer: Identity = CLIENT, to: Identity = SERVER
) -> QueryInfo:
    grant = sign_grant(signer.private_key, to.pub33, token)
    return replace(INFO, version=version, access_token=token, grant=grant)


def _for_contacts(*contacts: Identity) -> QueryInfo:
    entries = [seal_access_token(ACCESS_TOKEN, CLIENT.private_key, contact.pub33, RANDOM) for contact in contacts]
    return replace(INFO, access_token="", allowed_key_list=tuple(entries))


ENTRIES: dict[str, tuple[QueryInfo, Reason | None]] = {
    "open to all": (INFO, None),
    "sealed for this sender": (_for_contacts(OUTSIDER, SENDER), None),
    "sealed for others": (_for_contacts(OUTSIDER), Reason.NO_TOKEN),
    "no grant": (replace(INFO, grant=b""), Reason.BAD_GRANT),
    "random bytes for a grant": (replace(INFO, grant=b"\x01" * 65), Reason.BAD_GRANT),
    "a grant of somebody else": (_info(signer=OUTSIDER), Reason.BAD_GRANT),
    "a grant for another server": (_info(to=OUTSIDER), Reason.BAD_GRANT),
    "a grant for another token": (replace(INFO, access_token=UUID), Reason.BAD_GRANT),
    "a token that is no UUID": (_info(token="no"), Reason.BAD_TOKEN),
    "no token": (replace(INFO, access_token=""), Reason.NO_TOKEN),
    "random bytes for sealed tokens": (
        replace(INFO, access_token="", allowed_key_list=(b"", b"short", bytes(64))),
        Reason.NO_TOKEN,
    ),
    "another client": (replace(INFO, public_key_hash=OUTSIDER.key_hash), Reason.FOREIGN_CLIENT),
    "an installation id that is no UUID": (replace(INFO, installation_id="no uuid"), Reason.BAD_INSTALLATION),
}


@pytest.mark.requirement("Q5", "Q6", "Q7")
@pytest.mark.parametrize("is_advertised", [False, True], ids=["answer", "contact code"])
@pytest.mark.parametrize(("info", "reason"), ENTRIES.values(), ids=ENTRIES)
def test_an_entry_with_a_valid_grant_and_a_token_for_this_sender_is_learned_and_no_other(
    sender, info, reason, is_advertised
) -> None:
    if is_advertised:
        events = _advertised(sender, World(), info)
    else:
        world, question = _asked(sender)
        events = world.report(sender, _answer(question, info))
    found = Destination(CLIENT.pub33, SERVER.pub33, CLIENT.key_hash, UUID, ACCESS_TOKEN, 1)
    if reason:
        assert _reasons(events) == [reason]
        assert sender.destinations(CLIENT.pub33) == ()
    else:
        assert events[0] == Learned(found, is_advertised)
        assert sender.destinations(CLIENT.pub33) == (found,)
        assert ACCESS_TOKEN not in repr(events)


def test_bad_entries_do_not_hide_a_good_one_and_only_the_first_of_an_endless_answer_are_read(sender) -> None:
    world, question = _asked(sender)
    bad = replace(INFO, grant=b"")
    events = world.report(sender, _answer(question, bad, INFO, *[bad] * (MAX_INFOS + 50)))
    assert isinstance(events.pop(1), Learned)
    assert _reasons(events[:MAX_INFOS]) == [Reason.BAD_GRANT] * (MAX_INFOS - 1) + [Reason.TOO_MANY]


@pytest.mark.parametrize(
    ("infos", "seconds", "count"), [((), 3.0, 1), ((INFO,), 0.3, 1), (None, 3.0, 0)], ids=["empty", "useful", "none"]
)
def test_a_query_ends_after_three_seconds_or_a_moment_after_a_useful_answer(infos, seconds, count) -> None:
    sender = _sender(gather_seconds=0.3)
    world, question = _asked(sender)
    if infos is not None:
        world.report(sender, _answer(question, *infos))
    assert world.wait(sender, seconds - 0.01) == []
    assert sender.is_looking_up(CLIENT.pub33)
    assert world.wait(sender, 0.01) == [LookedUp(CLIENT.pub33, count)]


# Contact codes


NO_KEYS = [b"", b"\x02" + b"\xff" * 32, SERVER.pub65, SERVER.pub33 + b"\x00"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"author": OUTSIDER}, Reason.WRONG_SIGNER), *(({"server_key": key}, Reason.BAD_SERVER_KEY) for key in NO_KEYS)],
)
def test_a_contact_code_of_somebody_else_or_without_a_compressed_server_key_is_ignored(sender, wrong, reason) -> None:
    """Everybody who has the client's key can write to its topic."""
    assert _reasons(_advertised(sender, World(), INFO, **wrong)) == [reason]
    assert sender.destinations(CLIENT.pub33) == ()


@pytest.mark.requirement("A8")
def test_an_old_contact_code_does_not_bring_an_old_token_back(sender: SendingClient) -> None:
    world = World()
    _advertised(sender, world, _info(version=2, token=NEW_TOKEN))
    assert _reasons(_advertised(sender, world, INFO)) == [Reason.STALE_VERSION]
    assert [place.access_token for place in sender.destinations(CLIENT.pub33)] == [NEW_TOKEN]


@pytest.mark.requirement("A7", "Q1")
@pytest.mark.parametrize(
    ("ages", "wanted", "bodies"),
    [
        ([0], None, [PushRequest]),
        ([0], [UUID, TABLET], [Query, PushRequest]),
        ([86_400], None, [Query, PushRequest]),
        ([86_400, 80_000], None, [PushRequest]),
    ],
    ids=["new", "without a wanted installation", "of yesterday", "repeated"],
)
def test_a_contact_code_of_a_day_spares_the_query(sender, server, ages, wanted, bodies) -> None:
    world = World(server)
    for age in ages:
        _advertised(sender, world, INFO, age_seconds=age)
    _notify(world, sender, installation_ids=wanted)
    assert [type(message.body) for message in server.received] == bodies
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


# Notifying


@pytest.mark.requirement("N4", "N6")
def test_one_request_to_the_server_with_the_newest_registration_has_all_installations(server, second) -> None:
    sender = _sender(gather_seconds=0.3)  # waits a moment for the answers of other servers
    server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    second.enrol(CLIENT, TABLET, ACCESS_TOKEN, version=2)
    world = World(server, second)
    _notify(world, sender)
    world.wait(sender, 10)
    assert (sum(server.pushes.values()), sum(second.pushes.values())) == (0, 2)
    assert [type(message.body) for message in second.received] == [Query, PushRequest]


@pytest.mark.requirement("N1")
def test_only_the_installations_named_are_notified(sender: SendingClient, server: ModelServer) -> None:
    server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    world = _notified(sender, server, installation_ids=[TABLET, PHONES[0]])
    world.wait(sender, 3)
    assert list(server.pushes) == [(MESSAGE_ID, CLIENT.key_hash, TABLET)]
    found = {each.installation_id: each.outcome for each in sender.result(CLIENT.pub33, MESSAGE_ID).installations}
    assert found == {TABLET: Outcome.NOTIFIED, PHONES[0]: Outcome.NOT_FOUND}


@pytest.mark.requirement("N3")
def test_the_three_most_recently_active_devices_are_notified(sender: SendingClient) -> None:
    server = ModelServer(SERVER)
    for phone in PHONES:
        server.enrol(CLIENT, phone, ACCESS_TOKEN)
    for age, phone in enumerate([PHONES[4], PHONES[1]]):
        sender.directory.note_activity(CLIENT.pub33, phone, NOW_NS - age)
    _notified(sender, server)
    assert [phone for _, _, phone in server.pushes] == [PHONES[4], PHONES[1], PHONES[0]]


@pytest.mark.requirement("N7")
@pytest.mark.parametrize(
    ("fail_over", "is_first_alone", "error", "outcome"),
    [
        (True, True, ReportError.NONE, Outcome.NOTIFIED),
        (True, True, 77, Outcome.NO_ANSWER),  # the first may have notified, whatever the second reports
        (True, False, ReportError.NONE, Outcome.NO_ANSWER),
        (False, True, ReportError.NONE, Outcome.NO_ANSWER),
    ],
)
def test_another_server_gets_the_request_after_three_seconds_without_an_answer(
    server, second, fail_over, is_first_alone, error, outcome
) -> None:
    sender, world = _sender(fail_over=fail_over), World(server, second)
    _look_up(world, sender)
    server.errors = [error]
    world.mute = {second.key} if is_first_alone else {server.key, second.key}
    _notify(world, sender)
    world.wait(sender, 2.9)
    assert len(world.sent) == 2
    world.wait(sender, 1000)
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    last, count = (server, 2) if fail_over else (second, 1)
    assert (settled.outcome, settled.server, settled.request_count) == (outcome, last.key, count)
    assert sum(server.pushes.values()) == (outcome is Outcome.NOTIFIED)
    before = len(world.sent)
    _notify(world, sender)
    assert len(world.sent) == before  # another request could notify twice


def test_a_success_that_comes_too_late_corrects_the_outcome(sender: SendingClient, server: ModelServer) -> None:
    world, request = _request(sender, server)
    world.wait(sender, 10)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).installations[0].outcome is Outcome.NO_ANSWER
    world.report(sender, sealed(_report(ReportError.INTERNAL_ERROR), request.author))
    assert sender.result(CLIENT.pub33, MESSAGE_ID).installations[0].outcome is not Outcome.NO_ANSWER
    world.report(sender, sealed(_report(), request.author))
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified
    late = World(now_ns=world.now_ns)
    late.wait(sender, LISTEN_SECONDS + 10)
    assert _reasons(late.report(sender, sealed(_report(), request.author))) == [Reason.FOREIGN_TOPIC]
    assert sender.subscriptions() == {}


@pytest.mark.requirement("N9", "N10")
@pytest.mark.parametrize(
    ("error", "outcome", "count"),
    [
        (ReportError.WRONG_TOKEN, Outcome.WRONG_TOKEN, 1),
        (ReportError.INTERNAL_ERROR, Outcome.INTERNAL_ERROR, 6),
        (ReportError.NOT_REGISTERED, Outcome.NOT_REGISTERED, 1),
        (77, Outcome.REFUSED, 1),
    ],
)
def test_a_failure_that_stays_ends_the_attempts_until_the_user_repeats_the_notification(
    sender, server, error, outcome, count
) -> None:
    server.errors = [error] * count
    world = _notified(sender, server)
    begin_ns, times = world.now_ns, []
    while (due_ns := sender.deadline_ns) is not None:
        times.append((due_ns - begin_ns) / SECOND)
        world.now_ns = due_ns
        world.run(sender)
    if error == ReportError.INTERNAL_ERROR:
        waits = BACKOFF["notification_seconds_after_retry_count"]
        assert times == list(accumulate(waits[str(number)] for number in range(1, 6)))
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.request_count, sum(server.pushes.values())) == (outcome, count, 0)
    queries = [message for message in server.received if isinstance(message.body, Query)]
    assert len(queries) == (2 if error == ReportError.WRONG_TOKEN else 1)
    _notify(world, sender)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


@pytest.mark.requirement("N10")
@pytest.mark.parametrize("error", [ReportError.INTERNAL_ERROR, ReportError.NOT_REGISTERED])
def test_after_such_a_failure_another_server_gets_the_request(sender, server, second, error) -> None:
    world = World(server, second)
    _look_up(world, sender)
    second.errors = [error]
    _notify(world, sender)
    world.wait(sender, 4)
    assert (sum(server.pushes.values()), sum(second.pushes.values())) == (1, 0)
    forgotten = {SECOND_SERVER.pub33} if error == ReportError.NOT_REGISTERED else set()
    known = {place.server for place in sender.destinations(CLIENT.pub33)}
    assert known == {SERVER.pub33, SECOND_SERVER.pub33} - forgotten


def test_reports_in_parts_are_merged(sender: SendingClient, server: ModelServer) -> None:
    server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    world, request = _request(sender, server)
    for installation_id in (UUID, TABLET):
        assert sender.result(CLIENT.pub33, MESSAGE_ID) is None
        world.report(sender, sealed(_report(installation_id=installation_id), request.author))
    assert [each.outcome for each in sender.result(CLIENT.pub33, MESSAGE_ID).installations] == [Outcome.NOTIFIED] * 2


# Bad input


def _reported(*device: object, message_id: bytes = MESSAGE_ID) -> PushResponse:
    return PushResponse(message_id, (Report(*device, success=True),))


STRAY: list[tuple[Identity, PlainBody, Reason, Reason]] = [
    (OUTSIDER, _reported(CLIENT.key_hash, UUID), Reason.UNKNOWN_REQUEST, Reason.WRONG_SIGNER),
    (SERVER, _reported(CLIENT.key_hash, UUID, message_id=OTHER_ID), Reason.UNKNOWN_REQUEST, Reason.UNKNOWN_REQUEST),
    (SERVER, _reported(CLIENT.key_hash, TABLET), Reason.UNKNOWN_REQUEST, Reason.FOREIGN_INSTALLATION),
    (SERVER, _reported(OUTSIDER.key_hash, UUID), Reason.UNKNOWN_REQUEST, Reason.FOREIGN_INSTALLATION),
    (SERVER, QueryResponse(MESSAGE_ID, success=True, info=(INFO,)), Reason.UNKNOWN_REQUEST, Reason.UNKNOWN_REQUEST),
    (SERVER, QueryResponse(b"", success=False, info=(INFO,)), Reason.FAILED_QUERY, Reason.UNKNOWN_REQUEST),
    (SERVER, RegistrationResponse(b"\x0f" * 64, success=True), Reason.UNEXPECTED_TYPE, Reason.UNEXPECTED_TYPE),
]


@pytest.mark.parametrize(("signer", "body", "of_query", "of_request"), STRAY)
def test_an_answer_that_is_none_to_a_query_or_request_of_ours_is_ignored(
    sender, server, signer, body, of_query, of_request
) -> None:
    world, request = _request(sender, server)
    assert _reasons(world.report(sender, sealed(body, request.author, signer))) == [of_request]
    assert sender.result(CLIENT.pub33, MESSAGE_ID) is None
    sender = _sender()
    world, question = _asked(sender)
    if isinstance(body, QueryResponse):
        body = replace(body, message_id=body.message_id or question.message_id)
    assert _reasons(world.report(sender, sealed(body, question.author, signer))) == [of_query]
    assert sender.is_looking_up(CLIENT.pub33)


@pytest.mark.parametrize("is_success_first", [True, False])
def test_a_success_counts_before_and_after_a_failure_of_the_same_server(sender, server, is_success_first) -> None:
    """Otherwise there would be another request for the device."""
    world, request = _request(sender, server)
    answers = [sealed(_report(error), request.author) for error in (ReportError.NONE, ReportError.INTERNAL_ERROR)]
    for answer in answers if is_success_first else reversed(answers):
        events = world.report(sender, answer)
    assert not is_success_first or _reasons(events) == [Reason.ALREADY_SETTLED]
    before = len(world.sent)
    world.wait(sender, 1000)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified
    assert len(world.sent) == before


def test_a_failure_that_comes_too_late_does_not_disturb_the_request_to_another_server(sender, server, second) -> None:
    world = World(server, second)
    _look_up(world, sender)
    world.mute = {SERVER.pub33, SECOND_SERVER.pub33}
    _notify(world, sender)
    first = second.open(world.sent[-1])
    world.wait(sender, 3)
    before = len(world.sent)
    late = sealed(_report(ReportError.WRONG_TOKEN), first.author, SECOND_SERVER)
    assert _reasons(world.report(sender, late)) == [Reason.ALREADY_SETTLED]
    world.mute.clear()
    (answer,) = server.receive(world.sent[before - 1], world.now_ns)
    world.report(sender, answer)
    world.wait(sender, 1000)
    assert len(world.sent) == before
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.server, settled.request_count) == (Outcome.NOTIFIED, SERVER.pub33, 2)
    assert SERVER.pub33 in {place.server for place in sender.destinations(CLIENT.pub33)}


def _sender(**options: object) -> SendingClient:
    return SendingClient(SENDER, repeatable(), **{"gather_seconds": 0} | options)


def _look_up(world: World, sender: SendingClient) -> None:
    sender.look_up(CLIENT.pub33)
    assert sender.deadline_ns == 0
    world.run(sender)


def _notify(world: World, sender: SendingClient, content: PushNotification | None = None, **options: object) -> None:
    sender.notify(CLIENT.pub33, content or sender.one_to_one(), MESSAGE_ID, **options)
    world.run(sender)


def _notified(sender: SendingClient, server: ModelServer, **options: object) -> World:
    world = World(server)
    _notify(world, sender, **options)
    return world


def _asked(sender: SendingClient) -> tuple[World, Decoded]:
    """Have the sender query for the client, and return the world and the query."""
    world = World()
    _look_up(world, sender)
    return world, decode(world.sent[-1].payload, [topic_key(wire.query_name(CLIENT.key_hash))], SERVER)


def _answer(question: Decoded, *info: QueryInfo) -> WakuMessage:
    return sealed(QueryResponse(question.message_id, success=True, info=info), question.author)


def _request(sender: SendingClient, server: ModelServer) -> tuple[World, Decoded]:
    """Have the sender request a push, and return the world and the request, which has not reached the server."""
    world = World(server)
    _look_up(world, sender)
    world.mute = {server.key}
    _notify(world, sender)
    return world, server.open(world.sent[-1])


def _report(error: int = ReportError.NONE, *, installation_id: str = UUID) -> PushResponse:
    return PushResponse(MESSAGE_ID, (Report(CLIENT.key_hash, installation_id, success=not error, error=error),))


def _advertised(
    sender: SendingClient,
    world: World,
    info: QueryInfo,
    *,
    author: Identity = CLIENT,
    server_key: bytes = SERVER.pub33,
    age_seconds: float = 0,
) -> list[Event]:
    """Return the events that follow a contact code on the client's topic."""
    sender.follow(CLIENT.pub33)
    sender.tick(world.now_ns)
    encoded = encode(
        ContactCodeAdvertisement((replace(info, server_public_key=server_key),)),
        signer=author,
        topic_key=topic_key(CODE_NAME),
        timestamp_ns=world.now_ns - round(age_seconds * SECOND),
        random_bytes=RANDOM,
    )
    return world.report(sender, replace(encoded.message, content_topic=wire.content_topic(CODE_NAME)))


def _reasons(events: Iterable[Event]) -> list[Reason]:
    assert all(isinstance(event, Ignored) for event in events)
    return [event.reason for event in events]
