class NodeError(Exception):
    """The node cannot be reached, or did not do what it was asked.

    NodeError
    ├── Unreachable         nobody can have seen the request: nothing was drained or published
    ├── NotSubscribed       the node forgot the shard, usually because it restarted
    ├── NoPeers             it has nobody to pass the message on to
    ├── MessageTooLarge     above the node's --max-msg-size; no repetition helps
    ├── Busy                it limits how often it is asked: wait a minute at least
    ├── CursorLost          the message that a page would continue after is gone: start the window over
    ├── NoStore             it has no store and knows no peer with one
    └── BadNodeMessage      one message of a page is not what 14/WAKU2-MESSAGE describes

    ``status`` is the HTTP status of the answer, 0 when there was none, and ``word`` what it means where that is known.
    """

    status = 0
    word = ""

    @property
    def code(self) -> str:
        """Return a word for metrics."""
        return self.word or str(self.status or "unreachable")


class Unreachable(NodeError):  # noqa: N818 - says what is wrong
    pass


class NotSubscribed(NodeError):  # noqa: N818 - says what is wrong
    pass


class NoPeers(NodeError):  # noqa: N818 - says what is wrong
    word = "no_peers"


class MessageTooLarge(NodeError):  # noqa: N818 - says what is wrong
    """``limit_bytes`` is the node's limit for a whole encoded message, 0 when it did not say."""

    def __init__(self, text: str, limit_bytes: int) -> None:
        super().__init__(text)
        self.limit_bytes = limit_bytes


class Busy(NodeError):  # noqa: N818 - says what is wrong
    word = "rate_limited"


class CursorLost(NodeError):  # noqa: N818 - says what is wrong
    word = "cursor_not_found"


class NoStore(NodeError):  # noqa: N818 - says what is wrong
    pass


class BadNodeMessage(NodeError):  # noqa: N818 - says what is wrong
    pass
