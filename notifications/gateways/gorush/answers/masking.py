"""Masking of device tokens, as gorush does it in its answers while `log.hide_token` is on, its default."""

MARK = 10


def mask(token: str) -> str:
    """Mask a short token entirely, and of a longer one the first and last ten characters wherever they occur."""
    if len(token) < 2 * MARK:
        return "*" * len(token)
    first, last = token[:MARK], token[-MARK:]
    return token.replace(last, "*" * MARK).replace(first, "*" * MARK)
