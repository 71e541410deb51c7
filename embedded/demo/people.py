"""The people of the demonstration: phones of both kinds, and one for each difficulty that servers meet.

They register, look each other up, notify, leave and return. Every line of the log has the two people, the server's
answer and the milliseconds until it came. None has a token. The device token of a phone decides the outcome of its
pushes: see `waku_bridge.client.android`.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import structlog
from coincurve import PrivateKey

from pushserver.start.demonstration import Person
from waku_bridge.client.core import Schedule
from waku_bridge.client.events import Outcome
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import NoAnswer, RegistrationRefused, Session
from waku_bridge.client.state import Address, Preferences, android, iphone, new_state
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
    """One person with one phone, and what pages show of them."""

    shown: Person
    phone: RegisteringClient
    sender: SendingClient
    address: Address
    preferences: Preferences
    is_registered: bool = False
    is_busy: bool = False  # the person does one thing at a time

    @property
    def name(self) -> str:
        return self.shown.name


def make_people(seed: int, *, version: int) -> list[Character]:
    """Return the same people for the same seed, so that a restarted server recognises them.

    They have no memory: ``version`` must exceed every version that they used before, as seconds since 1970 do. The
    random numbers of encryption do not depend on the seed.
    """
    random = Random(seed)  # noqa: S311 - these keys guard nothing
    identities = [Identity(PrivateKey(random.randbytes(32))) for _ in CAST]
    ada, ben, *_ = (identity.pub33 for identity in identities)
    everybody = Preferences(mention_chats=(PUBLIC_CHAT,))
    friends = Preferences(contacts_only=True, contacts=(ada, ben), mention_chats=(PUBLIC_CHAT,))
    undisturbed = Preferences(muted_chats=(author_hash(ada),), block_mentions=True)
    preferences = [everybody, everybody, friends, undisturbed, everybody, everybody]
    people = []
    for identity, own, (name, is_iphone, fate, purpose, fault) in zip(identities, preferences, CAST, strict=True):
        ids = [str(uuid.UUID(bytes=random.randbytes(16), version=4)) for _ in range(2)]
        state = new_state(random_bytes=os.urandom, installation_id=ids[0], access_token=ids[1], version=version)
        phone = RegisteringClient(identity, state, os.urandom, schedule=IMPATIENT)
        address = iphone(APP_TOPIC, random.randbytes, fate) if is_iphone else android(random.randbytes, fate)
        device = "iPhone" if is_iphone else "Android"
        shown = Person(name, device, purpose, fault, identity.pub33, chat_key(identity.pub33))
        people.append(Character(shown, phone, SendingClient(identity, os.urandom), address, own))
    return people


def shown() -> list[Person]:
    """Return the people of `manage.py demo` as pages show them."""
    return [each.shown for each in make_people(SEED, version=0)]


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
                    person.sender.follow(other.shown.public_key)

    async def live(self) -> None:
        """Play until cancelled. All people register first, as after installing the app."""
        await asyncio.gather(*(self._register(person) for person in self._people))
        async with asyncio.TaskGroup() as events:
            while True:
                sender, recipient = self._random.sample(self._people, 2)
                if not sender.is_busy:
                    events.create_task(self._act(sender, recipient))
                await asyncio.sleep(self._pause_seconds * self._random.uniform(0.5, 1.5))

    async def _act(self, sender: Character, recipient: Character) -> None:
        sender.is_busy, chance = True, self._random.randrange(100)
        if not sender.is_registered or chance < CHANGES:
            await self._register(sender)
        elif chance < CHANGES + DEPARTURES:
            await self._register(sender, is_leaving=True)
        else:
            await self._write(sender, recipient)
        sender.is_busy = False

    async def _register(self, person: Character, *, is_leaving: bool = False) -> None:
        """Register the phone, or unregister it. This is repeated until the server answers."""
        started = time.monotonic()
        if is_leaving:
            person.phone.unregister()
        else:
            person.phone.change(person.address, person.preferences)
        while True:
            try:
                await self._session.register(person.phone, timeout_seconds=REGISTRATION_SECONDS)
            except RegistrationRefused as refused:
                log.warning("registration_refused", person=person.name, answer=str(refused), ms=_ms_since(started))
                person.is_registered = is_leaving
                return
            except NoAnswer:
                log.warning("registration_unanswered", person=person.name, ms=_ms_since(started))
            except NodeError as error:
                await self._wait_for_node(error)
            else:
                facts = {"device": person.shown.device, "version": person.phone.version, "ms": _ms_since(started)}
                log.info("unregistered" if is_leaving else "registered", person=person.name, **facts)
                person.is_registered = not is_leaving
                return

    async def _write(self, sender: Character, recipient: Character) -> None:
        is_mention, is_fresh = (self._random.randrange(100) < share for share in (MENTIONS, FRESH_QUERIES))
        who, client = {"sender": sender.name, "recipient": recipient.name}, recipient.shown.public_key
        core, message = sender.sender, os.urandom(MESSAGE_BYTES)
        content = core.mention(PUBLIC_CHAT, message) if is_mention else core.one_to_one(message)
        started = time.monotonic()
        try:
            if is_fresh or not core.destinations(client):
                found = await self._session.look_up(core, client)
                answer = f"{len(found)} installation" if found else "not for you"
                log.info("looked_up", **who, answer=answer, ms=_ms_since(started))
            if core.destinations(client):
                started = time.monotonic()
                notified = await self._session.notify(
                    core, client, content, os.urandom(32), timeout_seconds=NOTIFICATION_SECONDS
                )
                outcomes = (settled.outcome for settled in notified.installations)
                answer = ", ".join("success" if each is Outcome.NOTIFIED else each.upper() for each in outcomes)
                log.info("notified", **who, answer=answer, ms=_ms_since(started))
        except NoAnswer as silence:
            log.info("no_answer", **who, reason=str(silence))
        except NodeError as error:
            await self._wait_for_node(error)

    async def _wait_for_node(self, error: NodeError) -> None:
        log.warning("node_away", error=str(error))
        await asyncio.sleep(AWAY_SECONDS)


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
