"""Health, info and version, in nwaku's form: `/health` is 200 even when the node is not ready."""

from aiohttp import web

from embedded.node.enr import write_enr
from embedded.node.node import NODE
from embedded.node.rest.http import json_reply

VERSION = "v0.38.1-devnode"
MOUNTED = ("Relay", "Lightpush", "Store")
NOT_MOUNTED = ("Rln Relay", "Legacy Lightpush", "Filter", "Legacy Store", "Peer Exchange", "Rendezvous", "Mix")

routes = web.RouteTableDef()


@routes.get("/health")
async def health(_request: web.Request) -> web.Response:
    """Answer with the health of a node without faults."""
    report = {
        "nodeHealth": "READY",
        "connectionStatus": "Connected",
        "protocolsHealth": [{name: "READY"} for name in MOUNTED] + [{name: "NOT_MOUNTED"} for name in NOT_MOUNTED],
    }
    return json_reply(report)


@routes.get("/info")
@routes.get("/debug/v1/info")
async def info(request: web.Request) -> web.Response:
    node, host = request.app[NODE], request.url.host
    record = write_enr(node.settings.shards, seq=node.enr_seq)
    return json_reply({"listenAddresses": [f"/ip4/{host}/tcp/60000/p2p/devnode"], "enrUri": record})


@routes.get("/version")
@routes.get("/debug/v1/version")
async def version(_request: web.Request) -> web.Response:
    return web.Response(text=VERSION)
