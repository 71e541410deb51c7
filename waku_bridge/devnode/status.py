"""Health, info and version, in nwaku's shape: `/health` is 200 even when the node is not ready."""

from aiohttp import web

from waku_bridge.devnode.enr import write_enr
from waku_bridge.devnode.http import json_reply
from waku_bridge.devnode.node import NODE

VERSION = "v0.38.1-devnode"
NOT_MOUNTED = ("Rln Relay", "Legacy Lightpush", "Filter", "Legacy Store", "Peer Exchange", "Rendezvous", "Mix")

routes = web.RouteTableDef()


@routes.get("/health")
async def health(request: web.Request) -> web.Response:
    faults = request.app[NODE].faults
    if faults.starting:
        return json_reply({"nodeHealth": "INITIALIZING", "protocolsHealth": []})
    is_alone = faults.no_peers != 0
    relay: dict[str, str] = {"Relay": "NOT_READY", "desc": "No connected peers"} if is_alone else {"Relay": "READY"}
    lightpush = "NOT_MOUNTED" if faults.lightpush_absent else "READY"
    store = "NOT_MOUNTED" if faults.store_no_peer else "READY"
    mounted = [relay, {"Lightpush": lightpush}, {"Store": store}]
    report = {
        "nodeHealth": "NOT_READY" if is_alone else "READY",
        "connectionStatus": "Disconnected" if is_alone else "Connected",
        "protocolsHealth": mounted + [{protocol: "NOT_MOUNTED"} for protocol in NOT_MOUNTED],
    }
    return json_reply(report)


@routes.get("/info")
@routes.get("/debug/v1/info")
async def info(request: web.Request) -> web.Response:
    node, host = request.app[NODE], request.url.host
    record = write_enr(node.settings.shards, seq=1 + node.counters.restarts)
    return json_reply({"listenAddresses": [f"/ip4/{host}/tcp/60000/p2p/devnode"], "enrUri": record})


@routes.get("/version")
@routes.get("/debug/v1/version")
async def version(_request: web.Request) -> web.Response:
    return web.Response(text=VERSION)
