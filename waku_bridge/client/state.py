"""The persistent state of a registering client: plain values, their JSON form, and a file with its private key.

The caller stores it after every step. It is as secret as the private key, because it holds the access token and the
device token.
"""

import json
import os
import uuid
from base64 import b64decode, b64encode, urlsafe_b64encode
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from coincurve import PrivateKey

from registrations.messages import RegistrationMessage, TokenType
from waku_bridge.codec.keys import Identity, RandomBytes
from waku_bridge.messages import RegistrationError

FORMAT = 3


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a device at Apple (``TokenType.APN``, with the app's ``app_topic``) or Google (``FIREBASE``)."""

    token_type: int
    device_token: str = field(repr=False)
    app_topic: str = ""


def iphone(app_topic: str, random_bytes: RandomBytes, fate: str = "") -> Address:
    """Return a made-up address of an iPhone: the prefix ``fate``, and 64 characters.

    The prefix (`dead-`, `flaky1-`) tells the development gateway how to answer a push. Apple's tokens are hex, so it is
    in hex as well.
    """
    return Address(TokenType.APN, fate.encode().hex() + random_bytes(32).hex(), app_topic)


def android(random_bytes: RandomBytes, fate: str = "") -> Address:
    """Return a made-up address of an Android phone: the prefix ``fate``, and 163 characters in Firebase's form."""
    installation, signed = (urlsafe_b64encode(random_bytes(size)).rstrip(b"=").decode() for size in (16, 100))
    return Address(TokenType.FIREBASE, f"{fate}{installation}:APA91b{signed}")


@dataclass(frozen=True, slots=True)
class Preferences:
    """The user's rules: who may notify the device, and about what. Chats are SHAKE-256 hashes (64 bytes).

    With ``contacts_only`` senders get the access token only encrypted for a key in ``contacts`` (33 bytes each), so
    that nobody else can request a push. ``blocked_chats`` has the author hashes of blocked contacts. Messages in
    ``muted_chats`` are not notified, and mentions only in ``mention_chats``.
    """

    enabled: bool = True
    contacts_only: bool = False
    contacts: tuple[bytes, ...] = ()
    block_mentions: bool = False
    blocked_chats: tuple[bytes, ...] = ()
    muted_chats: tuple[bytes, ...] = ()
    mention_chats: tuple[bytes, ...] = ()


class Standing(StrEnum):
    """The state of the current version at a server."""

    PENDING = "pending"  # it was sent or will be, and the server has not answered
    ACCEPTED = "accepted"  # it has taken the version
    REFUSED = "refused"  # it refused, and repeating the same would not help
    GIVEN_UP = "given_up"  # it did not answer any attempt


@dataclass(slots=True)
class ServerState:
    """One server (33 bytes) and the state of its registration. ``request_ids`` (64 bytes each) are of this version.

    At a server that is no longer used (``is_left``), the current version unregisters.
    """

    server: bytes
    is_left: bool = False
    standing: Standing = Standing.PENDING
    error: int = RegistrationError.NONE
    attempts: int = 0
    due_ns: int = 0
    request_ids: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class RegistrationState:
    """One installation. ``version`` is the last one used, and ``current`` its registration without grant (None: none).

    ``current`` is kept with its sealed tokens, because a server recognises a repetition by its bytes. When servers
    refuse the version as too old, it is raised at ``raise_at_ns`` (0: never). ``mismatches`` counts such refusals in a
    row.
    """

    installation_id: str
    servers: list[ServerState]
    access_token: str = field(default="", repr=False)
    version: int = 0
    preferences: Preferences = Preferences()
    current: RegistrationMessage | None = None
    mismatches: int = 0
    raise_at_ns: int = 0
    advertise_at_ns: int = 0


def new_state(
    *servers: bytes, random_bytes: RandomBytes, installation_id: str = "", access_token: str = "", version: int = 0
) -> RegistrationState:
    """Return a new installation that will register with these servers (33 bytes each).

    Without an ``installation_id`` one is drawn. Without an ``access_token`` the first version draws one. ``version``
    must not be below any version that this installation has used.
    """
    slots = [ServerState(server) for server in servers]
    return RegistrationState(installation_id or new_uuid(random_bytes), slots, access_token, version)


def new_uuid(random_bytes: RandomBytes) -> str:
    """Return a random UUID as text. It draws 16 bytes."""
    return str(uuid.UUID(bytes=random_bytes(16), version=4))


# The file of a client -------------------------------------------------------------------------------------------------


class KeepingError(Exception):
    """The file cannot be read or written, or it holds no client. The text is for people and names the file."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The contents of the file."""

    identity: Identity = field(repr=False)
    state: RegistrationState = field(repr=False)


def read(path: Path) -> Kept:
    """Return the client in a file. Raises KeepingError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_hook=_decode)
        key, written = raw.pop("private_key"), raw.pop("format")
        if len(key) != 32 or written != FORMAT:  # the library would pad a shorter key
            raise ValueError("no private key, or another format")  # noqa: TRY301 - as any other fault of the file
        state = RegistrationState(**raw)
        state.servers = [ServerState(**slot | {"standing": Standing(slot["standing"])}) for slot in raw["servers"]]
        state.preferences = Preferences(**_tuples(raw["preferences"]))
        state.current = RegistrationMessage(**_tuples(raw["current"])) if raw["current"] else None
        return Kept(Identity(PrivateKey(key)), state)
    except OSError as error:
        raise KeepingError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The text of a JSON error may quote the file, and with it the key.
        raise KeepingError(f"{path} does not hold a client") from error


def write(path: Path, kept: Kept) -> None:
    """Write a client to a file of mode 600, atomically. Raises KeepingError."""
    content = {"format": FORMAT, "private_key": kept.identity.private_key.secret, **asdict(kept.state)}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(content, stream, default=_encode)
        draft.replace(path)
    except OSError as error:
        raise KeepingError(f"{path} cannot be written: {error.strerror}") from error


def _encode(value: bytes) -> dict[str, str]:
    return {"b64": b64encode(value).decode()}


def _decode(value: dict[str, Any]) -> Any:
    return b64decode(value["b64"]) if value.keys() == {"b64"} else value


def _tuples(value: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
