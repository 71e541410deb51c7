"""Twenty Messengers that write at random for ten minutes while parts of the server are killed, compared with a model.

``LONG=1 make status-interop`` runs it, or ``LONG=120`` for two minutes. ``SEED`` repeats a course of events.
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tests.interop.conftest import StartServer
from tests.interop.nodes import Nodes
from tests.interop.status.conftest import PROCESSES, SERVER_KEY, World, new_token, serving
from tests.interop.status.messengers import APN, FIREBASE, Messenger
from tests.rig.peers import Server, ask
from tests.rig.server import Fleet
from waku_bridge.identity import own_content_topics

pytestmark = pytest.mark.status
SECONDS = 600 if os.environ.get("LONG") == "1" else int(os.environ.get("LONG") or 0)
PEOPLE = 20
TIMEOUT_SECONDS = 60
APART = timedelta(seconds=3)
SEED = int(os.environ.get("SEED") or time.time())


@pytest.fixture(scope="module")
def server(node_url: str, real_nodes: Nodes, gorush: Server, start_server: StartServer) -> Iterator[Fleet]:
    """The server with a store beside its node, as a killed bridge loses the messages that it has just drained."""
    with (
        real_nodes.store_beside(node_url) as store,
        serving(node_url, gorush, start_server, WAKU_STORE_NODES=store) as fleet,
    ):
        yield fleet


@dataclass(slots=True, eq=False)
class Person:
    """A user with a phone, and the number of pushes that each of the phone's tokens must have had at the end."""

    messenger: Messenger
    token: str
    token_type: int
    expected: Counter[str] = field(default_factory=Counter)
    sent: list[tuple[datetime, "Person", str]] = field(default_factory=list)
    firsts: dict["Person", tuple[str, str]] = field(default_factory=dict)  # first messages, and the token at that time


class Group:
    """The people, their actions, and the model of the expected pushes."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.people = [self._person(number) for number in range(PEOPLE)]

    def _person(self, number: int) -> Person:
        token_type = (APN, FIREBASE)[number % 2]
        messenger, token = self.world.phone(token_type=token_type)
        return Person(messenger, token, token_type)

    def write(self) -> None:
        self._write(*self.chance.sample(self.people, 2))

    def _write(self, writer: Person, reader: Person) -> None:
        """Send a message, after a pause since the last one to this reader. status-go sends messages to one reader
        within a moment as one, and notifies about the first alone.
        """
        before = [at for at, to, _ in writer.sent if to is reader]
        if before:
            time.sleep(max((before[-1] + APART - datetime.now(UTC)).total_seconds(), 0))
        message_id = writer.messenger.ask("send", key=reader.messenger.key, text=f"{self.chance.random()}")
        reader.expected[reader.token] += 1
        writer.firsts.setdefault(reader, (message_id, reader.token))
        writer.sent.append((datetime.now(UTC), reader, message_id))

    def write_while_something_is_away(self) -> None:
        """Send a message to a reader whom the writer has woken before. A first message first queries for the reader's
        phone, and causes no notification when no answer comes within three seconds.
        """
        known = [
            (writer, reader)
            for writer in self.people
            for _, reader, message_id in writer.sent
            if is_set(writer, message_id)
        ]
        if known:
            self._write(*self.chance.choice(known))

    def change_token(self) -> None:
        person = self.chance.choice(self.people)
        self.world.settle()
        person.token = new_token(person.token_type)
        person.messenger.register(SERVER_KEY, person.token, token_type=person.token_type)
        self.world.settle()

    def kill_the_server(self) -> None:
        with self._fault(lambda: self.world.start(*PROCESSES)):
            self.world.kill(*PROCESSES)

    def lose_gorush(self) -> None:
        with self._fault(self.world.start_gorush):
            self.world.stop_gorush()

    @contextmanager
    def _fault(self, end: Callable[[], None]) -> Iterator[None]:
        self.world.settle()
        yield
        for _ in range(3):
            self.write_while_something_is_away()
        end()
        self.world.settle()


def test_twenty_people_and_a_server_that_is_killed(world: World) -> None:
    print(f"\nSEED={SEED}")
    chance = random.Random(SEED)
    group = Group(world, chance)
    actions = [group.write] * 40 + [group.change_token] * 2 + [group.kill_the_server, group.lose_gorush]
    done, deadline = Counter[str](), time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        action = chance.choice(actions)
        if action != group.write:
            print(f"{datetime.now(UTC):%T} {action.__name__}")
        action()
        done[action.__name__] += 1
        time.sleep(chance.random())
    check(world, group)
    print(dict(done), "messages", sum(len(person.sent) for person in group.people))


def check(world: World, group: Group) -> None:
    """Check that each message woke its reader's phone, that duplicate pushes have one collapse id, and that each writer
    has a report.

    Two kinds of messages are exempt. For a first message to a reader, status-go waits only three seconds for the answer
    to its query. It also sends a request only once, so the network may lose it: such a request is in no store and not
    in the inbox.
    """
    expected = sum((person.expected for person in group.people), Counter())
    for writer in group.people:
        for first, token in writer.firsts.values():
            if not is_set(writer, first):
                print("no answer in time for a first message", writer.messenger.folder.name, first)
                writer.sent = [each for each in writer.sent if each[-1] != first]
                expected[token] -= 1
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while expected - counts(world) and time.monotonic() < deadline:
        time.sleep(1)
    world.settle()
    unreported = [
        _describe(world, at, writer, reader, message_id)
        for writer in group.people
        for at, reader, message_id in writer.sent
        if not is_set(writer, message_id)
    ]
    missing, beyond = expected - counts(world), counts(world) - expected
    sent = {each.hash for each in published(world)}
    unread = sent - inbox(world).keys()
    unstored = unread - stored(world, unread)
    print(
        f"{len(sent)} messages to the server, of which the network lost {len(unstored)}",
        dict(missing),
        *unreported,
        sep="\n",
    )
    assert unread == unstored, "the inbox lacks messages of the store"
    assert not beyond
    assert max(missing.total(), len(unreported)) <= len(unstored), (dict(missing), unreported)


@dataclass(frozen=True, slots=True)
class Published:
    """A message of a Messenger to the server, by the Messenger's own log."""

    at: datetime
    folder: str
    hash: str


def published(world: World) -> Iterator[Published]:
    for log in world.folder.glob("*/log"):
        for line in log.read_text(encoding="utf-8").splitlines():
            if "publishing message via relay" in line:
                facts = json.loads(line[line.index("{") :])
                if facts["contentTopic"] in own_content_topics():
                    at = datetime.fromisoformat(line.split("\t")[0])
                    yield Published(at, log.parent.name, facts["envelopeHash"].removeprefix("0x"))


def inbox(world: World) -> dict[str, str]:
    """Return the state of each envelope that the server has, by its hash."""
    sql = "SELECT encode(hash, 'hex'), concat_ws(' ', state, reason, message_type) FROM waku_bridge_inboundenvelope"
    return dict(world.server.rows(sql))


def stored(world: World, hashes: Iterable[str]) -> set[str]:
    """Return the hashes that the store has. Its node is not the server's."""
    store = world.server.environment["WAKU_STORE_NODES"]
    path = "/store/v3/messages?includeData=false&hashes=0x"
    return {each for each in hashes if ask(store, "GET", path + each).body["messages"]}


def _describe(world: World, at: datetime, writer: Person, reader: Person, message_id: str) -> str:
    """Describe a message without a report of a push to its writer."""
    folder, fates = writer.messenger.folder.name, inbox(world)
    around = [
        f"{each.at:%T.%f} {each.hash[:8]} {fates.get(each.hash, 'not in the inbox')}"
        for each in published(world)
        if each.folder == folder and -2 < (each.at - at).total_seconds() < 5
    ]
    who = f"{folder} to {reader.messenger.folder.name}"
    requests = world.count_requests(message_id)
    return f"{at:%T.%f} {who} {writer.messenger.reports(message_id)}, {requests} requests stored; {around}"


def is_set(writer: Person, message_id: str) -> bool:
    return [report.success for report in writer.messenger.reports(message_id)] == [True]


def counts(world: World) -> Counter[str]:
    """Count the different notifications that reached each token."""
    pushes = {(push["token"], push["collapse_id"]) for push in world.gorush.pushes() if not push["error"]}
    return Counter(token for token, _ in pushes)
