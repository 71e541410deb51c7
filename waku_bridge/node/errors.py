class NodeError(Exception):
    """The node cannot be reached, or did not carry out the request.

    NodeError
    ├── Unreachable         the request was never sent, so nothing was drained or published
    ├── NotSubscribed       the node forgot the shard, usually because it restarted
    ├── NoPeers             it has no peer to forward the message to
    ├── MessageTooLarge     above the node's --max-msg-size; no repetition helps
    ├── Slow                another node took the message before it answered
    ├── Busy                it limits our rate: wait a minute at least
    ├── CursorLost          a cursor does not lead on, as its message is gone: start the window over
    ├── NoStore             it has no store and no peer with one
    └── BadNodeMessage      one message of a page does not follow 14/WAKU2-MESSAGE

    ``status`` is the HTTP status of the answer, or 0 without an answer. ``word`` is the meaning of the error in
    metrics, where it has one of its own.
    """

    status = 0
    word = ""

    @property
    def code(self) -> str:
        """Return the value of the label in metrics."""
        return self.word or str(self.status or "unreachable")


class Unreachable(NodeError):  # noqa: N818 - says what is wrong
    pass


class NotSubscribed(NodeError):  # noqa: N818 - says what is wrong
    pass


class NoPeers(NodeError):  # noqa: N818 - says what is wrong
    word = "no_peers"


class MessageTooLarge(NodeError):  # noqa: N818 - says what is wrong
    """``limit_bytes`` is the node's limit for a whole encoded message, or 0 when the answer does not name it."""

    def __init__(self, text: str, limit_bytes: int) -> None:
        super().__init__(text)
        self.limit_bytes = limit_bytes


class Slow(NodeError):  # noqa: N818 - says what is wrong
    word = "slow"


class Busy(NodeError):  # noqa: N818 - says what is wrong
    word = "rate_limited"


class CursorLost(NodeError):  # noqa: N818 - says what is wrong
    word = "cursor_not_found"


class NoStore(NodeError):  # noqa: N818 - says what is wrong
    pass


class BadNodeMessage(NodeError):  # noqa: N818 - says what is wrong
    pass
