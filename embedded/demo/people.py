"""The people of the demonstration: phones of both kinds, and one for each difficulty that servers meet.

They register, look each other up, notify, leave and return. Every line of the log has the people, the server's answer
and the milliseconds until it came. None has a token. The device token of a phone decides the outcome of its pushes: see
`waku_bridge.client.state`.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import structlog
from coincurve import PrivateKey

from waku_bridge.client.core import Schedule
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import Session, SessionError
from waku_bridge.client.state import Address, Preferences, android, iphone, new_state
from waku_bridge.codec.keys import Identity, author_hash, chat_hash, chat_key
from waku_bridge.dialect import NodeError

# The seed of `manage.py demo`.
SEED = 1
APP_TOPIC = "im.status.ethereum"
# A server that starts at the same moment receives the second message at the latest.
IMPATIENT = Schedule(base_seconds=1.0, max_attempts=12)
PUBLIC_CHAT = chat_hash("demo-town-square")
# Longer than three servers may take to answer. While a request backs off from an internal error, its person is busy.
ANSWER_SECONDS = 12.0
MESSAGE_BYTES = 200
# Shares of these kinds of events, in percent.
CHANGES, DEPARTURES, MENTIONS = 8, 4, 18

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


@dataclass(frozen=True, slots=True)
class Person:
    """A person as pages show them. ``fault`` names the staged fault, and is empty without one."""

    name: str
    device: str
    purpose: str
    fault: str
    public_key: bytes  # compressed, 33 bytes
    chat_key: str


@dataclass(frozen=True, slots=True)
class Character:
    """One person with one phone, and what pages show of them."""

    shown: Person
    phone: RegisteringClient
    sender: SendingClient
    address: Address
    preferences: Preferences


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


async def play(
    session: Session, server: bytes, people: Sequence[Character], *, seed: int, pause_seconds: float
) -> None:
    """Have everybody register, and then act until cancelled. ``pause_seconds`` is the average time between two events.

    The seed decides who acts on whom, and the network decides when.
    """
    random, average = Random(seed), pause_seconds * len(people)  # noqa: S311 - chooses who writes to whom

    async def live(person: Character) -> None:
        person.phone.use([server])
        others = [other.shown for other in people if other is not person]
        while True:
            try:
                await _act(session, person, random.choice(others), chance=random.randrange(100))
            except (SessionError, NodeError) as error:
                log.warning("action_failed", person=person.shown.name, reason=str(error))
            await asyncio.sleep(average * random.uniform(0.5, 1.5))

    async with asyncio.TaskGroup() as group:
        for person in people:
            group.create_task(live(person))


async def _act(session: Session, person: Character, other: Person, *, chance: int) -> None:
    if person.phone.advertisement() is None or chance < CHANGES:
        person.phone.change(person.address, person.preferences)
        await _register(session, person, "registered")
    elif chance < CHANGES + DEPARTURES:
        person.phone.unregister()
        await _register(session, person, "unregistered")
    else:
        await _write(session, person, other, is_mention=chance >= 100 - MENTIONS)


async def _register(session: Session, person: Character, event: str) -> None:
    started, facts = time.monotonic(), {"person": person.shown.name, "device": person.shown.device}
    await session.register(person.phone, timeout_seconds=ANSWER_SECONDS)
    log.info(event, **facts, version=person.phone.version, ms=_ms_since(started))


async def _write(session: Session, person: Character, other: Person, *, is_mention: bool) -> None:
    who, core = {"sender": person.shown.name, "recipient": other.name}, person.sender
    started = time.monotonic()
    found = await session.look_up(core, other.public_key)
    log.info("looked_up", **who, answer=f"{len(found)} installation", ms=_ms_since(started))
    if found:  # otherwise the sender is no contact
        started, message = time.monotonic(), os.urandom(MESSAGE_BYTES)
        content = core.mention(PUBLIC_CHAT, message) if is_mention else core.one_to_one(message)
        sending = session.notify(core, other.public_key, content, os.urandom(32), timeout_seconds=ANSWER_SECONDS)
        answers = {settled.outcome for settled in (await sending).installations}
        log.info("notified", **who, answer=", ".join(answers), ms=_ms_since(started))


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
