class NodeError(Exception):
    """The node cannot be reached, or did not do what it was asked.

    NodeError
    ├── NotSubscribed       the node forgot the shard, usually because it restarted
    └── BadNodeMessage      one message of a page is not what 14/WAKU2-MESSAGE describes
    """


class NotSubscribed(NodeError):  # noqa: N818 - says what is wrong
    pass


class BadNodeMessage(NodeError):  # noqa: N818 - says what is wrong
    pass
