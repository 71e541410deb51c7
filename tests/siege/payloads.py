"""Messages of hostile keys: a mix of all attacks in docs/security.md, each as cheap for its sender as possible."""

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from coincurve import PrivateKey

from notifications.messages import PushNotification, PushRequest
from registrations.messages import RegistrationMessage, TokenType
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import encode, encode_payload
from waku_bridge.codec.keys import Identity, sign_grant
from waku_bridge.messages import MessageType, Query, WakuMessage

APP = "im.status.ethereum"
MAX_NOTIFICATIONS = 100
MAX_REPLAYED = 2000
LARGE_BYTES = 100_000
BUSY_TOKEN = "busy-" + "x" * 147  # the development gorush refuses it as busy, every time
DEAD_TOKEN = "dead-" + "x" * 147
TO_OWN_PHONES = "requests 100 pushes to own phones"
TOMBSTONE = "unregisters an unknown installation"
OWN_PHONES = 100
UNDATED: dict[str, Any] = {"timestamp_ns": 0, "random_bytes": os.urandom}


class Phone(NamedTuple):
    """An installation that can be notified: a hostile one, or a victim whose access token is public."""

    key_hash: bytes
    installation_id: str
    access_token: str


class Payloads:
    """Maker of hostile messages. It draws kinds by weight, from a seed. ``recorded`` are messages of honest clients."""

    def __init__(
        self, server: bytes, victims: Sequence[Phone], recorded: Sequence[WakuMessage], *, keys: int, seed: int
    ) -> None:
        self._random = Random(seed)
        self._server = server
        self._victims = victims
        self._identities = [Identity(PrivateKey(self._random.randbytes(32))) for _ in range(keys)]
        self._recorded = recorded
        self._own: list[Phone] = []
        self._sealed: list[WakuMessage] = []
        self._topic_keys = {v.key_hash: wire.symmetric_key(wire.query_name(v.key_hash)) for v in victims[:8]}
        self._kinds: dict[str, tuple[int, Callable[[], WakuMessage]]] = {
            "registers a phone that is always busy": (6, lambda: self._register(BUSY_TOKEN)),
            "registers a dead token": (4, lambda: self._register(DEAD_TOKEN)),
            "registers the token e": (3, lambda: self._register("e")),
            "registers a topic of 4 KB": (3, lambda: self._register("ab" * 32, app_topic="t" * 4000)),
            "registers on the canary's topic": (2, lambda: self._register("ab" * 32, app_topic="canary")),
            "registers one more installation": (8, lambda: self._register(BUSY_TOKEN, identity=self._identities[0])),
            TOMBSTONE: (8, self._tombstone),
            "requests 100 pushes to nobody": (6, self._ask_for_nobody),
            "requests a push to a victim": (20, self._pester),
            "queries for a victim": (8, self._query),
            "exceeds the limits of the codec": (1, self._exceed_limits),
            "sends unreadable bytes": (8, self._garble),
            "repeats a message": (15, self._replay),
            "repeats a message of an honest client": (10, self._replay_recorded),
            TO_OWN_PHONES: (8, self._fill),  # last, as these are retried for long
        }

    def next(self, part: str = "") -> tuple[str, WakuMessage]:
        """Return the next message and its kind, one with this ``part`` in its name.

        The timestamp is set when it is sent, as it is not part of the sealed bytes.
        """
        weights = {name: weight for name, (weight, _) in self._kinds.items() if part in name}
        [kind] = self._random.choices(list(weights), list(weights.values()))
        needs_phones = kind == TO_OWN_PHONES and len(self._own) < OWN_PHONES
        message = self._register(BUSY_TOKEN) if needs_phones else self._kinds[kind][1]()
        if len(self._sealed) < MAX_REPLAYED:
            self._sealed.append(message)
        return kind, message

    def _somebody(self) -> Identity:
        return self._random.choice(self._identities)

    def _register(self, token: str, *, app_topic: str = "", identity: Identity | None = None) -> WakuMessage:
        identity = identity or self._somebody()
        installation_id, access_token = self._uuid(), self._uuid()
        message = RegistrationMessage(
            installation_id,
            version=1,
            token_type=TokenType.APN if app_topic else TokenType.FIREBASE,
            device_token=token,
            app_topic=app_topic,
            access_token=access_token,
            grant=sign_grant(identity.private_key, self._server, access_token),
            enabled=True,
            allowed_key_list=tuple(os.urandom(64) for _ in range(20)),
        )
        if len(self._own) < 500:
            self._own.append(Phone(identity.key_hash, installation_id, access_token))
        return encode(message, signer=identity, recipient=self._server, **UNDATED).message

    def _tombstone(self) -> WakuMessage:
        message = RegistrationMessage(self._uuid(), version=2**63, unregister=True)
        return encode(message, signer=self._somebody(), recipient=self._server, **UNDATED).message

    def _fill(self) -> WakuMessage:
        return self._ask([self._random.choice(self._own) for _ in range(MAX_NOTIFICATIONS)])

    def _ask_for_nobody(self) -> WakuMessage:
        return self._ask([Phone(os.urandom(64), self._uuid(), self._uuid()) for _ in range(MAX_NOTIFICATIONS)])

    def _pester(self) -> WakuMessage:
        return self._ask([self._victims[0]])

    def _ask(self, phones: Sequence[Phone]) -> WakuMessage:
        pushes = tuple(PushNotification(*phone, 1, b"chat", os.urandom(64), b"hostile") for phone in phones)
        request = PushRequest(os.urandom(32), pushes)
        return encode(request, signer=self._somebody(), recipient=self._server, **UNDATED).message

    def _query(self) -> WakuMessage:
        key_hash, key = self._random.choice(list(self._topic_keys.items()))
        return encode(Query((key_hash,)), signer=self._somebody(), topic_key=key, **UNDATED).message

    def _exceed_limits(self) -> WakuMessage:
        """Return a contact code with thousands of entries. An entry has two bytes, and costs its reader an object."""
        return encode_payload(
            b"\x0a\x00" * (LARGE_BYTES // 2),
            MessageType.QUERY_RESPONSE,
            signer=self._somebody(),
            topic_name=wire.partitioned_name(self._server),
            recipient=self._server,
            **UNDATED,
        ).message

    def _garble(self) -> WakuMessage:
        topic = wire.content_topic(wire.personal_name(self._server))
        return WakuMessage(os.urandom(300), topic, 0)

    def _replay(self) -> WakuMessage:
        """Repeat a message with another timestamp, which makes it another message for Waku."""
        if not self._sealed:
            return self._garble()
        return self._random.choice(self._sealed)

    def _replay_recorded(self) -> WakuMessage:
        return self._random.choice(self._recorded) if self._recorded else self._garble()

    def _uuid(self) -> str:
        digits = self._random.randbytes(16).hex()
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"
