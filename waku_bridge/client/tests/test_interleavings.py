"""The clients on a network that loses, repeats, delays, reorders and forges messages."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from notifications.messages import PushRequest, Report, ReportError
from registrations.messages import TokenType
from tests.budget import examples
from tests.factories import firebase_token
from waku_bridge.client import (
    Accepted,
    Address,
    Learned,
    Outcome,
    RegisteringClient,
    Schedule,
    SendingClient,
    Settled,
    Standing,
    Timeouts,
    new_identity,
    new_state,
)
from waku_bridge.client.tests.model import SECOND, ModelServer
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError
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
from waku_bridge.messages import (
    Decoded,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationResponse,
    WakuMessage,
)

MESSAGE_ID = b"\x0a" * 32
TABLET = "22222222-2222-4222-8222-222222222222"
SECOND_SERVER = new_identity(repeatable())
ANSWER_SECONDS = 3.0
ADDRESS = Address(TokenType.FIREBASE, firebase_token("device-token-1"))

# A move of the network: its kind, and a message (an index modulo the number on the way) or a number of seconds.
MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["deliver", "repeat", "lose"]), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 3.0, 5.0, 20.0])),
        st.tuples(st.just("forge"), st.integers(0, 5)),
    ),
    max_size=20,
)
# Or the fate of each message in turn, before the network is good again.
FATES = st.lists(st.sampled_from(["deliver", "deliver", "lose", "late", "repeat", "forge"]), max_size=10)
PLAYS = st.one_of(st.tuples(MOVES, st.just([])), st.tuples(st.just([]), FATES))
# Query and both answers arrive, the moment for other answers passes, the request arrives, and its answer is lost.
ANSWER_LOST = ([], [*["deliver"] * 5, "lose"])
ERRORS = st.lists(
    st.sampled_from(
        [ReportError.NONE, ReportError.WRONG_TOKEN, ReportError.INTERNAL_ERROR, ReportError.NOT_REGISTERED, 77]
    ),
    max_size=2,
)


class Asked(NamedTuple):
    """A device in a request, under the key that signed it."""

    moment: int
    at_ns: int
    key: bytes
    installation_id: str


@dataclass
class Network:
    """A bad network. ``on_the_way`` has messages, and whether they are for servers.

    ``requests`` has what the client published, and ``reports`` what it received (moment, key of the request, device,
    success). Both are numbered by moment.
    """

    core: SendingClient | RegisteringClient
    servers: list[ModelServer]
    now_ns: int = NOW_NS
    on_the_way: list[tuple[WakuMessage, bool]] = field(default_factory=list)
    seen: list[tuple[int, bytes, Decoded]] = field(default_factory=list)
    moments: Iterator[int] = field(default_factory=count)
    requests: list[Asked] = field(default_factory=list)
    reports: list[tuple[int, bytes, str, bool]] = field(default_factory=list)
    events: list = field(default_factory=list)
    late: list[tuple[WakuMessage, bool]] = field(default_factory=list)

    def play(self, moves, fates=()) -> None:
        self.step(self.core.tick(self.now_ns))
        self.make_moves(moves)
        for fate in fates:
            if self.on_the_way:
                self.meet(fate)
            else:
                self.wait()

    def meet(self, fate: str) -> None:
        """Apply a fate to the oldest message."""
        if fate == "late":
            self.late.append(self.on_the_way.pop(0))
            return
        if fate == "forge":
            self.forge(len(self.seen))
        self.pass_on(fate if fate != "forge" else "deliver", 0)

    def wait(self) -> None:
        """Wait until a sender gives a server up, and then deliver the late messages."""
        self.now_ns += round(ANSWER_SECONDS * SECOND)
        self.step(self.core.tick(self.now_ns))
        self.on_the_way += self.late
        self.late = []

    def make_moves(self, moves) -> None:
        for kind, amount in moves:
            if kind == "wait":
                self.now_ns += round(amount * SECOND)
                self.step(self.core.tick(self.now_ns))
            elif kind == "forge":
                self.forge(amount)
            elif self.on_the_way:
                self.pass_on(kind, amount % len(self.on_the_way))

    def finish(self) -> None:
        """Deliver all messages from now on."""
        self.on_the_way += self.late
        while self.on_the_way or self.core.deadline_ns is not None:
            while self.on_the_way:
                self.pass_on("deliver", 0)
            due_ns = self.core.deadline_ns
            if due_ns is None or due_ns > self.now_ns + 3600 * SECOND:
                return
            self.now_ns = max(self.now_ns, due_ns)
            self.step(self.core.tick(self.now_ns))

    def pass_on(self, kind: str, index: int) -> None:
        message, is_for_servers = self.on_the_way[index]
        if kind != "repeat":
            del self.on_the_way[index]
        if kind == "lose":
            return
        if is_for_servers:
            for server in self.servers:
                self.on_the_way += [(answer, False) for answer in server.receive(message, self.now_ns)]
        else:
            self.note_reports(message)
            self.step(self.core.receive(message, self.now_ns))

    def step(self, step) -> None:
        self.events += step.events
        self.check(step.events)
        for message in step.messages:
            self.on_the_way.append((message, True))
            for server in self.servers:
                opened = server.open(message)
                if opened:
                    self.seen.append((self.now_ns, server.key, opened))
                    self.note_request(opened)

    def note_request(self, decoded: Decoded) -> None:
        if isinstance(decoded.body, PushRequest):
            moment = next(self.moments)
            self.requests += [
                Asked(moment, self.now_ns, decoded.author, asked.installation_id)
                for asked in decoded.body.notifications
            ]

    def check(self, events) -> None:
        """Check that the client reports no state before the server has it."""
        for event in events:
            if isinstance(event, Settled) and event.outcome is Outcome.NOTIFIED:
                place = (MESSAGE_ID, CLIENT.key_hash, event.installation_id)
                assert any(server.pushes[place] for server in self.servers)

    def forge(self, kind: int) -> None:
        """Answer the last message with a key of an attacker, who has seen all messages but has no other key."""
        if not self.seen:
            return
        _, _, question = self.seen[-1]
        asked_id = question.body.message_id if isinstance(question.body, PushRequest) else question.message_id
        forgeries = [
            PushResponse(asked_id, (Report(CLIENT.key_hash, UUID, success=True),)),
            PushResponse(asked_id, (Report(OUTSIDER.key_hash, TABLET, success=True),)),
            QueryResponse(asked_id, success=True, info=(INFO,)),
            QueryResponse(asked_id, success=True, info=(replace(INFO, version=99, access_token=UUID),)),
            RegistrationResponse(getattr(question.body, "request_id", b""), success=True),
            RegistrationResponse(b"\x0f" * 64, success=False),
        ]
        message = ModelServer(OUTSIDER).seal(forgeries[kind % len(forgeries)], question.author, self.now_ns)
        self.step(self.core.receive(message, self.now_ns))

    def note_reports(self, message: WakuMessage) -> None:
        keys = [key for keys in self.core.subscriptions().values() for key in keys if not isinstance(key, bytes)]
        for key in keys:
            try:
                body = decode(message.payload, [key], key).body
            except CodecError:
                continue
            if isinstance(body, PushResponse):
                self.reports += [(next(self.moments), key.pub33, r.installation_id, r.success) for r in body.reports]


def _servers(first_errors: list[int], second_errors: list[int]) -> list[ModelServer]:
    servers = [ModelServer(SERVER, errors=list(first_errors)), ModelServer(SECOND_SERVER, errors=list(second_errors))]
    for server in servers:
        server.enrol(CLIENT, UUID, ACCESS_TOKEN)
        server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    return servers


def _sending(servers: list[ModelServer], *, fail_over: bool) -> Network:
    timeouts = Timeouts(answer_seconds=ANSWER_SECONDS)
    sender = SendingClient(SENDER, repeatable(), timeouts=timeouts, fail_over=fail_over)
    sender.notify(CLIENT.pub33, sender.one_to_one(), MESSAGE_ID)
    return Network(sender, servers)


@pytest.mark.requirement("N6")
@settings(max_examples=examples(150), deadline=None)
@example(play=ANSWER_LOST, first_errors=[], second_errors=[])
@given(PLAYS, ERRORS, ERRORS)
def test_without_fail_over_no_device_is_notified_twice(play, first_errors, second_errors) -> None:
    servers = _servers(first_errors, second_errors)
    network = _sending(servers, fail_over=False)
    network.play(*play)
    for _ in range(2):
        network.core.notify(CLIENT.pub33, network.core.one_to_one(), MESSAGE_ID)  # the user repeats the notification
        network.step(network.core.tick(network.now_ns))
        network.finish()
    for installation_id in (UUID, TABLET):
        place = (MESSAGE_ID, CLIENT.key_hash, installation_id)
        assert sum(server.pushes[place] for server in servers) <= 1


@pytest.mark.requirement("N6")
@settings(max_examples=examples(150), deadline=None)
@example(play=ANSWER_LOST, first_errors=[], second_errors=[])
@given(PLAYS, ERRORS, ERRORS)
def test_with_fail_over_a_second_request_for_a_device_follows_only_a_failure_or_a_timeout(
    play, first_errors, second_errors
) -> None:
    """A second request follows a failure of the first, or three seconds without an answer, and never a success."""
    network = _sending(_servers(first_errors, second_errors), fail_over=True)
    network.play(*play)
    network.finish()
    for later in network.requests:
        for earlier in network.requests:
            if earlier.installation_id == later.installation_id and earlier.moment < later.moment:
                reported = [
                    success
                    for moment, key, installation_id, success in network.reports
                    if (key, installation_id) == (earlier.key, earlier.installation_id) and moment < later.moment
                ]
                assert True not in reported
                assert reported or later.at_ns - earlier.at_ns >= ANSWER_SECONDS * SECOND


@pytest.mark.requirement("Q7")
@settings(max_examples=examples(150), deadline=None)
@given(PLAYS, ERRORS, ERRORS, st.booleans())
def test_no_forged_message_is_accepted(play, first_errors, second_errors, fail_over) -> None:
    """A sender learns only granted destinations, and counts only pushes of the server that it names."""
    servers = _servers(first_errors, second_errors)
    network = _sending(servers, fail_over=fail_over)
    network.play(*play)
    network.finish()
    by_key = {server.key: server for server in servers}
    for event in network.events:
        if isinstance(event, Learned):
            assert event.destination.access_token == ACCESS_TOKEN
            assert event.destination.server in by_key


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 20), max_size=6))
def test_on_a_good_network_everybody_is_notified_exactly_once_in_any_order(order) -> None:
    servers = _servers([], [])
    network = _sending(servers, fail_over=True)
    network.play([("deliver", number) for number in order])
    network.finish()
    for installation_id in (UUID, TABLET):
        place = (MESSAGE_ID, CLIENT.key_hash, installation_id)
        assert sum(server.pushes[place] for server in servers) == 1
    assert network.core.result(CLIENT.pub33, MESSAGE_ID).is_notified


@settings(max_examples=examples(150), deadline=None)
@given(MOVES, st.lists(st.sampled_from([0, 1, 2, 4]), max_size=4), st.lists(st.integers(0, 40), max_size=3))
def test_a_registration_counts_as_accepted_only_when_the_server_has_it(moves, errors, changes) -> None:
    servers = [ModelServer(SERVER, registration_errors=list(errors)), ModelServer(SECOND_SERVER)]
    state = new_state(SERVER.pub33, SECOND_SERVER.pub33, random_bytes=repeatable(), installation_id=UUID)
    client = RegisteringClient(CLIENT, state, repeatable(), schedule=Schedule(1.0, 5))
    client.change(ADDRESS)
    network = Network(client, servers)
    for number, move in enumerate(moves):
        if number in changes:
            client.change(replace(ADDRESS, device_token=firebase_token(f"device-token-{number}")))
        network.play([move])
        _check_belief(network)
    network.finish()
    _check_belief(network)


def _check_belief(network: Network) -> None:
    by_key = {server.key: server for server in network.servers}
    for event in network.events:
        if isinstance(event, Accepted):
            assert by_key[event.server].registrations[CLIENT.key_hash, UUID].version >= event.version
    for slot in network.core.state.servers:
        if slot.standing is Standing.ACCEPTED:
            stored = by_key[slot.server].registrations[CLIENT.key_hash, UUID]
            assert stored.version == network.core.state.current.version


def test_the_model_answers_queries_about_its_clients_only() -> None:
    """Otherwise the tests above would prove less than their names say."""
    server, other = ModelServer(SERVER), ModelServer(SECOND_SERVER)
    server.enrol(CLIENT, UUID, ACCESS_TOKEN)
    network = _sending([server, other], fail_over=True)
    network.step(network.core.tick(NOW_NS))
    assert [(key, type(opened.body)) for _, key, opened in network.seen] == [(SERVER.pub33, Query)]
    assert topics.content_topic(topics.query_name(CLIENT.key_hash)) == network.on_the_way[0][0].content_topic
