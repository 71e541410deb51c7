"""`python -m embedded.node`: run a development node until SIGINT or SIGTERM."""

import sys

from embedded.dev_server import new_parser, run
from embedded.node.node import RELAY_CACHE_CAPACITY, Settings
from embedded.node.server import create_app

if __name__ == "__main__":
    parser = new_parser("embedded.node", "Development Waku node", 8645)
    parser.add_argument("--relay-cache-capacity", type=int, default=RELAY_CACHE_CAPACITY)
    parser.add_argument("--shard", nargs="+", default=[], help="pubsub topics subscribed from the start")
    parser.add_argument("--peer", nargs="+", default=[], help="base URLs of other development nodes")
    given = parser.parse_args()
    settings = Settings(given.data, given.relay_cache_capacity, tuple(given.shard), tuple(given.peer))
    sys.exit(run("node", lambda: create_app(settings), given))
