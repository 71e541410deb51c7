"""Content topics and the 4-byte topics in them, as integers. Pure."""

PREFIX, SUFFIX = "/waku/1/0x", "/rfc26"
CONTENT_TOPIC_LENGTH = len(PREFIX) + 8 + len(SUFFIX)


def number(content_topic: str) -> int | None:
    """Return the 4-byte topic in a content topic of the canonical form, as an integer, or None.

    Other spellings of a number (capitals, signs, underscores) are other topics to Waku, and so to us.
    """
    if len(content_topic) != CONTENT_TOPIC_LENGTH or not content_topic.startswith(PREFIX):
        return None
    try:
        topic = int(content_topic[len(PREFIX) : -len(SUFFIX)], 16)
    except ValueError:
        return None
    is_canonical = topic >= 0 and content_topic == f"{PREFIX}{topic:08x}{SUFFIX}"
    return topic if is_canonical else None


def content_topic(topic: int) -> str:
    """Return the content topic of a 4-byte topic."""
    return f"{PREFIX}{topic:08x}{SUFFIX}"
