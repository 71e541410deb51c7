"""The clients on a network that loses, repeats, delays, reorders and forges messages."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from notifications.messages import PushRequest, Report, ReportError
from registrations.messages import TokenType
from tests.rig.budget import examples
from tests.rig.rows import firebase_token
from waku_bridge.client.core import Core, Schedule
from waku_bridge.client.events import Accepted, Event, Learned, Outcome, Settled, Step
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.state import Address, Standing, new_state
from waku_bridge.client.tests.model import MESSAGE_ID, SECOND, SECOND_SERVER, TABLET, ModelServer
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity
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
from waku_bridge.messages import Decoded, PushResponse, QueryResponse, RegistrationResponse, WakuMessage

ANSWER_SECONDS = 3.0
ADDRESS = Address(TokenType.FIREBASE, firebase_token("device-token-1"))

# What meets a message on the way, mostly the oldest one, or how many tenths of a second pass. Then the network is good.
FATES = st.sampled_from(["deliver", "deliver", "deliver", "lose", "late", "repeat", "forge"])
MOVES = st.lists(
    st.one_of(
        st.tuples(FATES, st.sampled_from([0, 0, 0, 1, 2, 5])),
        st.tuples(st.just("wait"), st.sampled_from([1, 10, 30, 50, 200])),
    ),
    max_size=20,
)
# Query and both answers arrive, the moment for other answers passes, the request arrives, and its answer is lost.
ANSWER_LOST = [*[("deliver", 0)] * 3, ("wait", 3), ("deliver", 0), ("lose", 0)]
ERRORS = st.lists(
    st.sampled_from(
        [ReportError.NONE, ReportError.WRONG_TOKEN, ReportError.INTERNAL_ERROR, ReportError.NOT_REGISTERED, 77]
    ),
    max_size=2,
)


@dataclass
class Network:
    """A bad network between a client and servers. ``on_the_way`` has messages, and whether they are for servers.

    ``asked`` has the last request for each device: its key and time, until it failed. A push to a device in
    ``succeeded`` was reported to the client.
    """

    core: Core
    servers: list[ModelServer]
    now_ns: int = NOW_NS
    on_the_way: list[tuple[WakuMessage, bool]] = field(default_factory=list)
    late: list[tuple[WakuMessage, bool]] = field(default_factory=list)
    seen: list[Decoded] = field(default_factory=list)
    asked: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)

    def play(self, moves: list[tuple[str, int]]) -> None:
        self.step(self.core.tick(self.now_ns))
        for fate, amount in moves:
            if fate == "wait":
                self.wait(amount * SECOND // 10)
            elif not self.on_the_way:
                self.wait(round(ANSWER_SECONDS * SECOND))
            else:
                self.meet(fate, amount % len(self.on_the_way))

    def finish(self) -> None:
        """Deliver all messages from now on."""
        self.wait(0)
        while self.on_the_way or self.core.deadline_ns is not None:
            while self.on_the_way:
                self.meet("deliver", 0)
            due_ns = self.core.deadline_ns
            if due_ns is None or due_ns > self.now_ns + 3600 * SECOND:
                return
            self.wait(max(due_ns - self.now_ns, 0))

    def wait(self, nanoseconds: int) -> None:
        """Let time pass, and then bring the late messages on their way."""
        self.now_ns += nanoseconds
        self.step(self.core.tick(self.now_ns))
        self.on_the_way += self.late
        self.late = []

    def meet(self, fate: str, index: int) -> None:
        message, is_for_servers = self.on_the_way[index]
        if fate == "forge":
            self.forge(index)
        if fate != "repeat":
            del self.on_the_way[index]
        if fate == "late":
            self.late.append((message, is_for_servers))
        elif fate != "lose" and is_for_servers:
            for server in self.servers:
                self.on_the_way += [(answer, False) for answer in server.receive(message, self.now_ns)]
        elif fate != "lose":
            self.note_reports(message)
            self.step(self.core.receive(message, self.now_ns))

    def step(self, step: Step) -> None:
        for event in step.events:
            self.check(event)
        for message in step.messages:
            self.on_the_way.append((message, True))
            opened = [each for server in self.servers if (each := server.open(message))]
            self.seen += opened
            for decoded in opened:
                if isinstance(decoded.body, PushRequest):
                    self.note_request(decoded.author, decoded.body)

    def note_request(self, key: bytes, request: PushRequest) -> None:
        """Check that a request follows a failure of the last one, or its timeout, and never a success."""
        for device in request.notifications:
            assert device.installation_id not in self.succeeded
            _, at_ns = self.asked.get(device.installation_id, (b"", 0))
            assert self.now_ns - at_ns >= ANSWER_SECONDS * SECOND
            self.asked[device.installation_id] = key, self.now_ns

    def check(self, event: Event) -> None:
        """Check that the client reports no state before a server has it, and learns only granted destinations."""
        by_key = {server.key: server for server in self.servers}
        match event:
            case Settled(_, _, installation_id, Outcome.NOTIFIED):
                assert self.pushes_to(installation_id)
            case Learned(found):
                assert (found.access_token, found.server in by_key) == (ACCESS_TOKEN, True)
            case Accepted(server, version):
                assert by_key[server].registrations[CLIENT.key_hash, UUID].version >= version

    def pushes_to(self, installation_id: str) -> int:
        return sum(server.pushes[MESSAGE_ID, CLIENT.key_hash, installation_id] for server in self.servers)

    def forge(self, kind: int) -> None:
        """Answer the last message with a key of an attacker, who has seen all messages but has no other key."""
        if not self.seen:
            return
        question = self.seen[-1]
        asked_id = question.body.message_id if isinstance(question.body, PushRequest) else question.message_id
        forgeries = [
            PushResponse(asked_id, (Report(CLIENT.key_hash, UUID, success=True),)),
            QueryResponse(asked_id, success=True, info=(INFO,)),
            QueryResponse(asked_id, success=True, info=(replace(INFO, version=99, access_token=UUID),)),
            RegistrationResponse(getattr(question.body, "request_id", b""), success=True),
        ]
        message = ModelServer(OUTSIDER).seal(forgeries[kind % len(forgeries)], question.author, self.now_ns)
        self.step(self.core.receive(message, self.now_ns))

    def note_reports(self, message: WakuMessage) -> None:
        keys = [key for keys in self.core.subscriptions().values() for key in keys if isinstance(key, Identity)]
        for key in keys:
            try:
                body = decode(message.payload, [key], key).body
            except CodecError:
                continue
            for report in body.reports if isinstance(body, PushResponse) else ():
                if report.success:
                    self.succeeded.add(report.installation_id)
                elif self.asked.get(report.installation_id, (b"", 0))[0] == key.pub33:
                    del self.asked[report.installation_id]


def _sending(first_errors: list[int], second_errors: list[int], *, fail_over: bool) -> Network:
    servers = [ModelServer(SERVER, errors=list(first_errors)), ModelServer(SECOND_SERVER, errors=list(second_errors))]
    for server in servers:
        server.enrol(CLIENT, UUID, ACCESS_TOKEN)
        server.enrol(CLIENT, TABLET, ACCESS_TOKEN)
    sender = SendingClient(SENDER, repeatable(), answer_seconds=ANSWER_SECONDS, fail_over=fail_over)
    sender.notify(CLIENT.pub33, sender.one_to_one(), MESSAGE_ID)
    return Network(sender, servers)


@pytest.mark.requirement("N6", "Q7")
@settings(max_examples=examples(100), deadline=None)
@example(moves=ANSWER_LOST, first_errors=[], second_errors=[], fail_over=True)
@example(moves=ANSWER_LOST, first_errors=[], second_errors=[], fail_over=False)
@given(MOVES, ERRORS, ERRORS, st.booleans())
def test_one_server_at_a_time_is_asked_for_a_device_and_none_after_a_success(
    moves, first_errors, second_errors, fail_over
) -> None:
    network = _sending(first_errors, second_errors, fail_over=fail_over)
    network.play(moves)
    for _ in range(2):
        network.core.notify(CLIENT.pub33, network.core.one_to_one(), MESSAGE_ID)  # the user repeats the notification
        network.step(network.core.tick(network.now_ns))
        network.finish()
    assert fail_over or max(network.pushes_to(UUID), network.pushes_to(TABLET)) <= 1


@given(st.lists(st.integers(0, 20), max_size=6))
def test_on_a_good_network_everybody_is_notified_exactly_once_in_any_order(order: list[int]) -> None:
    network = _sending([], [], fail_over=True)
    network.play([("deliver", number) for number in order])
    network.finish()
    assert (network.pushes_to(UUID), network.pushes_to(TABLET)) == (1, 1)
    assert network.core.result(CLIENT.pub33, MESSAGE_ID).is_notified


@settings(max_examples=examples(75), deadline=None)
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
    for slot in network.core.state.servers:
        if slot.standing is Standing.ACCEPTED:
            stored = by_key[slot.server].registrations[CLIENT.key_hash, UUID]
            assert stored.version == network.core.state.current.version
