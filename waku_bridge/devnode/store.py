"""Store v3: `GET /store/v3/messages`, answered from this node's own archive."""

from dataclasses import replace

from aiohttp import web

from waku_bridge.devnode import go_waku
from waku_bridge.devnode.archive import Archived, Page, QueryRefusedError
from waku_bridge.devnode.envelope import store_fields
from waku_bridge.devnode.faults import Faults
from waku_bridge.devnode.http import json_reply
from waku_bridge.devnode.node import NODE
from waku_bridge.devnode.store_query import InvalidQueryError, StoreQuery, read_query

routes = web.RouteTableDef()


@routes.get("/store/v3/messages")
async def messages(request: web.Request) -> web.Response:
    node = request.app[NODE]
    is_go_waku = bool(node.faults.go_waku)
    try:
        query = read_query(go_waku.store_parameters(request.query) if is_go_waku else request.query)
        page = _spoil(node.archive.find(_unstuck(query, node.faults)), query, node.faults)
    except InvalidQueryError as exc:
        return web.Response(status=400, text=str(exc))
    except QueryRefusedError as exc:
        return web.Response(status=500, text=f"BAD_REQUEST: {exc}")
    if request.query.get("peerAddr"):
        return web.Response(status=500, text="Error occurred in queryFut.read() [PEER_DIAL_FAILURE: no libp2p here]")
    write = go_waku.page_fields if is_go_waku else _page_fields
    return _fault(node.faults, query) or json_reply(write(page, include_data=query.include_data))


def _unstuck(query: StoreQuery, faults: Faults) -> StoreQuery:
    """A store whose cursor does not advance answers as if there were none."""
    is_stuck = query.cursor is not None and faults.strikes("store_cursor_stuck")
    return replace(query, cursor=None) if is_stuck else query


def _spoil(page: Page, query: StoreQuery, faults: Faults) -> Page:
    if page.messages and faults.strikes("store_duplicates"):
        return replace(page, messages=(*page.messages, page.messages[-1])[-query.page_size :])
    return page


def _fault(faults: Faults, query: StoreQuery) -> web.Response | None:
    if faults.strikes("store_no_peer"):
        return web.Response(status=412, text="No suitable service peer & no discovery method")
    if faults.strikes("store_rate_limited"):
        return web.Response(status=429, text="Request rate limit reached")
    if faults.strikes("store_too_many_requests"):
        return web.Response(status=500, text="Error occurred in queryFut.read() [TOO_MANY_REQUESTS]")
    if query.cursor is not None and faults.strikes("store_cursor_not_found"):
        return web.Response(status=500, text="BAD_REQUEST: cursor not found")
    return None


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
