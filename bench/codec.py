"""Benchmark of the codec: its cost per message, next to the cryptography that it needs.

The floor of a message is its elliptic-curve and cipher work in a bare loop with the same libraries: recoveries and
signatures of digests that are known already, key agreements, AES and HMAC. Keccak, protobuf, dataclasses and topic
names are not part of it: the ratio shows them. Times are CPU times of this process (``time.process_time``), floor and
codec measured in turn, median of the rounds.
"""

import hmac
import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from statistics import median
from time import process_time
from typing import Any, NamedTuple

from coincurve import PrivateKey, PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bench.running.tables import show
from notifications.messages import NotificationType, PushNotification, PushRequest, Report
from registrations.messages import QueryInfo, RegistrationMessage, TokenType
from waku_bridge.codec import envelope
from waku_bridge.codec.keys import ECIES_OVERHEAD_BYTES, DecryptionKey, Identity, shake256, sign_grant
from waku_bridge.codec.wire import PlainBody
from waku_bridge.messages import PushResponse, Query, QueryResponse, RegistrationResponse, WakuMessage

ROUNDS, MESSAGES_PER_ROUND = 30, 100
DECODE_TARGET = 1.6
SERVER, CLIENT, SENDER = (Identity(PrivateKey(bytes([number]) * 32)) for number in (2, 1, 3))
TOPIC_KEY = b"\7" * 32  # deriving a real one costs 15 ms and is never on this path
UUID = "11111111-1111-4111-8111-111111111111"
HASH = shake256(b"a chat")
DIGEST, IV = b"\5" * 32, b"\6" * 16
STAMP: dict[str, Any] = {"timestamp_ns": 1_700_000_000_000_000_000, "random_bytes": os.urandom}
NOTIFICATION = PushNotification(CLIENT.key_hash, UUID, UUID, NotificationType.MESSAGE, HASH, HASH)
GRANT = sign_grant(CLIENT.private_key, SERVER.pub33, UUID)
SHARED: dict[str, Any] = {"access_token": UUID, "grant": GRANT, "enabled": True, "blocked_chat_list": (HASH,) * 5}
REGISTRATION = RegistrationMessage(UUID, 1, TokenType.FIREBASE, "t" * 163, **SHARED)
INFO = QueryInfo(CLIENT.key_hash, UUID, 1, GRANT, UUID)
SIGNATURE = CLIENT.private_key.sign_recoverable(DIGEST, hasher=None)
INNER = AESGCM(TOPIC_KEY).encrypt(IV[:12], b"\0" * 711, None)


class Case(NamedTuple):
    """One message in one direction: the codec's work, and the bare cryptography of the same message."""

    name: str
    work: Callable[[], object]
    floor: Callable[[], object]


def run() -> dict[str, object]:
    """Measure and print all cases. Return the CPU microseconds of codec and floor, and their ratio, for each."""
    results = {case.name: _measure(case) for case in _cases()}
    title = f"Codec, CPU per message (decode target: at most {DECODE_TARGET} x floor)"
    rows = {name: [*figures.values()] for name, figures in results.items()}
    show(title, ("message", "codec us", "floor us", "ratio"), rows)
    return dict(results)


def request_floor() -> Callable[[], object]:
    """Return the bare cryptography of a request and its answer."""
    request, answer = [case.floor for case in _cases() if case.name in {"decode request", "encode response"}]
    return lambda: (request(), answer())


def _measure(case: Case) -> dict[str, float]:
    rounds = [(_microseconds(case.work), _microseconds(case.floor)) for _ in range(ROUNDS)]
    work, floor = (median(column) for column in zip(*rounds, strict=True))
    return {"codec_us": round(work, 1), "floor_us": round(floor, 1), "ratio": round(work / floor, 2)}


def _microseconds(work: Callable[[], object]) -> float:
    started = process_time()
    for _ in range(MESSAGES_PER_ROUND):
        work()
    return (process_time() - started) / MESSAGES_PER_ROUND * 1e6


def _cases() -> list[Case]:
    request = PushRequest(b"\4" * 32, (NOTIFICATION,))
    sealed: dict[str, Any] = {"recipient": SERVER.pub33, **STAMP}
    encode_request = partial(envelope.encode, request, signer=SENDER, **sealed)
    asked = encode_request().message
    registration = envelope.encode(REGISTRATION, signer=CLIENT, **sealed)
    query = envelope.encode(Query((CLIENT.key_hash,)), signer=SENDER, topic_key=TOPIC_KEY, **STAMP)
    return [
        _decoding("decode request", asked, SERVER, _open_request),
        _decoding("decode registration", registration.message, SERVER, _open_registration),
        _decoding("decode query", query.message, TOPIC_KEY, _open_query),
        _replying("encode response", PushResponse(b"\4" * 32, (Report(CLIENT.key_hash, UUID, success=True),))),
        _replying("encode registration response", RegistrationResponse(HASH, success=True)),
        _replying("encode query response", QueryResponse(b"\4" * 32, success=True, info=(INFO,))),
        Case("encode request", encode_request, partial(_seal_signed, len(asked.payload) - ECIES_OVERHEAD_BYTES)),
    ]


def _decoding(name: str, message: WakuMessage, key: DecryptionKey, floor: Callable[[bytes], object]) -> Case:
    work = partial(envelope.decode, message.payload, [key], SERVER)
    return Case(name, work, partial(floor, message.payload))


def _replying(name: str, body: PlainBody) -> Case:
    encode = partial(envelope.encode, body, signer=SERVER, recipient=SENDER.pub33, **STAMP)
    return Case(name, encode, partial(_seal_signed, len(encode().message.payload) - ECIES_OVERHEAD_BYTES))


def _recover(times: int = 1) -> None:
    for _ in range(times):
        PublicKey.from_signature_and_message(SIGNATURE, DIGEST, hasher=None)


def _open_request(payload: bytes) -> None:
    """Open a request: key agreement, MAC, decryption, and two recoveries."""
    shared = PublicKey(payload[:65]).multiply(SERVER.private_key.secret).format()[1:]
    block = sha256(b"\0\0\0\1" + shared).digest()
    hmac.compare_digest(hmac.digest(sha256(block[16:]).digest(), payload[65:-32], "sha256"), payload[-32:])
    Cipher(algorithms.AES(block[:16]), modes.CTR(payload[65:81])).decryptor().update(payload[81:-32])
    _recover(2)


def _open_registration(payload: bytes) -> None:
    """Open a registration: the work of a request, a recovery for the grant, and the inner message."""
    _open_request(payload)
    _recover()
    CLIENT.private_key.public_key.multiply(SERVER.private_key.secret).format()
    AESGCM(TOPIC_KEY).decrypt(IV[:12], INNER, None)


def _open_query(payload: bytes) -> None:
    """Open a query: decryption and two recoveries."""
    AESGCM(TOPIC_KEY).decrypt(payload[-12:], payload[:-12], None)
    _recover(2)


def _seal_signed(frame_bytes: int) -> None:
    """Sign twice and seal a message of this size."""
    SERVER.private_key.sign_recoverable(DIGEST, hasher=None)
    SERVER.private_key.sign_recoverable(DIGEST, hasher=None)
    ephemeral = os.urandom(32)
    shared = PublicKey(SENDER.pub33).multiply(ephemeral).format()[1:]
    block = sha256(b"\0\0\0\1" + shared).digest()
    sealed = Cipher(algorithms.AES(block[:16]), modes.CTR(IV)).encryptor().update(b"\0" * frame_bytes)
    hmac.digest(sha256(block[16:]).digest(), sealed, "sha256")
    PublicKey.from_secret(ephemeral).format(compressed=False)
