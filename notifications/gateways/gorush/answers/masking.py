"""Masking of device tokens, as gorush does it in its answers while `log.hide_token` is on, its default."""

MARK = 10


def mask(token: str) -> str:
    """Mask a short token entirely. Of a longer one, mask the first and last ten characters and every repetition of
    them.
    """
    if len(token) < 2 * MARK:
        return "*" * len(token)
    first, last = token[:MARK], token[-MARK:]
    return token.replace(last, "*" * MARK).replace(first, "*" * MARK)
