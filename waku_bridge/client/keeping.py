"""The file of a client: its private key and its persistent state, readable by its owner alone."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from coincurve import PrivateKey

from waku_bridge.client.core import new_identity
from waku_bridge.client.state import RegistrationState, dump_state, load_state
from waku_bridge.codec.keys import Identity

KEY_BYTES = 32


class KeepingError(Exception):
    """The file cannot be read or written, or it holds no client. The text is for people and names the file."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The contents of the file. ``state`` is None until the client registers for the first time."""

    identity: Identity = field(repr=False)
    state: RegistrationState | None = field(default=None, repr=False)


def read(path: Path) -> Kept:
    """Return the client in a file.

    Raises KeepingError.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        key = bytes.fromhex(raw["private_key"])
        if len(key) != KEY_BYTES:  # the library would pad a shorter one
            raise ValueError("no private key")  # noqa: TRY301 - as any other fault of the file
        return Kept(Identity(PrivateKey(key)), load_state(raw["registration"]) if raw["registration"] else None)
    except OSError as error:
        raise KeepingError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        # The text of a JSON error may quote the file, and with it the key.
        raise KeepingError(f"{path} does not hold a client") from error


def read_or_new(path: Path) -> Kept:
    """Return the client in a file, or a client with a new key when there is no file.

    Raises KeepingError.
    """
    return read(path) if path.exists() else Kept(new_identity(os.urandom))


def write(path: Path, kept: Kept) -> None:
    """Write a client to a file of mode 600, atomically.

    Raises KeepingError.
    """
    state = dump_state(kept.state) if kept.state else None
    text = json.dumps({"private_key": kept.identity.private_key.secret.hex(), "registration": state})
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
        draft.replace(path)
    except OSError as error:
        raise KeepingError(f"{path} cannot be written: {error.strerror}") from error
