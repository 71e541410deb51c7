"""Twenty Messengers that write at random for ten minutes while parts of the server are killed, compared with a model:
``LONG=1 make status-interop``, with ``SEED`` for the same course again.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.flows.fleet import wait_until
from tests.interop.status.conftest import PROCESSES, SERVER_KEY, World, new_token
from tests.interop.status.messengers import APN, FIREBASE, Messenger

pytestmark = pytest.mark.status
SECONDS = 600
PEOPLE = 20
SEED = int(os.environ.get("SEED") or time.time())


@dataclass(slots=True, eq=False)
class Person:
    """Somebody with a phone, and how many pushes each of the phone's tokens must have had at the end."""

    messenger: Messenger
    token: str
    token_type: int
    expected: Counter[str] = field(default_factory=Counter)
    sent: list[tuple["Person", str]] = field(default_factory=list)


class Town:
    """The people, what they do, and the model of what must come of it."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.people = [self._person(number) for number in range(PEOPLE)]

    def _person(self, number: int) -> Person:
        token_type = (APN, FIREBASE)[number % 2]
        messenger, token = self.world.phone(token_type=token_type)
        return Person(messenger, token, token_type)

    def write(self) -> None:
        """Write to somebody whose phone the writer knows, or gets to know: a query is lost with a killed server."""
        writer, reader = self.chance.sample(self.people, 2)
        message_id = writer.messenger.ask("send", key=reader.messenger.key, text=f"{self.chance.random()}")
        if reader.token:
            reader.expected[reader.token] += 1
            writer.sent.append((reader, message_id))

    def write_while_something_is_away(self) -> None:
        writer, reader = self.chance.sample(self.people, 2)
        if reader.token and writer.messenger.ask("infos", key=reader.messenger.key):
            message_id = writer.messenger.ask("send", key=reader.messenger.key, text=f"{self.chance.random()}")
            reader.expected[reader.token] += 1
            writer.sent.append((reader, message_id))

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
    town = Town(world, chance)
    actions = [town.write] * 40 + [town.change_token] * 2 + [town.kill_the_server, town.lose_gorush]
    done, deadline = Counter[str](), time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        action = chance.choice(actions)
        action()
        done[action.__name__] += 1
        time.sleep(chance.random())
    check(world, town)
    print(dict(done), "messages", sum(len(person.sent) for person in town.people))


def check(world: World, town: Town) -> None:
    """Each message woke its reader's phone, and what went out twice has one collapse id. Its writer was told."""
    expected = sum((person.expected for person in town.people), Counter())
    wait_until(lambda: not expected - counts(world), what="all pushes")
    world.settle()
    assert counts(world) == expected
    for person in town.people:
        for reader, message_id in person.sent:
            assert [report.success for report in person.messenger.reports(message_id)] == [True], reader


def counts(world: World) -> Counter[str]:
    """Return how many different notifications reached each token."""
    pushes = {(push["token"], push["collapse_id"]) for push in world.gorush.pushes() if not push["error"]}
    return Counter(token for token, _ in pushes)
