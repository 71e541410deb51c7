"""Typed reading of environment variables.

A wrong value never raises here: it is remembered as a problem, a harmless default takes its place, and
`pushserver.checks` reports it with an id and a hint before anything is started.
"""

import base64
import binascii
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

FIELD_KEY_SIZE_BYTES = 32
_LAKE = re.compile(r"(/|\./|file:|s3a?://|gs://|hdfs://|abfss?://)")
_PASSWORD = re.compile(r"://[^/@]*:.*@")  # a slash within it is not escaped by everybody
SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong or missing setting. Never holds the value itself: it may be a secret."""

    id: str
    message: str
    hint: str


@dataclass(slots=True)
class Environment:
    """Reads ``values`` (name to text) and collects a `Problem` for each value that is wrong."""

    values: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)

    def report(self, number: int, message: str, hint: str) -> None:
        self.problems.append(Problem(f"pushserver.E{number:03}", message, hint))

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, "").strip() or default

    def items(self, name: str, default: str = "") -> list[str]:
        return [item.strip() for item in self.text(name, default).split(",") if item.strip()]

    def flag(self, name: str, *, default: bool = False) -> bool:
        text = self.text(name).lower()
        if text in {"", "0", "1", "true", "false", "yes", "no", "on", "off"}:
            return text in {"1", "true", "yes", "on"} if text else default
        self.report(1, f"{name} is neither on nor off.", "Use 1 or 0.")
        return default

    def number(self, name: str, default: float, *, minimum: float, maximum: float) -> float:
        try:
            value = float(self.text(name, str(default)))
        except ValueError:
            value = float("nan")
        if minimum <= value <= maximum:
            return value
        self.report(2, f"{name} is not a number between {minimum:g} and {maximum:g}.", f"The default is {default:g}.")
        return default

    def count(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        return int(self.number(name, default, minimum=minimum, maximum=maximum))

    def urls(self, name: str, default: str = "") -> list[str]:
        """A comma list of http(s) base URLs, without their trailing slashes."""
        urls = [url.rstrip("/") for url in self.items(name, default)]
        if all(_is_http_url(url) for url in urls):
            return urls
        # Without user and password: the URLs of peers stand in logs, metrics and the console.
        self.report(3, f"{name} is not a comma list of plain http(s) URLs.", "Example: http://127.0.0.1:8645")
        return []

    def lake(self, name: str, default: str) -> str:
        """A path, or a URL that Spark reads. Without a password: it stands in commands, logs and errors."""
        text = self.text(name, default)
        if not _LAKE.match(text):
            self.report(
                15, f"{name} is neither a path nor a URL that Spark reads.", "Example: s3a://bucket/push-reports"
            )
        elif _PASSWORD.search(text):
            self.report(25, f"{name} has a password in it.", "Set what the store's own client reads, as AWS_….")
        else:
            return text
        return default

    def secret(self, name: str) -> str:
        """The value of ``NAME``, or the content of the file that ``NAME_FILE`` names."""
        path = self.text(f"{name}_FILE")
        if not path:
            return self.text(name)
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            self.report(4, f"{name}_FILE names a file that cannot be read.", "Check the path and its permissions.")
            return ""

    def private_key(self, name: str, generate: Callable[[str], str]) -> bytes:
        """A secp256k1 private key of 64 hex digits; 32 bytes, or b"" when it is wrong."""
        text = self.secret(name) or generate(name)
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) == FIELD_KEY_SIZE_BYTES and 0 < int.from_bytes(key) < SECP256K1_ORDER:
            return key
        self.report(5, f"{name} is not a private key.", "Set 64 hex digits, for example from `openssl rand -hex 32`.")
        return b""

    def field_keys(self, name: str, generate: Callable[[str], str]) -> list[bytes]:
        """A comma list of 32-byte keys in url-safe base64. The first encrypts, all decrypt."""
        texts = [item.strip() for item in (self.secret(name) or generate(name)).split(",") if item.strip()]
        keys = [_decode_key(text) for text in texts]
        if keys and all(keys):
            return keys
        self.report(
            6,
            f"{name} is not a comma list of 32-byte keys in url-safe base64.",
            "Make one: python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())'",
        )
        return []


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        return False


def _decode_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    return key if len(key) == FIELD_KEY_SIZE_BYTES else b""


class GeneratedSecrets:
    """Secrets made up for development and kept in a folder, one file of mode 600 each, so that a restart finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> str:
        path = self.folder / name.lower()
        if not path.exists():
            self._write_once(path, _GENERATORS[name]())
        return path.read_text(encoding="ascii").strip()

    def _write_once(self, path: Path, value: str) -> None:
        """Several processes may start at once: the first to link its file wins, the others read it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(value, encoding="ascii")
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()


_GENERATORS: dict[str, Callable[[], str]] = {
    "SECRET_KEY": lambda: secrets.token_urlsafe(50),
    "SERVER_PRIVATE_KEY": lambda: (1 + secrets.randbelow(SECP256K1_ORDER - 1)).to_bytes(32).hex(),
    "FIELD_ENCRYPTION_KEYS": lambda: base64.urlsafe_b64encode(secrets.token_bytes(FIELD_KEY_SIZE_BYTES)).decode(),
}


def no_generation(name: str) -> str:  # noqa: ARG001 - the signature of GeneratedSecrets
    """In production a missing secret stays missing, and a system check says so."""
    return ""
