"""Who plays in the demonstration: phones of both kinds, and one of each difficulty that servers meet.

The development gorush decides the fate of a push by the prefix of its device token (`dead-`, `flaky1-`).
"""

import os
import uuid
from dataclasses import dataclass
from random import Random

from coincurve import PrivateKey

from registrations.messages import TokenType
from waku_bridge.client import Address, Preferences, RegisteringClient, Schedule, SendingClient, new_state
from waku_bridge.codec.hashes import chat_hash
from waku_bridge.codec.keys import Identity, author_hash

APN_TOPIC = "im.status.ethereum"
# A server that starts at the same moment hears the second call at the latest.
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
    is_busy: bool = False  # does one thing at a time, as people do

    @property
    def public_key(self) -> bytes:
        return self.phone.identity.pub33


def cast(seed: int, *, version: int) -> list[Character]:
    """The same people for the same seed, so that a server finds its old acquaintances when it is started again.

    They have no memory: ``version`` must exceed every version they have used before, as seconds since 1970 do. What
    encryption draws is random whatever the seed.
    """
    random = Random(seed)  # noqa: S311 - the keys of these people guard nothing
    ada, ben, cleo, dan, eva, finn = (Identity(PrivateKey(random.randbytes(32))) for _ in range(6))
    everybody = Preferences(mention_chats=(TOWN_SQUARE,))
    friends = Preferences(contacts_only=True, contacts=(ada.pub33, ben.pub33), mention_chats=(TOWN_SQUARE,))
    undisturbed = Preferences(muted_chats=(author_hash(ada.pub33),), block_mentions=True)
    return [
        _character("Ada", ada, _iphone(random), everybody, random, version),
        _character("Ben", ben, _android(random), everybody, random, version),
        _character("Cleo, who knows Ada and Ben only", cleo, _iphone(random), friends, random, version),
        _character("Dan, who has muted Ada", dan, _android(random), undisturbed, random, version),
        _character("Eva, who has lost her phone", eva, _android(random, "dead-"), everybody, random, version),
        _character("Finn, who is hard to reach", finn, _iphone(random, "flaky1-"), everybody, random, version),
    ]


def _character(
    name: str, identity: Identity, address: Address, preferences: Preferences, random: Random, version: int
) -> Character:
    installation_id, access_token = _uuid(random), _uuid(random)
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


def _iphone(random: Random, fate: str = "") -> Address:
    return Address(TokenType.APN, fate + random.randbytes(32).hex(), APN_TOPIC)


def _android(random: Random, fate: str = "") -> Address:
    return Address(TokenType.FIREBASE, fate + random.randbytes(80).hex())


def _uuid(random: Random) -> str:
    return str(uuid.UUID(bytes=random.randbytes(16), version=4))
