"""Which messages are traced, and under which id."""

from hashlib import blake2b
from typing import NamedTuple

from django.conf import settings

TRACE_BYTES, SPAN_BYTES = 16, 8


class Trace(NamedTuple):
    """The trace of one message: its id, and the id of the span that it begins with."""

    id: int
    first_span_id: int

    @property
    def id_hex(self) -> str:
        """Return the id as collectors show it."""
        return f"{self.id:032x}"


def is_on() -> bool:
    """Return whether any message is traced."""
    return bool(settings.TRACES)


def trace_of(key: bytes) -> Trace | None:
    """Return the trace of the message that is known by this key, or None when it is not traced.

    The ids are a digest that only this server can make, so that nobody who sees a trace learns which message it is of,
    or can send messages that are all traced. Part of the id decides whether it is, as `TraceIdRatioBased` does it.
    """
    if not settings.TRACES:
        return None
    digest = blake2b(key, digest_size=TRACE_BYTES + SPAN_BYTES, key=settings.TRACES_KEY).digest()
    if int.from_bytes(digest[SPAN_BYTES:TRACE_BYTES]) >= settings.TRACES_SHARE * 2.0**64:
        return None
    return Trace(int.from_bytes(digest[:TRACE_BYTES]), int.from_bytes(digest[TRACE_BYTES:]))
