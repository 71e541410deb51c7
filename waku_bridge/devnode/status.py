"""Health, info and version, in nwaku's shape: `/health` is 200 even when the node is not ready."""

from aiohttp import web

from waku_bridge.devnode.http import json_reply
from waku_bridge.devnode.node import NODE

VERSION = "v0.38.1-devnode"
NOT_MOUNTED = ("Rln Relay", "Legacy Lightpush", "Filter", "Legacy Store", "Peer Exchange", "Rendezvous", "Mix")

routes = web.RouteTableDef()


@routes.get("/health")
async def health(request: web.Request) -> web.Response:
    is_alone = request.app[NODE].faults.no_peers != 0
    relay: dict[str, str] = {"Relay": "NOT_READY", "desc": "No connected peers"} if is_alone else {"Relay": "READY"}
    mounted = [relay, {"Lightpush": "READY"}, {"Store": "READY"}]
    report = {
        "nodeHealth": "NOT_READY" if is_alone else "READY",
        "connectionStatus": "Disconnected" if is_alone else "Connected",
        "protocolsHealth": mounted + [{protocol: "NOT_MOUNTED"} for protocol in NOT_MOUNTED],
    }
    return json_reply(report)


@routes.get("/info")
@routes.get("/debug/v1/info")
async def info(request: web.Request) -> web.Response:
    host = request.url.host
    return json_reply({"listenAddresses": [f"/ip4/{host}/tcp/60000/p2p/devnode"], "enrUri": "enr:-devnode"})


@routes.get("/version")
@routes.get("/debug/v1/version")
async def version(_request: web.Request) -> web.Response:
    return web.Response(text=VERSION)
