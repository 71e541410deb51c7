"""The people of the demonstration: phones of both kinds, and one for each difficulty that servers meet.

The device token of a phone decides the outcome of its pushes: see `addresses`.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from coincurve import PrivateKey

from pushserver.start.demonstration import Person
from registrations.messages import TokenType
from waku_bridge.client import (
    Address,
    Preferences,
    RegisteringClient,
    Schedule,
    SendingClient,
    android,
    iphone,
    new_state,
)
from waku_bridge.codec.keys import Identity, author_hash, chat_hash, chat_key

# The seed of `manage.py demo`.
SEED = 1
APP_TOPIC = "im.status.ethereum"
# A server that starts at the same moment receives the second message at the latest.
IMPATIENT = Schedule(base_seconds=1.0, max_attempts=12)
PUBLIC_CHAT = chat_hash("demo-town-square")


@dataclass(slots=True)
class Character:
    """One person with one phone. ``device`` is for the log, and ``purpose`` is what the person shows.

    ``fault`` is the staged fault of the phone, and empty where there is none.
    """

    name: str
    device: str
    purpose: str
    fault: str
    phone: RegisteringClient
    sender: SendingClient
    address: Address
    preferences: Preferences
    is_registered: bool = False
    is_busy: bool = False  # the person does one thing at a time

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
    an_iphone, an_android = partial(iphone, APP_TOPIC, random.randbytes), partial(android, random.randbytes)
    ada, ben, cleo, dan, eva, finn = (Identity(PrivateKey(random.randbytes(32))) for _ in range(6))
    everybody = Preferences(mention_chats=(PUBLIC_CHAT,))
    friends = Preferences(contacts_only=True, contacts=(ada.pub33, ben.pub33), mention_chats=(PUBLIC_CHAT,))
    undisturbed = Preferences(muted_chats=(author_hash(ada.pub33),), block_mentions=True)
    people = [
        ("Ada", ada, an_iphone(), everybody),
        ("Ben", ben, an_android(), everybody),
        ("Cleo, who knows Ada and Ben only", cleo, an_iphone(), friends),
        ("Dan, who has muted Ada", dan, an_android(), undisturbed),
        ("Eva, who has lost her phone", eva, an_android("dead-"), everybody),
        ("Finn, who is hard to reach", finn, an_iphone("flaky1-"), everybody),
    ]
    return [_character(*person, random=random, version=version) for person in people]


# For each person: its purpose, and the staged fault of its phone.
_PURPOSES = {
    "Ada": "an iPhone that gets its pushes: timelines from the envelope to the reply",
    "Ben": "an Android phone that gets its pushes",
    "Cleo": "gives her access token to contacts only: nobody else can push to her",
    "Dan": "wants no mentions and nothing of Ada: see the wish that suppresses a push",
    "Eva": "a dead token: her route is disabled with the first push, and active again when she registers",
    "Finn": "retries: his timelines have two attempts",
}
_FAULTS = {"Eva": "the token is dead", "Finn": "the first attempt of every push fails"}


def shown() -> list[Person]:
    """Return the people of `manage.py demo` as pages show them."""
    return [
        Person(each.name, each.device, each.purpose, each.fault, each.public_key, each.chat_key)
        for each in make_people(SEED, version=0)
    ]


def introduce(people: Iterable[Character]) -> Iterator[str]:
    """Yield a line about each person: the chat key to find it by, its purpose, and the staged fault."""
    for person in people:
        staged = f" STAGED FAULT: {person.fault}." if person.fault else ""
        yield f"{person.name} ({person.device}): {person.purpose}.{staged} Chat key: {person.chat_key}"


def _character(
    name: str, identity: Identity, address: Address, preferences: Preferences, *, random: Random, version: int
) -> Character:
    first_name = name.partition(",")[0]
    installation_id = _uuid(random)  # drawn first: the same seed gives the same people
    access_token = _uuid(random)
    state = new_state(
        random_bytes=os.urandom, installation_id=installation_id, access_token=access_token, version=version
    )
    return Character(
        name=name,
        device="iPhone" if address.token_type == TokenType.APN else "Android",
        purpose=_PURPOSES[first_name],
        fault=_FAULTS.get(first_name, ""),
        phone=RegisteringClient(identity, state, os.urandom, schedule=IMPATIENT),
        sender=SendingClient(identity, os.urandom),
        address=address,
        preferences=preferences,
    )


def _uuid(random: Random) -> str:
    return str(uuid.UUID(bytes=random.randbytes(16), version=4))
