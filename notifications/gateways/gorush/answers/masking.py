"""How gorush hides device tokens in its answers when `log.hide_token` is on, as it is by default."""

MARK = 10


def mask(token: str) -> str:
    """Hide a short token wholly, and of a longer one its first and last ten characters and every repetition of them."""
    if len(token) < 2 * MARK:
        return "*" * len(token)
    first, last = token[:MARK], token[-MARK:]
    return token.replace(last, "*" * MARK).replace(first, "*" * MARK)
