"""The query string of `GET /store/v3/messages`, read as nwaku reads it. The module is pure.

An empty parameter counts as absent. Topics and hashes are URL-decoded a second time, after the HTTP layer did it once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

DEFAULT_PAGE_SIZE = 20
MAX_PAGE_SIZE = 100
HASH_BYTES = 32
INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
TRUE_WORDS = frozenset({"y", "yes", "true", "1", "on"})
FALSE_WORDS = frozenset({"n", "no", "false", "0", "off"})


class InvalidQueryError(ValueError):
    """A parameter that cannot be parsed. The text may be shown to the caller."""


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query. Times are inclusive nanoseconds. `cursor` is the hash of the previous page's last message, exclusive."""

    include_data: bool = False
    pubsub_topic: str = ""
    content_topics: tuple[str, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    hashes: tuple[bytes, ...] = ()
    cursor: bytes | None = None
    is_forward: bool = True
    page_size: int = DEFAULT_PAGE_SIZE


def read_query(parameters: Mapping[str, str]) -> StoreQuery:
    """Return a query.

    Raises InvalidQueryError. `ascending` is forward for the exact text `true` only; absent is forward too.
    """
    hashes = tuple(_hash(text) for text in _list(parameters, "hashes"))
    cursor = parameters.get("cursor", "")
    return StoreQuery(
        include_data=_flag(parameters.get("includeData", "")),
        pubsub_topic=unquote_plus(parameters.get("pubsubTopic", "")),
        content_topics=tuple(_list(parameters, "contentTopics")),
        start_ns=_time(parameters.get("startTime", "")),
        end_ns=_time(parameters.get("endTime", "")),
        hashes=hashes,
        cursor=_hash(unquote_plus(cursor)) if cursor else None,
        is_forward=parameters.get("ascending", "") in ("", "true"),
        page_size=_page_size(parameters.get("pageSize", "")),
    )


def _list(parameters: Mapping[str, str], name: str) -> list[str]:
    text = unquote_plus(parameters.get(name, ""))
    return text.removesuffix(",").split(",") if text else []


def _flag(text: str) -> bool:
    word = text.replace("_", "").lower()
    if word and word not in TRUE_WORDS | FALSE_WORDS:
        raise InvalidQueryError("include data parsing error: cannot interpret as a bool")
    return word in TRUE_WORDS


def _number(text: str, name: str) -> int:
    if not INTEGER.fullmatch(text):
        raise InvalidQueryError(f"{name} parsing error: invalid integer")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise InvalidQueryError(f"{name} parsing error: integer out of range")
    return number


def _time(text: str) -> int | None:
    number = _number(text, "time") if text else 0
    return number if number > 0 else None


def _page_size(text: str) -> int:
    """Return the page size.

    0 means the default; a negative number, which nwaku casts to unsigned, means the maximum.
    """
    number = _number(text, "page size") if text else 0
    if number == 0:
        return DEFAULT_PAGE_SIZE
    return MAX_PAGE_SIZE if number < 0 else min(number, MAX_PAGE_SIZE)


def _hash(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as exc:
        raise InvalidQueryError("error converting hash hex string to bytes") from exc
    if len(raw) != HASH_BYTES:
        raise InvalidQueryError(f"invalid hash length: {len(raw)}")
    return raw
