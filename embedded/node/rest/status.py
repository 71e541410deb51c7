"""Health, info and version, in nwaku's form: `/health` is 200 even when the node is not ready."""

from aiohttp import web

from embedded.node.enr import write_enr
from embedded.node.node import NODE
from embedded.node.rest.http import json_reply

VERSION = "v0.38.1-devnode"
ENOUGH_PEERS = 4
READY = ("Relay", "Store", "Store Client")
NOT_READY = {
    "Lightpush Client": "No Lightpush service peer available yet",
    "Legacy Lightpush Client": "No Lightpush service peer available yet",
    "Filter Client": "No Filter service peer available yet",
}
NOT_MOUNTED = ("Lightpush", "Legacy Lightpush", "Filter", "Peer Exchange", "Rendezvous", "Mix", "Rln Relay")

routes = web.RouteTableDef()


@routes.get("/health", allow_head=False)
async def health(request: web.Request) -> web.Response:
    """Answer with the health of a node without faults, as measured on v0.38.1."""
    protocols = [{name: "READY"} for name in READY]
    protocols += [{name: "NOT_READY", "desc": description} for name, description in NOT_READY.items()]
    protocols += [{name: "NOT_MOUNTED"} for name in NOT_MOUNTED]
    is_connected = request.app[NODE].relay_peer_count >= ENOUGH_PEERS
    connection = "Connected" if is_connected else "PartiallyConnected"
    return json_reply({"nodeHealth": "READY", "connectionStatus": connection, "protocolsHealth": protocols})


@routes.get("/info", allow_head=False)
@routes.get("/debug/v1/info", allow_head=False)
async def info(request: web.Request) -> web.Response:
    node, host = request.app[NODE], request.url.host
    record = write_enr(node.settings.shards, seq=node.enr_seq)
    return json_reply({"listenAddresses": [f"/ip4/{host}/tcp/60000/p2p/devnode"], "enrUri": record})


@routes.get("/version", allow_head=False)
@routes.get("/debug/v1/version", allow_head=False)
async def version(_request: web.Request) -> web.Response:
    return web.Response(text=VERSION)
