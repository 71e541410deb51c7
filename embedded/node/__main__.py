"""`python -m embedded.node`: run a development node until SIGINT or SIGTERM."""

import sys

from embedded.dev_server import new_parser, run
from embedded.node.node import MAX_MESSAGE_BYTES, RELAY_CACHE_CAPACITY, Settings
from embedded.node.server import create_app


def main() -> int:
    parser = new_parser("embedded.node", "Development Waku node", 8645)
    parser.add_argument("--relay-cache-capacity", type=int, default=RELAY_CACHE_CAPACITY)
    parser.add_argument("--max-message-bytes", type=int, default=MAX_MESSAGE_BYTES)
    topics = "pubsub topics subscribed from the start"
    parser.add_argument("--shard", nargs="+", action="extend", default=[], help=topics)
    parser.add_argument("--peer", nargs="+", action="extend", default=[], help="base URLs of other development nodes")
    arguments = parser.parse_args()
    settings = Settings(
        data=arguments.data,
        relay_cache_capacity=arguments.relay_cache_capacity,
        shards=tuple(arguments.shard),
        peers=tuple(arguments.peer),
        max_message_bytes=arguments.max_message_bytes,
    )
    return run("node", lambda: create_app(settings), arguments)


if __name__ == "__main__":
    sys.exit(main())
