"""The people of the demonstration: phones of both kinds, and one for each difficulty that servers meet.

They register, look each other up, notify, leave and return. Every line of the log has the two people, the server's
answer and the milliseconds until it came. None has a token. The device token of a phone decides the outcome of its
pushes: see `waku_bridge.client.android`.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import structlog
from coincurve import PrivateKey

from pushserver.start.demonstration import Person
from registrations.messages import TokenType
from waku_bridge.client import (
    Address,
    Content,
    NoAnswer,
    Outcome,
    Preferences,
    RegisteringClient,
    RegistrationRefused,
    Schedule,
    SendingClient,
    Session,
    android,
    iphone,
    new_state,
)
from waku_bridge.client.state import RegistrationState
from waku_bridge.codec.keys import Identity, author_hash, chat_hash, chat_key
from waku_bridge.node import NodeError

# The seed of `manage.py demo`.
SEED = 1
APP_TOPIC = "im.status.ethereum"
# A server that starts at the same moment receives the second message at the latest.
IMPATIENT = Schedule(base_seconds=1.0, max_attempts=12)
PUBLIC_CHAT = chat_hash("demo-town-square")
REGISTRATION_SECONDS, AWAY_SECONDS = 2.0, 1.0
# Longer than three servers may take to answer. While a request backs off from an internal error, its person is busy.
NOTIFICATION_SECONDS = 12.0
MESSAGE_BYTES = 200
# Shares of these kinds of events, in percent. The last one is how often a person looks up somebody it has found before.
CHANGES, DEPARTURES, MENTIONS, FRESH_QUERIES = 8, 4, 20, 30

log = structlog.get_logger(__name__)

# The people: name, whether the phone is an iPhone, prefix of its token, purpose, and staged fault.
CAST = [
    ("Ada", True, "", "an iPhone that gets its pushes: timelines from the envelope to the reply", ""),
    ("Ben", False, "", "an Android phone that gets its pushes", ""),
    ("Cleo, who knows Ada and Ben only", True, "", "gives her access token to contacts only: nobody else can push", ""),
    ("Dan, who has muted Ada", False, "", "wants no mentions and nothing of Ada: see what suppresses a push", ""),
    ("Eva, who has lost her phone", False, "dead-", "the first push disables her route", "the token is dead"),
    ("Finn, who is hard to reach", True, "flaky1-", "retries: two attempts", "the first attempt of every push fails"),
]


@dataclass(slots=True)
class Character:
    """One person with one phone. ``purpose`` is what the person shows.

    ``fault`` is the staged fault of the phone, and empty where there is none.
    """

    name: str
    purpose: str
    fault: str
    phone: RegisteringClient
    sender: SendingClient
    address: Address
    preferences: Preferences
    is_registered: bool = False
    is_busy: bool = False  # the person does one thing at a time

    @property
    def device(self) -> str:
        return "iPhone" if self.address.token_type == TokenType.APN else "Android"

    @property
    def public_key(self) -> bytes:
        return self.phone.identity.pub33

    @property
    def chat_key(self) -> str:
        """Return the chat key as a user pastes it into the console to find the person."""
        return chat_key(self.public_key)


def make_people(seed: int, *, version: int) -> list[Character]:
    """Return the same people for the same seed, so that a restarted server recognises them.

    They have no memory: ``version`` must exceed every version that they used before, as seconds since 1970 do. The
    random numbers of encryption do not depend on the seed.
    """
    random = Random(seed)  # noqa: S311 - these keys guard nothing
    identities = [Identity(PrivateKey(random.randbytes(32))) for _ in range(6)]
    ada, ben, *_ = identities
    everybody = Preferences(mention_chats=(PUBLIC_CHAT,))
    friends = Preferences(contacts_only=True, contacts=(ada.pub33, ben.pub33), mention_chats=(PUBLIC_CHAT,))
    undisturbed = Preferences(muted_chats=(author_hash(ada.pub33),), block_mentions=True)
    preferences = [everybody, everybody, friends, undisturbed, everybody, everybody]
    return [
        Character(
            name=name,
            purpose=purpose,
            fault=fault,
            phone=RegisteringClient(identity, _new_state(random, version), os.urandom, schedule=IMPATIENT),
            sender=SendingClient(identity, os.urandom),
            address=iphone(APP_TOPIC, random.randbytes, fate) if is_iphone else android(random.randbytes, fate),
            preferences=own,
        )
        for identity, own, (name, is_iphone, fate, purpose, fault) in zip(identities, preferences, CAST, strict=True)
    ]


def _new_state(random: Random, version: int) -> RegistrationState:
    installation_id, access_token = (str(uuid.UUID(bytes=random.randbytes(16), version=4)) for _ in range(2))
    return new_state(
        random_bytes=os.urandom, installation_id=installation_id, access_token=access_token, version=version
    )


def shown() -> list[Person]:
    """Return the people of `manage.py demo` as pages show them."""
    return [
        Person(each.name, each.device, each.purpose, each.fault, each.public_key, each.chat_key)
        for each in make_people(SEED, version=0)
    ]


def introduce(people: Iterable[Person]) -> Iterator[str]:
    """Yield a line about each person: the chat key to find it by, its purpose, and the staged fault."""
    for person in people:
        staged = f" STAGED FAULT: {person.fault}." if person.fault else ""
        yield f"{person.name} ({person.device}): {person.purpose}.{staged} Chat key: {person.chat_key}"


class DemoRun:
    """The demonstration. ``pause_seconds`` is the average time between two events.

    The seed decides who acts, and the network decides when.
    """

    def __init__(
        self, session: Session, server: bytes, people: Sequence[Character], *, seed: int, pause_seconds: float
    ) -> None:
        self._session = session
        self._people = people
        self._random = Random(seed)  # noqa: S311 - chooses who writes to whom
        self._pause_seconds = pause_seconds
        for person in people:
            person.phone.use([server])
            for other in people:
                if other is not person:
                    person.sender.follow(other.public_key)

    async def live(self) -> None:
        """Play until cancelled. All people register first, as after installing the app."""
        await asyncio.gather(*(self._register(person) for person in self._people))
        async with asyncio.TaskGroup() as events:
            while True:
                sender, recipient = self._random.sample(self._people, 2)
                if not sender.is_busy:
                    events.create_task(self._occupy(sender, recipient))
                await asyncio.sleep(self._pause_seconds * self._random.uniform(0.5, 1.5))

    async def _occupy(self, sender: Character, recipient: Character) -> None:
        sender.is_busy = True
        await self._next_event(sender, recipient)
        sender.is_busy = False

    def _next_event(self, sender: Character, recipient: Character) -> Coroutine[Any, Any, None]:
        chance = self._random.randrange(100)
        if not sender.is_registered or chance < CHANGES:
            return self._register(sender)
        if chance < CHANGES + DEPARTURES:
            return self._unregister(sender)
        is_mention = self._random.randrange(100) < MENTIONS
        is_fresh = self._random.randrange(100) < FRESH_QUERIES
        return self._write(sender, recipient, self._content(sender, is_mention=is_mention), is_fresh=is_fresh)

    def _content(self, sender: Character, *, is_mention: bool) -> Content:
        message = os.urandom(MESSAGE_BYTES)
        if not is_mention:
            return sender.sender.one_to_one(message)
        return sender.sender.mention(PUBLIC_CHAT, message)

    async def _register(self, person: Character) -> None:
        person.phone.change(person.address, person.preferences)
        person.is_registered = await self._log(person, "registered", device=person.device)

    async def _unregister(self, person: Character) -> None:
        person.phone.unregister()
        person.is_registered = not await self._log(person, "unregistered")

    async def _log(self, person: Character, done: str, **facts: str) -> bool:
        """Repeat the registration of the phone until the server answers, and return whether the server accepted it."""
        started = time.monotonic()
        while True:
            try:
                await self._session.register(person.phone, timeout_seconds=REGISTRATION_SECONDS)
            except RegistrationRefused as refused:
                log.warning("registration_refused", person=person.name, answer=str(refused), ms=_ms_since(started))
                return False
            except NoAnswer:
                log.warning("registration_unanswered", person=person.name, ms=_ms_since(started))
            except NodeError as error:
                await self._wait_for_node(error)
            else:
                log.info(done, person=person.name, **facts, version=person.phone.version, ms=_ms_since(started))
                return True

    async def _write(self, sender: Character, recipient: Character, content: Content, *, is_fresh: bool) -> None:
        try:
            if is_fresh or not sender.sender.destinations(recipient.public_key):
                await self._look_for(sender, recipient)
            if sender.sender.destinations(recipient.public_key):
                await self._notify(sender, recipient, content)
        except NoAnswer as silence:
            log.info("no_answer", sender=sender.name, recipient=recipient.name, reason=str(silence))
        except NodeError as error:
            await self._wait_for_node(error)

    async def _look_for(self, sender: Character, recipient: Character) -> None:
        started = time.monotonic()
        found = await self._session.look_up(sender.sender, recipient.public_key)
        answer = f"{len(found)} installation" if found else "not for you"
        log.info("looked_up", sender=sender.name, recipient=recipient.name, answer=answer, ms=_ms_since(started))

    async def _notify(self, sender: Character, recipient: Character, content: Content) -> None:
        started = time.monotonic()
        notified = await self._session.notify(
            sender.sender, recipient.public_key, content, os.urandom(32), timeout_seconds=NOTIFICATION_SECONDS
        )
        outcomes = (settled.outcome for settled in notified.installations)
        answer = ", ".join("success" if outcome is Outcome.NOTIFIED else outcome.upper() for outcome in outcomes)
        log.info("notified", sender=sender.name, recipient=recipient.name, answer=answer, ms=_ms_since(started))

    async def _wait_for_node(self, error: NodeError) -> None:
        log.warning("node_away", error=str(error))
        await asyncio.sleep(AWAY_SECONDS)


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
