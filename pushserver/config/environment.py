"""Typed reading of environment variables.

A wrong value never raises here: it is remembered as a problem, a harmless default takes its place, and
`pushserver.checks` reports it with an id and a hint before anything is started.
"""

import base64
import binascii
import os
import re
import secrets
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode

from django.core.checks import Error

from kit.buckets.bucket import Limit
from pushserver.config.data_dir import usable

FIELD_KEY_SIZE_BYTES = 32
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
LIMITS_EACH = 2
_LAKE = re.compile(r"(/|\./|file:|s3a?://|gs://|hdfs://|abfss?://)")
# As browsers take it in a form (HTML standard), with letters of any script in the domain: mail takes all of these.
_MAIL_LABEL = r"[^\W_]([\w-]{0,61}[^\W_])?"
MAIL_ADDRESS = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]+@{_MAIL_LABEL}(\.{_MAIL_LABEL})*")
_PASSWORD = re.compile(r"://[^/@]*:.*@")  # not everybody escapes a slash within it
# `$(NAME)` and `${NAME}`, which not every program that sets an environment replaces, and placeholders of templates.
_UNREPLACED = re.compile(r"\$\([A-Za-z_]\w*\)|\$\{[A-Za-z_]\w*\}|\{\{.*\}\}")
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)
# Host and port. What a shell or a template would have replaced is part of no host.
_HOST = re.compile(r"(?P<host>\[[0-9A-Za-z:.%]+\]|[^\s\[\]:@$(){}<>\"'`\\|^]*)(:(?P<port>\d*))?")
ENCODE = "In user and password write %40 for @, %2F for /, %3F for ?, %23 for #, %25 for %."
MAX_PORT = 65535
TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
# redis-py verifies certificates and names by default, Celery only on demand.
TLS_VERIFIED = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@dataclass(slots=True)
class Environment:
    """Reads ``values`` (name to text) and collects an error of the system checks for each value that is wrong.

    An error never holds the value itself, which may be a secret.
    """

    values: Mapping[str, str]
    problems: list[Error] = field(default_factory=list)
    # Variables whose problem is known: nothing else is said about them.
    _unfinished: set[str] = field(default_factory=set)
    # In production a missing secret stays missing, and a system check says so.
    generate: Callable[[str], str] = lambda _name: ""

    def report(self, name: str, message: str, hint: str) -> None:
        """Remember a problem under the id ``pushserver.<name>``. A name stands for one thing to do.

        ``message`` begins with the variable that is wrong.
        """
        if message.partition(" ")[0] not in self._unfinished:
            self.problems.append(Error(message, hint=hint, id=f"pushserver.{name}"))

    def refuse_unfinished(self, names: Iterable[str]) -> None:
        """Report each variable whose value some other program should have changed: env files of Docker and systemd keep
        what a shell replaces.
        """
        for name in (each for own in names for each in (own, f"{own}_FILE")):
            text = self.text(name)
            if text[:1] in {'"', "'"} and text[1:].endswith(text[0]):
                self.report("quoted_value", f"{name} has quotes around its value.", "Remove them.")
                self._unfinished.add(name)
            elif _UNREPLACED.search(text):
                hint = "Write the value itself: what starts the server does not replace names of variables."
                self.report("unreplaced_variable", f"{name} has the name of a variable in its value.", hint)
                self._unfinished.add(name)

    def refuse_retired(self, retired: Mapping[str, str]) -> None:
        """Report each setting that is given and no longer exists. ``retired`` says what to do instead."""
        for name in sorted(retired.keys() & self.values.keys()):
            self.report("retired_setting", f"{name} is no longer a setting.", retired[name])

    def text(self, name: str, default: str = "") -> str:
        """Return the text without surrounding spaces. An empty one counts as unset."""
        return self.values.get(name, "").strip() or default

    def is_set(self, name: str) -> bool:
        """Return whether the variable has a value, or a file with one. It reports no problem."""
        return bool(Environment(self.values).secret(name))

    def items(self, name: str, default: str = "") -> list[str]:
        """Return the items of a comma list."""
        return self.items_of(self.text(name, default))

    def items_of(self, text: str) -> list[str]:
        """Return the items of a comma list that was read already."""
        return [item.strip() for item in text.split(",") if item.strip()]

    def choice(self, name: str, default: str, *others: str) -> str:
        """Return one of these words, whose case does not matter; anything else is a problem."""
        words = {word.lower(): word for word in (default, *others)}
        if found := words.get(self.text(name, default).lower()):
            return found
        self.report("bad_choice", f"{name} is none of {', '.join(words.values())}.", f"The default is {default}.")
        return default

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return whether the variable is on. Raises nothing: neither on nor off is a problem."""
        text = self.text(name).lower()
        if text in {"", "0", "1", "true", "false", "yes", "no", "on", "off"}:
            return text in {"1", "true", "yes", "on"} if text else default
        self.report("bad_flag", f"{name} is neither on nor off.", "Use 1 or 0.")
        return default

    def number(self, name: str, default: float, *, minimum: float, maximum: float) -> float:
        """Return a number from ``minimum`` to ``maximum``; anything else is a problem."""
        try:
            value = float(self.text(name, str(default)))
        except ValueError:
            value = float("nan")
        if minimum <= value <= maximum:
            return value
        self.report(
            "bad_number", f"{name} is not a number between {minimum:g} and {maximum:g}.", f"The default is {default:g}."
        )
        return default

    def count(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        """Return a whole number from ``minimum`` to ``maximum``; anything else is a problem."""
        return int(self.number(name, default, minimum=minimum, maximum=maximum))

    def limits(self, name: str, default: str) -> tuple[Limit, ...]:
        """Return two limits, one for bursts and one for the long run, given as ``count/seconds,count/seconds``."""
        for text in (self.text(name, default), default):
            found = [re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,5})", item) for item in self.items_of(text)]
            limits = tuple(Limit(int(match[1]), float(match[2])) for match in found if match)
            if len(limits) == len(found) == LIMITS_EACH and limits[0].seconds < limits[1].seconds:
                return limits
            self.report("bad_limits", f"{name} is not two limits.", f"The default is {default}: count/seconds, twice.")
        return ()

    def headers(self, name: str) -> dict[str, str]:
        """Return headers of HTTP, given as ``name=value,name=value`` with values as in a URL. They may be secret."""
        items = [item.partition("=") for item in self.items_of(self.secret(name))]
        if all(key.strip() and value for key, _, value in items):
            return {key.strip(): unquote(value.strip()) for key, _, value in items}
        self.report("bad_headers", f"{name} holds what is no header.", "Example: authorization=Bearer%20abc")
        return {}

    def urls(self, name: str, default: str = "") -> list[str]:
        """Return a comma list of http(s) base URLs, without their trailing slashes."""
        urls = [url.rstrip("/") for url in self.items(name, default)]
        if all(_is_http_url(url) and not {"?", "#"} & {*url} for url in urls) and (urls or not self.text(name)):
            return urls
        # A user or password is refused because the URLs of peers appear in logs, metrics and the console.
        self.report("bad_urls", f"{name} is not a comma list of plain http(s) URLs.", "Example: http://127.0.0.1:8645")
        return []

    def redis_url(self, name: str) -> str:
        """Return the URL of a Redis, which is secret, or an empty text. With TLS it makes every library verify the
        certificate and the name of the server.
        """
        if not (url := self.secret(name)):
            return ""
        if wrong := wrong_in_url(url, ("redis", "rediss")) or _wrong_in_redis_url(url):
            self.report(
                "bad_redis_url", f"{name} {wrong}.", f"Example: redis://user:password@127.0.0.1:6379/0. {ENCODE}"
            )
            return ""
        base, _, options = url.partition("?")
        return url if base.startswith("redis:") else f"{base}?{urlencode(dict(parse_qsl(options)) | TLS_VERIFIED)}"

    def refuse_unreadable_certificates(self) -> None:
        """Report a file of authorities that cannot be read. OpenSSL, which reads the variable itself, ignores that."""
        if (path := self.text("SSL_CERT_FILE")) and not _are_certificates(path):
            self.report(
                "bad_certificates",
                "SSL_CERT_FILE names no file with certificates that can be read.",
                "It holds the certificates of authorities in PEM: -----BEGIN CERTIFICATE-----",
            )

    def targets(self, name: str) -> list[str]:
        """Return the mail addresses and URLs of webhooks of a comma list, which is secret. An item that is neither is a
        problem.
        """
        targets = self.items_of(self.secret(name))
        if all(_is_http_url(target) or MAIL_ADDRESS.fullmatch(target) for target in targets):
            return targets
        hint = "Example: ann@example.org,https://hooks.example.org/abc"
        self.report("bad_targets", f"{name} holds what is neither a mail address nor an http(s) URL.", hint)
        return []

    def domain(self, name: str) -> str:
        """Return one domain in lower case; a user or a resource beside it is a problem."""
        return next(iter(self.domains(name, at_most=1)), "")

    def domains(self, name: str, *, at_most: int = 1000) -> list[str]:
        """Return the domains of a comma list in lower case, as they are in the DNS."""
        domains = [domain.lower().removesuffix(".") for domain in self.items(name)]
        if len(domains) <= at_most and all(_DOMAIN.fullmatch(domain) for domain in domains):
            return domains
        self.report(
            "bad_domain",
            f"{name} holds what is no domain, or too many.",
            "Example: example.org, and xn--… for one beyond ASCII.",
        )
        return []

    def lake(self, name: str, default: str) -> str:
        """Return a path, or a URL that Spark reads.

        It may hold no password, as it appears in commands, logs and errors.
        """
        text = self.text(name, default)
        if not _LAKE.match(text):
            self.report(
                "bad_lake",
                f"{name} is neither a path nor a URL that Spark reads.",
                "Example: s3a://bucket/push-reports",
            )
        elif _PASSWORD.search(text):
            self.report(
                "password_in_lake", f"{name} has a password in it.", "Set what the store's own client reads, as AWS_…."
            )
        else:
            return text
        return default

    def secret(self, name: str) -> str:
        """Return the value of ``NAME``, or the content of the file that ``NAME_FILE`` names, unless that is empty."""
        path = self.text(f"{name}_FILE")
        if not path:
            return self.text(name)
        try:
            return Path(path).read_text(encoding="utf-8").strip() or self.text(name)
        except (OSError, UnicodeDecodeError):
            self.report(
                "unreadable_secret_file",
                f"{name}_FILE names a file that cannot be read.",
                "Check the path and its permissions.",
            )
            return ""

    def private_key(self, name: str) -> bytes:
        """Return the 32 bytes of a secp256k1 private key given as 64 hex digits, or b"" when it is wrong."""
        if key := _decode_private_key(self.secret(name) or self.generate(name)):
            return key
        self.report(
            "bad_private_key",
            f"{name} is not a private key.",
            "Set 64 hex digits, for example from `openssl rand -hex 32`.",
        )
        return b""

    def private_keys(self, name: str) -> list[bytes]:
        """Return the keys of a comma list of such private keys, which may be empty."""
        keys = [_decode_private_key(item) for item in self.items_of(self.secret(name))]
        if all(keys):
            return keys
        self.report(
            "bad_private_keys",
            f"{name} is not a comma list of private keys.",
            "Each is 64 hex digits, as SERVER_PRIVATE_KEY.",
        )
        return []

    def field_keys(self, name: str) -> list[bytes]:
        """Return the keys of a comma list of 32-byte keys in url-safe base64.

        The first encrypts, all of them decrypt.
        """
        keys = [_decode_key(item) for item in self.items_of(self.secret(name) or self.generate(name))]
        if keys and all(keys):
            return keys
        self.report(
            "bad_field_keys",
            f"{name} is not a comma list of 32-byte keys in url-safe base64.",
            "Make one: python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())'",
        )
        return []


def is_near(host: str) -> bool:
    """Return whether a host is this machine, so that what is sent there crosses no network."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def wrong_in_url(url: str, schemes: Collection[str]) -> str:
    """Return why libraries would misread a URL of a server, or an empty text. It quotes no part of the URL.

    Where a password has an unencoded character they disagree about its end, and log the rest of it as a host.
    """
    found = _URL.fullmatch(url)
    if not found or found["scheme"] not in schemes:
        return f"does not begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        return "has a space or a line break in it"
    user, _, hosts = found["authority"].rpartition("@")
    if {"@", "[", "]"} & {*user} or "@" in found["path"] or "#" in found["rest"]:
        return "has a character in its user or password that must be encoded"
    return "" if all(map(_is_host, hosts.split(","))) else "has no host, or no port from 1 to 65535 behind a host"


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (not found["port"] or 0 < int(found["port"]) <= MAX_PORT)


def _wrong_in_redis_url(url: str) -> str:
    """Return why Redis could not be used as the URL says, or would be used without verifying who it is."""
    base, _, query = url.partition("?")
    scheme, _, path = base.partition("://")[0], *base.partition("://")[2].partition("/")[1:]
    if not re.fullmatch(r"\d{0,5}", path):
        return "has no number of a database at its end"
    options = dict(parse_qsl(query, keep_blank_values=True))
    files = [options.pop(name) for name in TLS_FILES & options.keys()]
    if (scheme == "redis" and query) or not options.items() <= TLS_VERIFIED.items():
        return f"has an option other than {', '.join(sorted(TLS_FILES))} of rediss://, whose server is always verified"
    return "" if all(os.access(file, os.R_OK) for file in files) else "names a file that cannot be read"


def _are_certificates(path: str) -> bool:
    try:
        ssl.create_default_context(cafile=path)
    except OSError:  # an SSLError is one, too
        return False
    return True


def _is_http_url(url: str) -> bool:
    found = _URL.fullmatch(url)
    if not found or found["scheme"] not in {"http", "https"} or re.search(r"[\s\x00-\x1f\x7f]", url):
        return False
    return found["authority"][:1] not in {"", ":"} and _is_host(found["authority"])


def _decode_private_key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return b""
    return key if len(key) == FIELD_KEY_SIZE_BYTES and 0 < int.from_bytes(key) < SECP256K1_ORDER else b""


def _decode_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    return key if len(key) == FIELD_KEY_SIZE_BYTES else b""


class GeneratedSecrets:
    """Makes up secrets for development and keeps each in a file of mode 600, so that a restart finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> str:
        path = self.folder / name.lower()
        with usable(self.folder.parent):
            if not path.exists():
                self._write_once(path, _GENERATORS[name]())
            return path.read_text(encoding="ascii").strip()

    def _write_once(self, path: Path, value: str) -> None:
        """Write the secret unless another process has done so.

        Several processes may start at once: the first to link its file wins, and the others read it.
        """
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
