"""The people of the demonstration: phones of both kinds, and one for each difficulty that servers meet.

What becomes of their pushes is written in their device tokens, see `addresses`.
"""

import os
import uuid
from dataclasses import dataclass
from functools import partial
from random import Random

from coincurve import PrivateKey

from registrations.messages import TokenType
from waku_bridge.client import Address, Preferences, RegisteringClient, Schedule, SendingClient, new_state
from waku_bridge.client.addresses import android, iphone
from waku_bridge.codec.hashes import chat_hash
from waku_bridge.codec.keys import Identity, author_hash

APN_TOPIC = "im.status.ethereum"
# A server that starts at the same moment has received the second message at the latest.
IMPATIENT = Schedule(base_seconds=1.0, max_attempts=12)
TOWN_SQUARE = chat_hash("demo-town-square")


@dataclass(slots=True)
class Character:
    """One person with one phone. ``device`` is for the log."""

    name: str
    device: str
    phone: RegisteringClient
    sender: SendingClient
    address: Address
    preferences: Preferences
    is_registered: bool = False
    is_busy: bool = False  # the person does one thing at a time

    @property
    def public_key(self) -> bytes:
        return self.phone.identity.pub33


def cast(seed: int, *, version: int) -> list[Character]:
    """Return the same people for the same seed, so that a server that is started again knows them.

    They have no memory: ``version`` must exceed every version they have used before, as seconds since 1970 do. What
    encryption draws is random whatever the seed.
    """
    random = Random(seed)  # noqa: S311 - these keys guard nothing
    an_iphone, an_android = partial(iphone, APN_TOPIC, random.randbytes), partial(android, random.randbytes)
    ada, ben, cleo, dan, eva, finn = (Identity(PrivateKey(random.randbytes(32))) for _ in range(6))
    everybody = Preferences(mention_chats=(TOWN_SQUARE,))
    friends = Preferences(contacts_only=True, contacts=(ada.pub33, ben.pub33), mention_chats=(TOWN_SQUARE,))
    undisturbed = Preferences(muted_chats=(author_hash(ada.pub33),), block_mentions=True)
    return [
        _character("Ada", ada, an_iphone(), everybody, random, version),
        _character("Ben", ben, an_android(), everybody, random, version),
        _character("Cleo, who knows Ada and Ben only", cleo, an_iphone(), friends, random, version),
        _character("Dan, who has muted Ada", dan, an_android(), undisturbed, random, version),
        _character("Eva, who has lost her phone", eva, an_android("dead-"), everybody, random, version),
        _character(
            "Finn, who is hard to reach",
            finn,
            an_iphone("flaky1-"),
            everybody,
            random,
            version,
        ),
    ]


def _character(
    name: str, identity: Identity, address: Address, preferences: Preferences, random: Random, version: int
) -> Character:
    installation_id = _uuid(random)  # drawn first: the same seed gives the same people
    access_token = _uuid(random)
    state = new_state(
        random_bytes=os.urandom, installation_id=installation_id, access_token=access_token, version=version
    )
    return Character(
        name=name,
        device="iPhone" if address.token_type == TokenType.APN else "Android",
        phone=RegisteringClient(identity, state, os.urandom, schedule=IMPATIENT),
        sender=SendingClient(identity, os.urandom),
        address=address,
        preferences=preferences,
    )


def _uuid(random: Random) -> str:
    return str(uuid.UUID(bytes=random.randbytes(16), version=4))
