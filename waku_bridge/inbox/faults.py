"""Faults: errors in our own code that envelopes failed by. There is one row for each kind of error and location.

A row holds nothing of the message. The text of an exception may quote the data that caused it. Its type, its location
in our code and the name of a broken constraint do not.
"""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import LiteralString

import structlog

from kit.db.base import fetch
from kit.telemetry import count
from waku_bridge.inbox import inbox
from waku_bridge.metrics import ENVELOPES_PROCESSED
from waku_bridge.models import EndedEnvelope, EnvelopeFault

log = structlog.get_logger(__name__)
PROCESS_DIED = "process_died"
ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "kit"
# Limit of the envelopes that an operator has processed again at once. The oldest come first.
MAX_AT_ONCE = 10_000

_NOTE: LiteralString = """
    INSERT INTO waku_bridge_envelopefault AS fault (error, location, line, count, first_seen_at, last_seen_at)
    VALUES (%(error)s, %(location)s, %(line)s, %(count)s, %(now)s, %(now)s)
    ON CONFLICT (error, location) DO UPDATE
        SET count = fault.count + excluded.count, line = excluded.line, last_seen_at = excluded.last_seen_at
    RETURNING id
"""


def note(error: str, frame: FrameSummary | None = None, *, times: int = 1, now: datetime) -> int:
    """Count a fault, and return its id. Its line is updated each time, because lines move from release to release."""
    location = location_of(frame) if frame else ""
    line = (frame.lineno or 0) if frame else 0
    [(fault_id,)] = fetch(_NOTE, {"error": error, "location": location, "line": line, "count": times, "now": now})
    return int(fault_id)


def name_of(error: BaseException) -> str:
    """Return the type of an error, with the constraint or the SQLSTATE that the database reports."""
    diagnosis = getattr(error.__cause__, "diag", None)
    code = diagnosis and (diagnosis.constraint_name or diagnosis.sqlstate)
    return f"{type(error).__name__} ({code})" if code else type(error).__name__


def frame_of(error: BaseException) -> FrameSummary | None:
    """Return the innermost frame in our own code, where the search for the cause begins.

    A frame in `kit` is returned only where no other code of ours is in the traceback: its modules serve every caller.
    """
    own = [frame for frame in extract_tb(error.__traceback__) if _is_ours(Path(frame.filename))]
    callers = [frame for frame in own if not Path(frame.filename).is_relative_to(HELPERS)]
    return next(reversed(callers or own), None)


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(ROOT) and "site-packages" not in path.parts


def location_of(frame: FrameSummary) -> str:
    return f"{Path(frame.filename).relative_to(ROOT)} in {frame.name}"


def waiting(fault_ids: list[int]) -> list[bytes]:
    """Return the hashes of the envelopes that failed by these faults and are kept, the oldest first."""
    failed = EndedEnvelope.objects.filter(state=EndedEnvelope.State.FAILED, fault__in=fault_ids)
    return list(failed.order_by("received_at").values_list("hash", flat=True)[:MAX_AT_ONCE])


def newest_waiting() -> EnvelopeFault | None:
    """Return the fault that was seen last among those with envelopes that are still kept."""
    failed = EndedEnvelope.objects.filter(state=EndedEnvelope.State.FAILED, fault__isnull=False)
    faults = EnvelopeFault.objects.filter(pk__in=failed.values("fault"))
    return faults.order_by("-last_seen_at").first()


def give_up(envelope_hashes: Collection[bytes], *, now: datetime) -> None:
    """Mark envelopes as failed because each of them kills the process that works on it. Their payloads are kept."""
    if envelope_hashes:
        log.error("envelopes_given_up", envelope_hashes=[each.hex() for each in envelope_hashes])
        inbox.fail(envelope_hashes, PROCESS_DIED, note(PROCESS_DIED, times=len(envelope_hashes), now=now), now=now)
        count(ENVELOPES_PROCESSED, {("unknown", "failed"): len(envelope_hashes)})


def quarantine(envelope_hash: bytes, error: Exception, *, now: datetime) -> None:
    """Mark an envelope as failed. Its payload is kept, so that it can be processed again."""
    # The type and the location only: the text of an exception may quote the data that caused it.
    name, frame = name_of(error), frame_of(error)
    location = f"{location_of(frame)}, line {frame.lineno}" if frame else ""
    log.error("envelope_failed", envelope_hash=envelope_hash.hex(), error=name, location=location)
    inbox.fail([envelope_hash], type(error).__name__, note(name, frame, now=now), now=now)
    count(ENVELOPES_PROCESSED, [("unknown", "failed")])
