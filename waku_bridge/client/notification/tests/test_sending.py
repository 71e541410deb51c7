"""The sending client: its queries and requests, their order, and the answers that it accepts."""

from dataclasses import replace

import pytest

from notifications.messages import NotificationType, PushRequest, Report, ReportError
from registrations.messages import QueryInfo
from waku_bridge.client import (
    Ignored,
    Learned,
    LookedUp,
    Notified,
    Outcome,
    Reason,
    SendingClient,
    Settled,
    Timeouts,
    ask_to_push,
    new_identity,
    one_to_one,
)
from waku_bridge.client.notification.sending import LISTEN_SECONDS, MAX_INFOS
from waku_bridge.client.tests.model import SECOND, ModelServer, World, destination, retimed, topic_key
from waku_bridge.codec import frame, topics
from waku_bridge.codec.crypto import symmetric
from waku_bridge.codec.crypto.access_tokens import seal_access_token
from waku_bridge.codec.crypto.ecies import unseal
from waku_bridge.codec.crypto.grants import sign_grant
from waku_bridge.codec.envelope import Identity, decode, encode_advertisement
from waku_bridge.codec.keys import author_hash, chat_hash
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
from waku_bridge.messages import ContactCodeAdvertisement, PushResponse, Query, QueryResponse, RegistrationResponse

MESSAGE_ID = b"\x0a" * 32
OTHER_ID = b"\x0b" * 32
TABLET = "22222222-2222-4222-8222-222222222222"
PHONES = [f"{number}0000000-0000-4000-8000-000000000000" for number in range(1, 6)]
NEW_TOKEN = "c0ffee00-0000-4000-8000-000000000002"
SECOND_SERVER = new_identity(repeatable())
CODE_NAME = topics.contact_code_name(CLIENT.pub33)


@pytest.fixture
def server() -> ModelServer:
    server = ModelServer(SERVER)
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    return server


@pytest.fixture
def second() -> ModelServer:
    server = ModelServer(SECOND_SERVER)
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    return server


@pytest.fixture
def sender() -> SendingClient:
    return _sender()


# Messages


@pytest.mark.requirement("Q3", "Q4")
def test_a_query_shows_the_ephemeral_key_only(sender: SendingClient) -> None:
    sender.look_up(CLIENT.pub33)
    (message,) = sender.tick(NOW_NS).messages
    key = topic_key(topics.query_name(CLIENT.key_hash))
    _data, outer_signer = frame.parse(symmetric.unseal_frame(message.payload, key))
    asked = decode(message.payload, [key], SERVER)
    assert asked.body == Query((CLIENT.key_hash,))
    assert asked.author == outer_signer.format()
    assert asked.author != SENDER.pub33


@pytest.mark.requirement("N8")
def test_a_request_shows_the_ephemeral_key_only(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    _data, outer_signer = frame.parse(unseal(world.sent[-1].payload, SERVER.private_key))
    asked = server.received[-1]
    assert isinstance(asked.body, PushRequest)
    assert asked.author == outer_signer.format()
    assert asked.author != SENDER.pub33


@pytest.mark.requirement("Q4")
def test_each_query_and_each_request_has_a_key_of_its_own(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    sender.notify(CLIENT.pub33, sender.one_to_one(), OTHER_ID)
    _look_up(world, sender)
    authors = [message.author for message in server.received]
    assert len(authors) == len(set(authors)) == 4


def test_a_request_goes_to_the_partitioned_topic_of_its_server(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    assert world.sent[-1].content_topic == topics.content_topic(topics.partitioned_name(SERVER.pub33))


@pytest.mark.requirement("Q5")
def test_a_request_carries_the_content_of_the_sender(sender: SendingClient, server: ModelServer) -> None:
    _notified(sender, server, content=sender.one_to_one(b"sealed"))
    (asked,) = server.received[-1].body.notifications
    me = author_hash(SENDER.pub33)
    assert (asked.public_key_hash, asked.installation_id, asked.access_token) == (CLIENT.key_hash, UUID, ACCESS_TOKEN)
    assert (asked.type, asked.chat_id, asked.author, asked.message) == (NotificationType.MESSAGE, me, me, b"sealed")
    assert server.received[-1].body.message_id == MESSAGE_ID


def test_a_mention_names_the_chat(sender: SendingClient, server: ModelServer) -> None:
    _notified(sender, server, content=sender.mention(chat_hash("town-square")))
    (asked,) = server.received[-1].body.notifications
    assert (asked.type, asked.chat_id) == (NotificationType.MENTION, chat_hash("town-square"))
    assert asked.author == author_hash(SENDER.pub33)


def test_a_request_built_twice_is_the_same_message_in_another_envelope(server: ModelServer) -> None:
    random_bytes, place = repeatable(), [destination(server, CLIENT, UUID)]
    content = one_to_one(SENDER.pub33)
    arguments = {"signer": OUTSIDER, "timestamp_ns": NOW_NS, "random_bytes": random_bytes}
    first, again = (ask_to_push(place, content, MESSAGE_ID, **arguments) for _ in range(2))
    assert first.message_id == again.message_id
    assert first.message.payload != again.message.payload


@pytest.mark.parametrize("count", [0, 2])
def test_one_request_goes_to_exactly_one_server(server: ModelServer, second: ModelServer, count: int) -> None:
    places = [destination(each, CLIENT, UUID) for each in (server, second)][:count]
    content = one_to_one(SENDER.pub33)
    with pytest.raises(ValueError, match="exactly one server"):
        ask_to_push(places, content, MESSAGE_ID, signer=OUTSIDER, timestamp_ns=NOW_NS, random_bytes=repeatable())


# Finding out


@pytest.mark.requirement("Q5")
def test_an_open_installation_is_found(sender: SendingClient, server: ModelServer) -> None:
    world = World(server)
    _look_up(world, sender)
    assert sender.destinations(CLIENT.pub33) == (destination(server, CLIENT, UUID),)
    assert world.events[0] == Learned(destination(server, CLIENT, UUID), is_advertised=False)


@pytest.mark.requirement("Q6")
def test_a_token_sealed_for_this_contact_is_found(sender: SendingClient) -> None:
    events = _answered(sender, _for_contacts(OUTSIDER, SENDER))
    assert isinstance(events[0], Learned)
    assert events[0].destination.access_token == ACCESS_TOKEN


@pytest.mark.requirement("Q6")
def test_a_token_sealed_for_others_is_not_found(sender: SendingClient) -> None:
    assert _reasons(_answered(sender, _for_contacts(OUTSIDER))) == [Reason.NO_TOKEN]


@pytest.mark.requirement("Q7")
@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (replace(INFO, grant=b""), Reason.BAD_GRANT),
        (replace(INFO, grant=b"\x01" * 65), Reason.BAD_GRANT),
        (replace(INFO, grant=sign_grant(OUTSIDER.private_key, SERVER.pub33, ACCESS_TOKEN)), Reason.BAD_GRANT),
        (replace(INFO, grant=sign_grant(CLIENT.private_key, OUTSIDER.pub33, ACCESS_TOKEN)), Reason.BAD_GRANT),
        (replace(INFO, access_token=UUID), Reason.BAD_GRANT),
        (
            replace(INFO, access_token="no", grant=sign_grant(CLIENT.private_key, SERVER.pub33, "no")),
            Reason.BAD_TOKEN,
        ),
        (replace(INFO, access_token=""), Reason.NO_TOKEN),
        (replace(INFO, access_token="", allowed_key_list=(b"", b"short", bytes(64))), Reason.NO_TOKEN),
        (replace(INFO, public_key_hash=OUTSIDER.key_hash), Reason.FOREIGN_CLIENT),
        (replace(INFO, installation_id="no uuid"), Reason.BAD_INSTALLATION),
    ],
    ids=[
        "no grant",
        "random bytes for a grant",
        "a grant of somebody else",
        "a grant for another server",
        "a grant for another token",
        "a token that is no UUID",
        "no token",
        "random bytes for sealed tokens",
        "another client",
        "an installation id that is no UUID",
    ],
)
def test_an_entry_without_a_valid_grant_is_ignored(sender: SendingClient, info: QueryInfo, reason: Reason) -> None:
    assert _reasons(_answered(sender, info)) == [reason]
    assert sender.destinations(CLIENT.pub33) == ()


def test_bad_entries_do_not_hide_a_good_one(sender: SendingClient) -> None:
    events = _answered(sender, replace(INFO, grant=b"\x01" * 65), INFO)
    assert [type(event) for event in events[:2]] == [Ignored, Learned]


def test_only_the_first_entries_of_an_endless_answer_are_read(sender: SendingClient) -> None:
    events = _answered(sender, *[replace(INFO, grant=b"")] * (MAX_INFOS + 50))
    assert _reasons(events) == [Reason.BAD_GRANT] * MAX_INFOS + [Reason.TOO_MANY]


@pytest.mark.requirement("Q7")
def test_an_entry_with_the_grant_of_another_server_is_ignored(sender: SendingClient) -> None:
    assert _reasons(_answered(sender, INFO, server=OUTSIDER)) == [Reason.BAD_GRANT]


def test_answers_in_parts_and_from_several_servers_are_merged(sender: SendingClient) -> None:
    tablet = replace(INFO, installation_id=TABLET)
    grant = sign_grant(CLIENT.private_key, SECOND_SERVER.pub33, ACCESS_TOKEN)
    answers = [(INFO, SERVER), (tablet, SERVER), (replace(INFO, grant=grant), SECOND_SERVER)]
    world, question = _asked(sender)
    for info, server in answers:
        world.report(sender, _answer(question, info, server=server))
    found = {(place.installation_id, place.server) for place in sender.destinations(CLIENT.pub33)}
    assert found == {(UUID, SERVER.pub33), (TABLET, SERVER.pub33), (UUID, SECOND_SERVER.pub33)}


def test_a_query_without_an_answer_ends_after_three_seconds(sender: SendingClient) -> None:
    world, _ = _asked(sender)
    assert world.wait(sender, 2.9) == []
    assert world.wait(sender, 0.1) == [LookedUp(CLIENT.pub33, 0)]


def test_a_useful_answer_ends_the_query_a_moment_later() -> None:
    sender = _sender(timeouts=Timeouts(gather_seconds=0.3))
    world, question = _asked(sender)
    world.report(sender, _answer(question, INFO))
    assert world.wait(sender, 0.29) == []
    assert world.wait(sender, 0.01) == [LookedUp(CLIENT.pub33, 1)]


def test_an_empty_answer_does_not_end_the_query(sender: SendingClient) -> None:
    world, question = _asked(sender)
    world.report(sender, _answer(question, server=OUTSIDER))
    assert sender.is_looking_up(CLIENT.pub33)


def test_an_answer_that_reports_a_failure_is_ignored(sender: SendingClient) -> None:
    world, question = _asked(sender)
    response = QueryResponse(question.message_id, success=False, info=(INFO,))
    assert _reasons(world.report(sender, _sealed(response, question.author))) == [Reason.FAILED_QUERY]


# Contact codes


@pytest.mark.requirement("A7")
def test_following_a_client_reads_the_store_and_subscribes(sender: SendingClient) -> None:
    sender.follow(CLIENT.pub33)
    step = sender.tick(NOW_NS)
    assert step.history == (topics.content_topic(CODE_NAME),)
    assert list(sender.subscriptions()) == [topics.content_topic(CODE_NAME)]
    assert sender.tick(NOW_NS).history == ()


@pytest.mark.requirement("A7")
def test_an_advertised_destination_is_used_without_a_query(sender: SendingClient, server: ModelServer) -> None:
    world = World(server)
    (learned,) = _advertised(sender, world, INFO)
    assert learned == Learned(destination(server, CLIENT, UUID), is_advertised=True)
    _notify(world, sender)
    assert [type(message.body) for message in server.received] == [PushRequest]
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


def test_an_advertisement_for_contacts_is_opened_by_a_contact(sender: SendingClient) -> None:
    (learned,) = _advertised(sender, World(), _for_contacts(OUTSIDER, SENDER))
    assert learned.destination.access_token == ACCESS_TOKEN


def test_the_contact_code_of_somebody_else_on_this_topic_is_ignored(sender: SendingClient) -> None:
    """Everybody who has the client's key can write to its topic."""
    assert _reasons(_advertised(sender, World(), INFO, author=OUTSIDER)) == [Reason.WRONG_SIGNER]
    assert sender.destinations(CLIENT.pub33) == ()


@pytest.mark.parametrize("server_key", [b"", b"\x02" + b"\xff" * 32, SERVER.pub65, SERVER.pub33 + b"\x00"])
def test_an_advertised_server_must_be_a_compressed_key(sender: SendingClient, server_key: bytes) -> None:
    events = _advertised(sender, World(), INFO, server_key=server_key)
    assert _reasons(events) == [Reason.BAD_SERVER_KEY]


def test_an_advertised_grant_must_be_for_the_advertised_server(sender: SendingClient) -> None:
    assert _reasons(_advertised(sender, World(), INFO, server_key=OUTSIDER.pub33)) == [Reason.BAD_GRANT]


@pytest.mark.requirement("A8")
def test_an_old_contact_code_does_not_bring_an_old_token_back(sender: SendingClient) -> None:
    world, new = World(), _info(version=2, token=NEW_TOKEN)
    _advertised(sender, world, new)
    assert _reasons(_advertised(sender, world, INFO)) == [Reason.STALE_VERSION]
    assert [place.access_token for place in sender.destinations(CLIENT.pub33)] == [NEW_TOKEN]


@pytest.mark.requirement("Q1")
def test_an_advertisement_of_yesterday_is_followed_by_a_query(sender: SendingClient, server: ModelServer) -> None:
    world = World(server)
    _advertised(sender, world, INFO, age_seconds=86_400)
    _notify(world, sender)
    assert [type(message.body) for message in server.received] == [Query, PushRequest]


def test_a_repeated_contact_code_makes_its_destinations_fresh_again(sender: SendingClient, server: ModelServer) -> None:
    world = World(server)
    _advertised(sender, world, INFO)
    world.wait(sender, 80_000)
    _advertised(sender, world, INFO)
    world.wait(sender, 80_000)
    _notify(world, sender)
    assert [type(message.body) for message in server.received] == [PushRequest]


@pytest.mark.requirement("M3")
def test_in_anonymous_mode_the_disclosed_key_takes_the_place_of_the_chat_key(sender: SendingClient) -> None:
    anonymous = new_identity(repeatable())
    server = ModelServer(SERVER)
    server.enrol(anonymous, UUID, ACCESS_TOKEN)
    world = World(server)
    sender.follow(anonymous.pub33)
    sender.notify(anonymous.pub33, sender.one_to_one(), MESSAGE_ID)
    world.run(sender)
    assert sender.result(anonymous.pub33, MESSAGE_ID).is_notified
    assert server.pushes == {(MESSAGE_ID, anonymous.key_hash, UUID): 1}
    assert topics.content_topic(topics.contact_code_name(anonymous.pub33)) in sender.subscriptions()


# Notifying


def test_a_message_is_notified_about_once(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    settled = Settled(MESSAGE_ID, CLIENT.pub33, UUID, Outcome.NOTIFIED, SERVER.pub33, request_count=1)
    assert sender.result(CLIENT.pub33, MESSAGE_ID) == Notified(MESSAGE_ID, CLIENT.pub33, (settled,), answer_count=1)
    assert world.events[-2:] == [settled, sender.result(CLIENT.pub33, MESSAGE_ID)]
    assert sum(server.pushes.values()) == 1


@pytest.mark.requirement("N6")
def test_a_second_notification_of_the_same_message_sends_nothing(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    before = len(world.sent)
    _notify(world, sender)
    world.wait(sender, 100)
    assert len(world.sent) == before
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


@pytest.mark.requirement("N4", "N6")
def test_each_installation_is_in_one_request_only(
    sender: SendingClient, server: ModelServer, second: ModelServer
) -> None:
    for each in (server, second):
        each.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    world = World(server, second)
    _notify(world, sender)
    world.wait(sender, 10)
    assert sum((server.pushes + second.pushes).values()) == 2
    requests = [
        message for each in (server, second) for message in each.received if isinstance(message.body, PushRequest)
    ]
    assert len(requests) == 1  # both installations in one


def test_a_request_goes_to_the_server_with_the_newest_registration(server: ModelServer, second: ModelServer) -> None:
    sender = _sender(timeouts=Timeouts())  # waits a moment for the answers of other servers
    second.enrol(CLIENT, UUID, NEW_TOKEN, version=2)
    world = World(server, second)
    _notify(world, sender)
    world.wait(sender, 10)
    assert (sum(server.pushes.values()), sum(second.pushes.values())) == (0, 1)


@pytest.mark.requirement("N1")
def test_only_the_installations_named_are_notified(sender: SendingClient, server: ModelServer) -> None:
    server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    _notified(sender, server, installation_ids=[TABLET])
    assert list(server.pushes) == [(MESSAGE_ID, CLIENT.key_hash, TABLET)]


@pytest.mark.requirement("N3")
def test_the_most_recently_active_devices_are_notified_first() -> None:
    server, sender = ModelServer(SERVER), _sender()
    for phone in PHONES:
        server.enrol(CLIENT, phone, ACCESS_TOKEN)
    for age, phone in enumerate([PHONES[4], PHONES[1], PHONES[2]]):
        sender.note_activity(CLIENT.pub33, phone, NOW_NS - age)
    _notified(sender, server)
    assert [phone for _, _, phone in server.pushes] == [PHONES[4], PHONES[1], PHONES[2]]


@pytest.mark.requirement("N3")
def test_the_limit_of_devices_can_be_raised() -> None:
    server, sender = ModelServer(SERVER), _sender(max_devices=5)
    for phone in PHONES:
        server.enrol(CLIENT, phone, ACCESS_TOKEN)
    _notified(sender, server)
    assert len(server.pushes) == 5


def test_an_unknown_client_has_no_installation_to_notify(sender: SendingClient) -> None:
    world = World(ModelServer(SERVER))
    _notify(world, sender)
    world.wait(sender, 3)
    assert sender.result(CLIENT.pub33, MESSAGE_ID) == Notified(MESSAGE_ID, CLIENT.pub33, ())


def test_a_named_installation_that_no_server_knows_is_not_found(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server, installation_ids=[TABLET])
    world.wait(sender, 3)
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.request_count) == (Outcome.NOT_FOUND, 0)


@pytest.mark.requirement("N7")
def test_another_server_gets_the_request_after_three_seconds_without_an_answer(
    server: ModelServer, second: ModelServer
) -> None:
    sender, world = _sender(), World(server, second)
    second.enrol(CLIENT, UUID, NEW_TOKEN, version=2)  # so that it is asked first
    _look_up(world, sender)
    world.mute = {SECOND_SERVER.pub33}
    _notify(world, sender)
    world.wait(sender, 2.9)
    assert sum(server.pushes.values()) == 0
    world.wait(sender, 0.1)
    assert sum(server.pushes.values()) == 1
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.server, settled.request_count) == (Outcome.NOTIFIED, SERVER.pub33, 2)


def test_the_outcome_is_no_answer_when_no_server_answers(sender: SendingClient, server: ModelServer) -> None:
    world = World(server)
    _look_up(world, sender)
    world.mute = {SERVER.pub33}
    _notify(world, sender)
    world.wait(sender, 10)
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert settled.outcome is Outcome.NO_ANSWER
    assert settled.request_count == 1  # the request to the same server is not repeated


def test_without_fail_over_no_second_server_gets_the_request(server: ModelServer, second: ModelServer) -> None:
    sender, world = _sender(fail_over=False), World(server, second)
    _look_up(world, sender)
    world.wait(sender, 3)
    world.mute = {SERVER.pub33, SECOND_SERVER.pub33}
    _notify(world, sender)
    world.wait(sender, 1000)
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.request_count) == (Outcome.NO_ANSWER, 1)


def test_a_success_that_comes_too_late_corrects_the_outcome(sender: SendingClient, server: ModelServer) -> None:
    world, answer = _unanswered(sender, server)
    world.wait(sender, 10)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).installations[0].outcome is Outcome.NO_ANSWER
    world.report(sender, answer)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


def test_a_missing_answer_outweighs_a_later_failure_of_another_server(server: ModelServer, second: ModelServer) -> None:
    """Otherwise another request could notify twice."""
    sender, world = _sender(), World(server, second)
    second.enrol(CLIENT, UUID, NEW_TOKEN, version=2)
    server.errors = [77]
    _look_up(world, sender)
    world.mute = {SECOND_SERVER.pub33}
    _notify(world, sender)
    world.wait(sender, 10)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).installations[0].outcome is Outcome.NO_ANSWER
    before = len(world.sent)
    _notify(world, sender)
    assert len(world.sent) == before


@pytest.mark.requirement("N9")
def test_a_wrong_token_leads_to_a_query_and_a_request_with_the_new_token(
    sender: SendingClient, server: ModelServer
) -> None:
    world = World(server)
    _look_up(world, sender)
    server.enrol(CLIENT, UUID, NEW_TOKEN, version=2)
    _notify(world, sender)
    assert [type(message.body) for message in server.received] == [Query, PushRequest, Query, PushRequest]
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


@pytest.mark.requirement("N9")
def test_a_token_that_stays_wrong_ends_the_attempts(sender: SendingClient, server: ModelServer) -> None:
    server.errors = [ReportError.WRONG_TOKEN] * 9
    world = _notified(sender, server)
    world.wait(sender, 1000)
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.request_count) == (Outcome.WRONG_TOKEN, 1)
    assert sum(server.pushes.values()) == 0


@pytest.mark.requirement("N10")
def test_after_an_internal_error_attempts_follow_an_exponential_backoff(
    sender: SendingClient, server: ModelServer
) -> None:
    server.errors = [ReportError.INTERNAL_ERROR] * 99
    world = _notified(sender, server)
    begin_ns, times = world.now_ns, []
    while (due_ns := sender.deadline_ns) is not None:
        world.now_ns = due_ns
        times.append((due_ns - begin_ns) / SECOND)
        world.run(sender)
    assert times == [4, 20, 68, 196, 516]
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.request_count) == (Outcome.INTERNAL_ERROR, 6)


@pytest.mark.requirement("N10")
def test_after_an_internal_error_another_server_gets_the_request(server: ModelServer, second: ModelServer) -> None:
    sender, world = _sender(), World(server, second)
    server.errors = second.errors = [ReportError.INTERNAL_ERROR]
    _look_up(world, sender)
    world.wait(sender, 3)
    _notify(world, sender)
    world.wait(sender, 4)
    asked = [
        each.key for each in (server, second) for message in each.received if isinstance(message.body, PushRequest)
    ]
    assert len(set(asked)) == len(asked) == 2
    assert sum((server.pushes + second.pushes).values()) == 1


def test_a_server_that_lost_the_registration_is_replaced_by_another_one(
    server: ModelServer, second: ModelServer
) -> None:
    sender, world = _sender(), World(server, second)
    second.enrol(CLIENT, UUID, NEW_TOKEN, version=2)
    _look_up(world, sender)
    second.registrations.clear()
    _notify(world, sender)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).installations[0].server == SERVER.pub33
    assert [place.server for place in sender.destinations(CLIENT.pub33)] == [SERVER.pub33]


def test_an_unknown_error_is_final_until_the_user_repeats_the_notification(
    sender: SendingClient, server: ModelServer
) -> None:
    server.errors = [77]
    world = _notified(sender, server)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).installations[0].outcome is Outcome.REFUSED
    _notify(world, sender)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


def test_reports_in_parts_are_merged(sender: SendingClient, server: ModelServer) -> None:
    server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    world, whole = _unanswered(sender, server)
    request = server.received[-1]
    reports = decode(whole.payload, [_key_of(sender, request.author)], SENDER).body.reports
    assert len(reports) == 2
    for report in reports:
        assert sender.result(CLIENT.pub33, MESSAGE_ID) is None
        world.report(sender, _sealed(PushResponse(MESSAGE_ID, (report,)), request.author))
    assert [each.outcome for each in sender.result(CLIENT.pub33, MESSAGE_ID).installations] == [Outcome.NOTIFIED] * 2


# Bad input


@pytest.mark.parametrize(
    ("signer", "answer", "reason"),
    [
        (OUTSIDER, (MESSAGE_ID, CLIENT.key_hash, UUID), Reason.WRONG_SIGNER),
        (SERVER, (OTHER_ID, CLIENT.key_hash, UUID), Reason.UNKNOWN_REQUEST),
        (SERVER, (MESSAGE_ID, CLIENT.key_hash, TABLET), Reason.FOREIGN_INSTALLATION),
        (SERVER, (MESSAGE_ID, OUTSIDER.key_hash, UUID), Reason.FOREIGN_INSTALLATION),
    ],
    ids=["forged signer", "another message", "another device", "another client"],
)
def test_reports_that_answer_no_request_are_ignored(
    sender: SendingClient, server: ModelServer, signer: Identity, answer: tuple[bytes, bytes, str], reason: Reason
) -> None:
    world, request = _request(sender, server)
    message_id, *installation = answer
    response = PushResponse(message_id, (Report(*installation, success=True),))
    assert _reasons(world.report(sender, _sealed(response, request.author, server=signer))) == [reason]
    assert sender.result(CLIENT.pub33, MESSAGE_ID) is None


def test_an_answer_to_the_query_of_another_sender_is_ignored(sender: SendingClient) -> None:
    world, question = _asked(sender)
    response = QueryResponse(b"\x0f" * 32, success=True, info=(INFO,))
    assert _reasons(world.report(sender, _sealed(response, question.author))) == [Reason.UNKNOWN_REQUEST]


def test_an_answer_of_the_wrong_kind_is_ignored(sender: SendingClient, server: ModelServer) -> None:
    world, question = _asked(sender)
    bodies = [PushResponse(MESSAGE_ID), RegistrationResponse(b"\x0f" * 64, success=True)]
    events = [event for body in bodies for event in world.report(sender, _sealed(body, question.author))]
    assert _reasons(events) == [Reason.UNKNOWN_REQUEST, Reason.UNEXPECTED_TYPE]


def test_replayed_answers_are_ignored(sender: SendingClient, server: ModelServer) -> None:
    world, answer = _unanswered(sender, server)
    world.report(sender, answer)
    again = _sealed(_success(), server.received[-1].author)
    events = [event for replay in (answer, retimed(answer, 7), again) for event in world.report(sender, replay)]
    assert _reasons(events) == [Reason.DUPLICATE] * 3
    assert len(sender.result(CLIENT.pub33, MESSAGE_ID).installations) == 1


def test_a_failure_after_a_success_of_the_same_server_is_ignored(sender: SendingClient, server: ModelServer) -> None:
    world, request = _request(sender, server)
    failure = PushResponse(MESSAGE_ID, (Report(CLIENT.key_hash, UUID, success=False, error=ReportError.WRONG_TOKEN),))
    world.report(sender, _sealed(_success(), request.author))
    assert _reasons(world.report(sender, _sealed(failure, request.author))) == [Reason.ALREADY_SETTLED]
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


def test_a_failure_that_comes_too_late_does_not_disturb_the_request_to_another_server(
    server: ModelServer, second: ModelServer
) -> None:
    sender, world = _sender(), World(server, second)
    second.enrol(CLIENT, UUID, NEW_TOKEN, version=2)  # so that it is asked first
    _look_up(world, sender)
    world.mute = {SERVER.pub33, SECOND_SERVER.pub33}
    _notify(world, sender)
    first = second.open(world.sent[-1])
    world.wait(sender, 3)
    before = len(world.sent)
    refusal = Report(CLIENT.key_hash, UUID, success=False, error=ReportError.INTERNAL_ERROR)
    late = _sealed(PushResponse(MESSAGE_ID, (refusal,)), first.author, server=SECOND_SERVER)
    assert _reasons(world.report(sender, late)) == [Reason.ALREADY_SETTLED]
    world.mute.clear()
    (answer,) = server.receive(world.sent[before - 1], world.now_ns)
    world.report(sender, answer)
    world.wait(sender, 1000)
    assert len(world.sent) == before
    (settled,) = sender.result(CLIENT.pub33, MESSAGE_ID).installations
    assert (settled.outcome, settled.server, settled.request_count) == (Outcome.NOTIFIED, SERVER.pub33, 2)


def test_a_success_counts_after_a_failure_of_the_same_server(sender: SendingClient, server: ModelServer) -> None:
    """Otherwise there would be another request for the device."""
    world, request = _request(sender, server)
    refusal = Report(CLIENT.key_hash, UUID, success=False, error=ReportError.INTERNAL_ERROR)
    world.report(sender, _sealed(PushResponse(MESSAGE_ID, (refusal,)), request.author))
    world.report(sender, _sealed(_success(), request.author))
    before = len(world.sent)
    world.wait(sender, 1000)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified
    assert len(world.sent) == before


def test_an_answer_after_a_minute_is_not_read_any_more(sender: SendingClient, server: ModelServer) -> None:
    world, answer = _unanswered(sender, server)
    world.wait(sender, LISTEN_SECONDS + 10)
    assert _reasons(world.report(sender, answer)) == [Reason.FOREIGN_TOPIC]
    assert sender.subscriptions() == {}


def test_garbage_is_ignored_with_a_reason(sender: SendingClient, server: ModelServer) -> None:
    world, request = _request(sender, server)
    sender.follow(CLIENT.pub33)
    good = _sealed(_success(), request.author)
    code_topic = topics.content_topic(CODE_NAME)
    bad = {
        Reason.NOT_FOR_US: [
            replace(good, payload=b""),
            replace(good, payload=bytes(500)),
            replace(good, content_topic=code_topic),
        ],
        Reason.UNREADABLE: [replace(good, payload=bytes(2_000_000))],
        Reason.UNSUPPORTED_VERSION: [replace(good, version=2)],
        Reason.FOREIGN_TOPIC: [replace(good, content_topic="")],
    }
    for reason, messages in bad.items():
        for message in messages:
            assert _reasons(world.report(sender, message)) == [reason]
    world.report(sender, good)
    assert sender.result(CLIENT.pub33, MESSAGE_ID).is_notified


def test_the_repr_of_events_has_no_access_token(sender: SendingClient, server: ModelServer) -> None:
    world = _notified(sender, server)
    assert ACCESS_TOKEN not in repr(world.events)


def _sender(**options: object) -> SendingClient:
    return SendingClient(SENDER, repeatable(), **{"timeouts": Timeouts(gather_seconds=0)} | options)


def _look_up(world: World, sender: SendingClient) -> None:
    sender.look_up(CLIENT.pub33)
    world.run(sender)


def _notify(world: World, sender: SendingClient, content=None, installation_ids=None) -> None:
    sender.notify(CLIENT.pub33, content or sender.one_to_one(), MESSAGE_ID, installation_ids)
    world.run(sender)


def _notified(sender: SendingClient, *servers: ModelServer, content=None, installation_ids=None) -> World:
    world = World(*servers)
    _notify(world, sender, content, installation_ids)
    return world


def _asked(sender: SendingClient):
    """Have the sender query for the client, and return the world and the query."""
    world = World()
    _look_up(world, sender)
    key = topic_key(topics.query_name(CLIENT.key_hash))
    return world, decode(world.sent[-1].payload, [key], SERVER)


def _answered(sender: SendingClient, *info: QueryInfo, server: Identity = SERVER):
    world, question = _asked(sender)
    return world.report(sender, _answer(question, *info, server=server))


def _answer(question, *info: QueryInfo, server: Identity = SERVER):
    return _sealed(QueryResponse(question.message_id, success=True, info=info), question.author, server=server)


def _request(sender: SendingClient, server: ModelServer):
    """Have the sender request a push, and return the world and the request, which has not reached the server."""
    world = World(server)
    _look_up(world, sender)
    world.mute = {server.key}
    _notify(world, sender)
    return world, server.open(world.sent[-1])


def _unanswered(sender: SendingClient, server: ModelServer):
    """Have the sender request a push, and return the world and the server's answer, which has not arrived."""
    world, _ = _request(sender, server)
    (answer,) = server.receive(world.sent[-1], world.now_ns)
    return world, answer


def _sealed(body, recipient: bytes, *, server: Identity = SERVER):
    return ModelServer(server).seal(body, recipient, NOW_NS)


def _success() -> PushResponse:
    return PushResponse(MESSAGE_ID, (Report(CLIENT.key_hash, UUID, success=True),))


def _key_of(sender: SendingClient, ephemeral: bytes) -> Identity:
    keys = [key for keys in sender.subscriptions().values() for key in keys]
    return next(key for key in keys if isinstance(key, Identity) and key.pub33 == ephemeral)


def _advertised(
    sender: SendingClient,
    world: World,
    info: QueryInfo,
    *,
    author: Identity = CLIENT,
    server_key: bytes = SERVER.pub33,
    age_seconds: float = 0,
):
    """Return the step that follows a contact code on the client's topic."""
    sender.follow(CLIENT.pub33)
    sender.tick(world.now_ns)
    encoded = encode_advertisement(
        ContactCodeAdvertisement((replace(info, server_public_key=server_key),)),
        identity=author,
        topic_key=topic_key(CODE_NAME),
        timestamp_ns=world.now_ns - round(age_seconds * SECOND),
        random_bytes=RANDOM,
    )
    return world.report(sender, replace(encoded.message, content_topic=topics.content_topic(CODE_NAME)))


RANDOM = repeatable()


def _info(*, version: int, token: str) -> QueryInfo:
    grant = sign_grant(CLIENT.private_key, SERVER.pub33, token)
    return replace(INFO, version=version, access_token=token, grant=grant)


def _for_contacts(*contacts: Identity) -> QueryInfo:
    random_bytes = repeatable()
    entries = [seal_access_token(ACCESS_TOKEN, CLIENT.private_key, contact.pub33, random_bytes) for contact in contacts]
    return replace(INFO, access_token="", allowed_key_list=tuple(entries))


def _reasons(events) -> list[Reason]:
    assert all(isinstance(event, Ignored) for event in events)
    return [event.reason for event in events]
