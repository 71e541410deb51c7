"""Store v3: `GET /store/v3/messages`, answered from this node's own archive."""

from aiohttp import web

from embedded.node.archive import Archived, Page, QueryRefusedError
from embedded.node.envelope import store_fields
from embedded.node.node import NODE
from embedded.node.rest.http import json_reply
from embedded.node.store_query import InvalidQueryError, read_query

REFUSED = "error in handleSelfStoreRequest: BAD_RESPONSE: archive error"
routes = web.RouteTableDef()


@routes.get("/store/v3/messages", allow_head=False)
async def messages(request: web.Request) -> web.Response:
    """Answer a query, or refuse a faulty one."""
    node = request.app[NODE]
    try:
        query = read_query(request.query)
        page = node.archive.find(query)
    except InvalidQueryError as exc:
        return web.Response(status=400, text=str(exc))
    except QueryRefusedError as exc:
        return web.Response(status=500, text=f"{REFUSED}: {exc}")
    if request.query.get("peerAddr"):
        return json_reply({"requestId": "", "statusCode": 504, "statusDesc": "PEER_DIAL_FAILURE", "messages": []})
    return json_reply(_page_fields(page, include_data=query.include_data))


def _page_fields(page: Page, *, include_data: bool) -> dict[str, object]:
    found = [_archived_fields(archived, include_data=include_data) for archived in page.messages]
    fields: dict[str, object] = {"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": found}
    if page.cursor is not None:
        fields["paginationCursor"] = _hex(page.cursor)
    return fields


def _archived_fields(archived: Archived, *, include_data: bool) -> dict[str, object]:
    fields: dict[str, object] = {"messageHash": _hex(archived.message_hash)}
    if include_data:
        fields |= {"message": store_fields(archived.message), "pubsubTopic": archived.pubsub_topic}
    return fields


def _hex(message_hash: bytes) -> str:
    return f"0x{message_hash.hex()}"
