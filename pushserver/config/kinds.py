"""Kinds of settings: how the text of a variable becomes a value, and what is said about one that is none.

A reader raises ValueError. Nothing that is said quotes the text, which may be a secret.
"""

import base64
import os
import re
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from kit.buckets.bucket import Limit

T = TypeVar("T")
KEY_BYTES = 32
SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
MAX_PORT, MAX_DOMAINS, LIMITS_EACH = 65535, 1000, 2
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_LAKE = re.compile(r"(/|\./|file:|s3a?://|gs://|hdfs://|abfss?://)")
# As browsers take it in a form (HTML standard), with letters of any script in the domain: mail takes all of these.
_MAIL_LABEL = r"[^\W_]([\w-]{0,61}[^\W_])?"
MAIL_ADDRESS = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]+@{_MAIL_LABEL}(\.{_MAIL_LABEL})*")
_PASSWORD = re.compile(r"://[^/@]*:.*@")  # not everybody escapes a slash within it
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)
# Host and port. What a shell or a template would have replaced is part of no host.
_HOST = re.compile(r"(?P<host>\[[0-9A-Za-z:.%]+\]|[^\s\[\]:@$(){}<>\"'`\\|^]*)(:(?P<port>\d{0,5}))?")
ENCODE = "In user and password write %40 for @, %2F for /, %3F for ?, %23 for #, %25 for %."
TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
# redis-py verifies certificates and names by default, Celery only on demand.
TLS_VERIFIED = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}


# What is said behind the name of a variable, by the id of the problem, and what to do. Without that it is the default.
PROBLEMS = {
    "bad_certificates": (
        "names no file with certificates that can be read",
        "It holds the certificates of authorities in PEM: -----BEGIN CERTIFICATE-----",
    ),
    "bad_domain": ("holds what is no domain, or too many", "Example: example.org, and xn--… for one beyond ASCII."),
    "bad_driver_memory": ("is no size as Java reads it", "Example: 2g"),
    "bad_email_address": ("holds no address", "Example: ann@example.org,bob@example.org"),
    "bad_field_keys": (
        "is not a comma list of 32-byte keys in url-safe base64",
        "Make one: python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())'",
    ),
    "bad_flag": ("is neither on nor off", "Use 1 or 0."),
    "bad_headers": ("holds what is no header", "Example: authorization=Bearer%20abc"),
    "bad_hook_secret": (
        "is not 32 to 200 letters, digits, - or _",
        "Make one: openssl rand -hex 32. gorush drops a header with a second colon without a word.",
    ),
    "bad_lake": ("is neither a path nor a URL that Spark reads", "Example: s3a://bucket/push-reports"),
    "bad_limits": ("is not two limits", "Example: 30/10,600/3600 (count/seconds, twice)."),
    "bad_metrics_token": (
        "is not 16 to 200 letters, digits or ._~+/-",
        "Make one: openssl rand -hex 32. It is secret.",
    ),
    "bad_private_key": ("is not a private key", "Set 64 hex digits, for example from `openssl rand -hex 32`."),
    "bad_private_keys": ("is not a comma list of private keys", "Each is 64 hex digits, as SERVER_PRIVATE_KEY."),
    "bad_pubsub_topic": ("holds a name that is no shard", "Example: /waku/2/rs/16/32"),
    "bad_spark_master": (
        "is no master that Spark knows",
        "Example: local[*], spark://host:7077, or sc://host:15002 for Spark Connect",
    ),
    "bad_targets": (
        "holds what is neither a mail address nor an http(s) URL",
        "Example: ann@example.org,https://hooks.example.org/abc",
    ),
    "bad_trace_page": ("is no URL with {trace_id} in it", "Example: https://jaeger.example.org/trace/{trace_id}"),
    "bad_urls": ("is not a comma list of plain http(s) URLs", "Example: http://127.0.0.1:8645"),
    "missing_secret_key": ("is not set", "Set a long random text, for example from `openssl rand -base64 48`."),
}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of settings: what a value looks like (Markdown), its reader, and the problem with any other text."""

    looks: str
    read: Callable[[str], T]
    problem: str = ""


class WrongError(ValueError):
    """A problem that is said in words of its own, and is about another variable if it has a ``name``."""

    def __init__(self, problem: str, words: str, hint: str = "", name: str = "") -> None:
        super().__init__(problem)
        self.problem, self.words, self.hint, self.name = problem, words, hint, name


def is_near(host: str) -> bool:
    """Return whether a host is this machine, so that what is sent there crosses no network."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def _only_if(is_right: object, value: T) -> T:
    if not is_right:
        raise ValueError
    return value


# Texts and lists ------------------------------------------------------------------------------------------------------
def items_of(text: str) -> list[str]:
    """Return the items of a comma list."""
    return [item.strip() for item in text.split(",") if item.strip()]


def matching(pattern: str, looks: str, problem: str) -> Kind[str]:
    """Return the kind of a text that matches in full, or is empty."""
    return Kind(looks, lambda text: _only_if(not text or re.fullmatch(pattern, text), text), problem)


def each(is_one: Callable[[str], object], looks: str, problem: str) -> Kind[list[str]]:
    """Return the kind of a comma list of such items."""

    def read(text: str) -> list[str]:
        items = items_of(text)
        return _only_if(all(map(is_one, items)), items)

    return Kind(looks, read, problem)


def word(*words: str) -> Kind[str]:
    """Return the kind of one of these words, whose case does not matter."""
    by_case = {word.lower(): word for word in words}
    *first, last = (f"`{word}`" for word in words)

    def read(text: str) -> str:
        if text.lower() not in by_case:
            raise WrongError("bad_choice", f"is none of {', '.join(words)}")
        return by_case[text.lower()]

    return Kind(f"{', '.join(first)} or {last}", read)


TEXT: Kind[str] = Kind("text", str)
ITEMS: Kind[list[str]] = Kind("comma list", items_of)


# Numbers --------------------------------------------------------------------------------------------------------------
def number(minimum: float, maximum: float) -> Kind[float]:
    """Return the kind of a number with these bounds."""

    def read(text: str) -> float:
        try:
            return _only_if(minimum <= float(text) <= maximum, float(text))
        except ValueError:
            wrong = f"is not a number between {minimum:g} and {maximum:g}"
            raise WrongError("bad_number", wrong) from None

    return Kind(f"{minimum:.12g} to {maximum:.12g}", read)


def count(minimum: int, maximum: int) -> Kind[int]:
    """Return the kind of a whole number with these bounds."""
    any_number = number(minimum, maximum)
    return Kind(any_number.looks, lambda text: int(any_number.read(text)))


def _flag(text: str) -> bool:
    is_on = text.lower() in {"1", "true", "yes", "on"}
    return _only_if(is_on or text.lower() in {"0", "false", "no", "off"}, is_on)


def _limits(text: str) -> tuple[Limit, ...]:
    found = [re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,5})", item) for item in items_of(text)]
    limits = tuple(Limit(int(match[1]), float(match[2])) for match in found if match)
    return _only_if(len(limits) == len(found) == LIMITS_EACH and limits[0].seconds < limits[1].seconds, limits)


FLAG = Kind("`0` or `1`", _flag, "bad_flag")
LIMITS = Kind("limits", _limits, "bad_limits")


# Addresses ------------------------------------------------------------------------------------------------------------
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


def _is_http_url(url: str) -> bool:
    found = _URL.fullmatch(url)
    if not found or found["scheme"] not in {"http", "https"} or re.search(r"[\s\x00-\x1f\x7f]", url):
        return False
    return found["authority"][:1] not in {"", ":"} and _is_host(found["authority"])


def _urls(text: str) -> list[str]:
    """Return base URLs without their trailing slashes. They hold no user and no password, as the URLs of peers appear
    in logs, metrics and the console.
    """
    urls = [url.rstrip("/") for url in items_of(text)]
    return _only_if(all(_is_http_url(url) and not {"?", "#"} & {*url} for url in urls) and (urls or not text), urls)


def _database_url(text: str) -> str:
    """Return a URL that libpq takes, with the name of a database."""
    wrong = wrong_in_url(text, ("postgresql", "postgres"))
    try:
        wrong = wrong or ("" if conninfo_to_dict(text).get("dbname") else "has no name of a database at its end")
    except ProgrammingError:
        wrong = "has a character or an option that libpq does not read"
    if text and wrong:
        example = "postgresql://user:password@host:5432/name, with a standby ...@host:5432,other:5432/name"
        raise WrongError("bad_database_url", wrong, f"Example: {example}. {ENCODE}")
    return text


def _redis_url(text: str) -> str:
    """Return the URL of a Redis. With TLS it makes every library verify the certificate and the server's name."""
    if text and (wrong := wrong_in_url(text, ("redis", "rediss")) or _wrong_in_redis_url(text)):
        raise WrongError("bad_redis_url", wrong, f"Example: redis://user:password@127.0.0.1:6379/0. {ENCODE}")
    base, _, options = text.partition("?")
    return f"{base}?{urlencode(dict(parse_qsl(options)) | TLS_VERIFIED)}" if base.startswith("rediss:") else text


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


def _lake(text: str) -> str:
    """Return a path, or a URL that Spark reads. It may hold no password: it appears in commands, logs and errors."""
    if _PASSWORD.search(text) and _LAKE.match(text):
        hint = "Set what the store's own client reads, as AWS_…."
        raise WrongError("password_in_lake", "has a password in it", hint)
    return _only_if(_LAKE.match(text), text)


def _domains(text: str) -> list[str]:
    """Return domains in lower case, as they are in the DNS."""
    domains = [domain.lower().removesuffix(".") for domain in items_of(text)]
    return _only_if(len(domains) <= MAX_DOMAINS and all(map(_DOMAIN.fullmatch, domains)), domains)


def _domain(text: str) -> str:
    domains = _domains(text)
    return _only_if(len(domains) <= 1, "".join(domains))


URLS = Kind("comma list of URLs", _urls, "bad_urls")
COLLECTOR = Kind("URL, as `http://collector:4318`", _urls, "bad_urls")
DATABASE_URL = Kind("URL", _database_url)
REDIS_URL = Kind("URL", _redis_url)
LAKE = Kind("path or URL", _lake, "bad_lake")
DOMAIN = Kind("domain", _domain, "bad_domain")
DOMAINS = Kind("comma list of domains", _domains, "bad_domain")
MAIL = matching(MAIL_ADDRESS.pattern, "address", "bad_email_address")
MAIL_ADDRESSES = each(MAIL_ADDRESS.fullmatch, "comma list of addresses", "bad_email_address")
TARGETS = each(lambda item: _is_http_url(item) or MAIL_ADDRESS.fullmatch(item), "comma list", "bad_targets")
SHARDS = each(lambda item: item.startswith("/waku/2/rs/"), "comma list of shards", "bad_pubsub_topic")
_MASTERS = "`local[…]`, `spark://…`, or `sc://…` for Spark Connect"
SPARK_MASTER = matching(r"local(\[.+\])?|yarn|(spark|k8s|sc)://.*", _MASTERS, "bad_spark_master")
MEMORY = matching(r"[1-9]\d{0,5}[mg]", "as `512m` or `2g`", "bad_driver_memory")
_PAGE = "URL, as `https://jaeger.example.org/trace/{trace_id}`"
TRACE_PAGE = matching(r"https?://.*\{trace_id\}.*", _PAGE, "bad_trace_page")


# Secrets, and what goes with them -------------------------------------------------------------------------------------
def _headers(text: str) -> dict[str, str]:
    items = [item.partition("=") for item in items_of(text)]
    are_headers = all(key.strip() and value for key, _, value in items)
    return _only_if(are_headers, {key.strip(): unquote(value.strip()) for key, _, value in items})


def _private_keys(text: str) -> list[bytes]:
    keys = list(map(bytes.fromhex, items_of(text)))
    return _only_if(all(len(key) == KEY_BYTES and 0 < int.from_bytes(key) < SECP256K1_ORDER for key in keys), keys)


def _private_key(text: str) -> bytes:
    keys = _private_keys(text)
    return _only_if(len(keys) == 1 or not text, b"".join(keys))


def _field_keys(text: str) -> list[bytes]:
    keys = [base64.b64decode(item + "=" * (-len(item) % 4), altchars=b"-_", validate=True) for item in items_of(text)]
    return _only_if(all(len(key) == KEY_BYTES for key in keys) and (keys or not text), keys)


def _certificates(path: str) -> str:
    try:
        if path:
            ssl.create_default_context(cafile=path)
    except OSError:  # an SSLError is one, too
        raise ValueError from None
    return path


SECRET_KEY: Kind[str] = Kind("text", str, "missing_secret_key")
_LOOKS = "16 to 200 letters, digits or `._~+/-`"
METRICS_TOKEN = matching(r"[A-Za-z0-9._~+/-]{16,200}=*", _LOOKS, "bad_metrics_token")
HOOK_SECRET = matching(r"[A-Za-z0-9_-]{32,200}", "32 to 200 letters, digits, `-` or `_`", "bad_hook_secret")
HEADERS = Kind("`name=value,name=value`, values as in a URL", _headers, "bad_headers")
PRIVATE_KEY = Kind("64 hex digits", _private_key, "bad_private_key")
PRIVATE_KEYS = Kind("comma list of 64 hex digits", _private_keys, "bad_private_keys")
FIELD_KEYS = Kind("comma list of 32 bytes in url-safe base64", _field_keys, "bad_field_keys")
# OpenSSL, which reads the variable itself, ignores a file that it cannot read.
CERTIFICATES = Kind("path", _certificates, "bad_certificates")
