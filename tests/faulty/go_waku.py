"""Pages of relay and store in the format of go-waku v0.10.0, for the `go_waku` fault. Pure.

Its relay leaves out fields that are unset and writes `null` for an empty page. Its store client writes snake_case and
hashes in standard base64, and expects them in URL-safe base64.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping

from embedded.node.archive import Archived, Page
from embedded.node.envelope import store_fields
from embedded.node.store_query import InvalidQueryError
from waku_bridge.messages import WakuMessage


def relay_fields(message: WakuMessage) -> dict[str, object]:
    fields = store_fields(message)
    kept = {name: value for name, value in fields.items() if value or name in ("payload", "contentTopic")}
    return {**kept, "ephemeral": message.ephemeral or None}


def store_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the same query with nwaku's parameters. Raises InvalidQueryError."""
    has_filter = bool(parameters.get("pubsubTopic") and parameters.get("contentTopics"))
    if not (has_filter or parameters.get("hashes")):
        raise InvalidQueryError("pubsubTopic and contentTopics are required")
    translated = {name: _to_hex(parameters[name]) for name in ("hashes", "cursor") if parameters.get(name)}
    return {**parameters, **translated}


def _to_hex(hashes: str) -> str:
    try:
        return ",".join(b64decode(text, altchars=b"-_", validate=True).hex() for text in hashes.split(","))
    except ValueError as exc:
        raise InvalidQueryError("illegal base64 data at input byte 0") from exc


def page_fields(page: Page, *, include_data: bool) -> dict[str, object]:
    found = [_archived_fields(archived, include_data=include_data) for archived in page.messages]
    fields: dict[str, object] = {"request_id": "1", "status_code": 200, "status_desc": "", "messages": found or None}
    if page.cursor is not None:
        fields["pagination_cursor"] = b64encode(page.cursor).decode()
    return fields


def _archived_fields(archived: Archived, *, include_data: bool) -> dict[str, object]:
    fields: dict[str, object] = {"message_hash": b64encode(archived.message_hash).decode()}
    if include_data:
        fields |= {"message": relay_fields(archived.message), "pubsub_topic": archived.pubsub_topic}
    return fields
