"""The JSON of Waku nodes, in the two dialects of nwaku and go-waku, read into the same values and errors. Pure.

nwaku (0.36 and newer) writes hashes in hex, empty lists and every field. go-waku writes `null` for an empty list and
leaves out unset fields. Its store client answers in snake_case with hashes in base64. Unknown fields are ignored.
"""
# ruff: noqa: N818 -- each error says what is wrong

import base64
import binascii
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from waku_bridge.messages import WakuMessage

INT64_MAX = 2**63 - 1
HASH_BYTES = 32
HTTP_OK = 200
HTTP_NOT_FOUND = 404
HTTP_PRECONDITION_FAILED = 412
HTTP_TOO_LARGE = 413
HTTP_TOO_MANY_REQUESTS = 429
URL_SAFE_TO_STANDARD, STANDARD_TO_URL_SAFE = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")
# It matches "Message size exceeded maximum of 153600 bytes", with a colon in some versions.
TOO_LARGE = re.compile(r"size exceeded maximum(?:\D{1,8}(\d{1,12}))?")
# A cursor of go-waku or nwaku is a hash, as text.
CURSOR = re.compile(r"[!-~]{0,1024}")


class NodeError(Exception):
    """The node cannot be reached, or did not carry out the request.

    ``status`` is the HTTP status of the answer, or 0 without an answer. ``word`` is the meaning of the error in
    metrics, where it has one of its own.
    """

    status = 0
    word = ""

    @property
    def code(self) -> str:
        """Return the value of the label in metrics."""
        return self.word or str(self.status or "unreachable")


class Unreachable(NodeError):
    """The request was never sent, so nothing was drained or published."""


class NotSubscribed(NodeError):
    """The node forgot the shard, usually because it restarted."""


class NoPeers(NodeError):
    word = "no_peers"  # it has no peer to forward the message to


class MessageTooLarge(NodeError):
    """The message is above the node's --max-msg-size, and no repetition helps.

    ``limit_bytes`` is the node's limit for a whole encoded message, or 0 when the answer does not name it.
    """

    def __init__(self, text: str, limit_bytes: int) -> None:
        super().__init__(text)
        self.limit_bytes = limit_bytes


class Slow(NodeError):
    word = "slow"  # another node took the message before it answered


class Busy(NodeError):
    word = "rate_limited"  # wait a minute at least


class CursorLost(NodeError):
    word = "cursor_not_found"  # a cursor does not lead on, as its message is gone: start the window over


class NoStore(NodeError):
    """The node has no store and no peer with one."""


class BadNodeMessage(NodeError):
    """One message of a page does not follow 14/WAKU2-MESSAGE."""


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One message of a store's page.

    ``message_hash`` (32 bytes) is empty when the node wrote none. ``message`` is raw JSON for `from_json`, and None
    where only hashes were requested.
    """

    message_hash: bytes
    pubsub_topic: str = ""
    message: Any = None


@dataclass(frozen=True, slots=True)
class StorePage:
    """One page of a store.

    ``cursor`` is sent back to the same node unchanged. It is empty on the last page.
    """

    entries: tuple[StoreEntry, ...] = ()
    cursor: str = ""


def parse(content: bytes) -> Any:
    """Parse JSON leniently, because a page is gone from the node once it is read.

    One message with a broken text must not cost the rest of the page: nwaku forwards content topics whether they are
    UTF-8 or not.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return json.loads(content.decode(errors="replace"), strict=False)


def to_json(message: WakuMessage) -> dict[str, Any]:
    """Return a message in the form in which it is published."""
    return {
        "payload": base64.b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
        "version": message.version,
        "timestamp": message.timestamp_ns,
        "ephemeral": message.ephemeral,
    }


def from_json(raw: Any) -> WakuMessage:
    """Read one message of a page. Fields that a node leaves out are zero. Raises BadNodeMessage."""
    if not isinstance(raw, dict):
        raise BadNodeMessage("not an object")
    content_topic = raw.get("contentTopic")
    if not isinstance(content_topic, str):
        raise BadNodeMessage("no content topic")
    return WakuMessage(
        payload=_bytes(raw, "payload"),
        content_topic=content_topic,
        timestamp_ns=_integer(raw, "timestamp"),
        version=_integer(raw, "version"),
        ephemeral=bool(raw.get("ephemeral")),
        meta=_bytes(raw, "meta"),
    )


def _bytes(raw: dict[str, Any], name: str) -> bytes:
    try:
        return read_base64(raw.get(name) or "")
    except ValueError:
        raise BadNodeMessage(f"{name} is not base64") from None


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name) or 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > INT64_MAX:
        raise BadNodeMessage(f"{name} is not a 64-bit integer")
    return value


def read_base64(text: Any) -> bytes:
    """Decode standard or URL-safe base64, padded or not. go-waku accepts all of these, and nodes may forward them.

    Raises ValueError.
    """
    if not isinstance(text, str):
        raise ValueError("no text")  # noqa: TRY004 - callers catch one class for all bad values
    with suppress(ValueError):  # nearly all nodes write the standard form with padding
        return binascii.a2b_base64(text, strict_mode=True)
    standard = text.translate(URL_SAFE_TO_STANDARD)
    return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def read_store_page(answer: Any) -> StorePage:
    """Read either dialect's answer to `GET /store/v3/messages`. Raises NodeError for any other answer."""
    if not isinstance(answer, dict):
        raise NodeError("the store answered without an object")
    status = _either(answer, "statusCode", "status_code")
    if status not in (None, HTTP_OK):
        raise NodeError(f"the store answered with status {status if isinstance(status, int) else 'unknown'}")
    messages = answer.get("messages")
    if not isinstance(messages, list | None):
        raise NodeError("the store's messages are no list")
    cursor = _either(answer, "paginationCursor", "pagination_cursor")
    return StorePage(tuple(map(_store_entry, messages or ())), _cursor(cursor))


def _store_entry(raw: Any) -> StoreEntry:
    fields = raw if isinstance(raw, dict) else {"message": raw}
    pubsub_topic = _either(fields, "pubsubTopic", "pubsub_topic")
    return StoreEntry(
        _hash(_either(fields, "messageHash", "message_hash")),
        pubsub_topic if isinstance(pubsub_topic, str) else "",
        fields.get("message"),
    )


def _either(fields: dict[str, Any], name: str, snake_name: str) -> Any:
    return fields.get(name, fields.get(snake_name))


def _hash(text: Any) -> bytes:
    if not isinstance(text, str):  # the text of a list that is nested deeply could not be made
        return b""
    for read in (_hex, read_base64):
        with suppress(ValueError):
            digest = read(text)
            return digest if len(digest) == HASH_BYTES else b""
    return b""


def _hex(text: str) -> bytes:
    return binascii.unhexlify(text.removeprefix("0x"))


def _cursor(text: Any) -> str:
    """Return a cursor in the form that the node accepts.

    go-waku returns it in standard base64 and accepts it in URL-safe base64. nwaku's hex is unchanged. Raises NodeError
    when the cursor cannot be sent back.
    """
    if not isinstance(text, str):
        return ""
    if not CURSOR.fullmatch(text):
        raise NodeError("the store answered with an unusable cursor")
    return text.translate(STANDARD_TO_URL_SAFE)


def refusal(status: int, text: str, *, where: str) -> NodeError:
    """Return the error for an answer other than 200.

    The node's ``text`` stays out of the error, because it may hold anything.
    """
    summary = f"{where} answered {status}"
    if status == HTTP_TOO_MANY_REQUESTS or "TOO_MANY_REQUESTS" in text:
        return Busy(summary)
    if (found := TOO_LARGE.search(text)) or status == HTTP_TOO_LARGE:
        return MessageTooLarge(summary, int(found[1] or 0) if found else 0)
    return NodeError(summary)


def store_refusal(status: int, text: str, *, where: str) -> NodeError:
    """Return the error for an answer of the store other than 200."""
    if "cursor not found" in text:
        return CursorLost(f"{where} answered {status}: cursor not found")
    # go-waku answers "store-query" with status 500.
    if status in (HTTP_NOT_FOUND, HTTP_PRECONDITION_FAILED) or "store-query" in text:
        return NoStore(f"{where} answered {status}: no store")
    return refusal(status, text, where=where)


def reports_no_peers(health: Any) -> bool:
    """Return whether a node's health says that messages reach nobody by relay. The node itself is READY all the same.

    go-waku implements it for RLN only.
    """
    if not isinstance(health, dict):
        return False
    listed = health.get("protocolsHealth")
    entries = listed if isinstance(listed, list) else ()
    is_relay_off = any(isinstance(entry, dict) and entry.get("Relay") == "NOT_READY" for entry in entries)
    return is_relay_off or health.get("connectionStatus") == "Disconnected"


DATE_RESOLUTION = timedelta(seconds=1)


def read_skew(date: str, *, asked_at: datetime, answered_at: datetime) -> float | None:
    """Return how many seconds the clock that wrote the Date is ahead of ours, at least. Negative means behind.

    The Date was written at some moment between request and answer, and has no fraction of a second.
    """
    try:
        written = parsedate_to_datetime(date)
    except (ValueError, OverflowError):  # a node may write anything
        return None
    written = written if written.tzinfo else written.replace(tzinfo=UTC)
    ahead = (written - answered_at).total_seconds()
    behind = (written - asked_at + DATE_RESOLUTION).total_seconds()
    return ahead if ahead > 0 else min(behind, 0.0)
