"""Faults that a process knows itself: PostgreSQL refused what it does, or a start-up check keeps it waiting.

They are noted in the metrics of this machine, and so at each metrics port, because database and Redis may be what
failed. They outrank what other processes infer from its silence.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from time import time

from prometheus_client import Gauge
from prometheus_client.mmap_dict import MmapedDict

OWN_FAULT = Gauge(
    "pushserver_own_fault_timestamp_seconds",
    "When a process of this machine last met a fault that it knows the reason of: a code of PostgreSQL (`53100`: its "
    "disk is full), or the start-up check for which it waits. "
    "When it moves: `docs/runbooks/PushServerDatabaseDown.md` for a code, the log line `start_waits` for a check.",
    ["fault"],
    multiprocess_mode="livemax",
)
# PostgreSQL refuses every process for these reasons, and not one statement.
REFUSALS = ("25006", "42501", "53100", "53300")
# A process that meets a fault tries again within two seconds, so one that was noted longer ago is over.
OVER_SECONDS = 5.0

for code in REFUSALS:  # a full disk has no room for a new entry
    OWN_FAULT.labels(code)


def note(fault: str) -> None:
    """Note that this process meets a fault now."""
    OWN_FAULT.labels(fault).set_to_current_time()


def note_refusal(code: str) -> None:
    """Note a refusal of PostgreSQL by its code, if it refuses every process."""
    if code in REFUSALS:
        note(code)


def seconds_ago(folder: Path) -> Mapping[str, float]:
    """Return how long ago each fault was last noted by a process that counts in ``folder``."""
    noted: dict[str, float] = {}
    for file in folder.glob("gauge_livemax_*.db"):
        for fault, at in _noted_in(file).items():
            noted[fault] = max(at, noted.get(fault, 0.0))
    # A time in the future is from before the clock was set back, and long ago.
    return {fault: abs(time() - at) for fault, at in noted.items()}


def _noted_in(file: Path) -> Mapping[str, float]:
    """Return the faults in one file. A broken one has none, and `/metrics` names it; that of an ended process goes."""
    try:
        values = [] if not file.stat().st_size else MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
        known = [(json.loads(key), value) for key, value, _, _ in values]
        own = OWN_FAULT._name  # noqa: SLF001 - there is no public name for it
        return {labels["fault"]: value for (name, _, labels, _), value in known if name == own and value}
    except (OSError, RuntimeError, struct.error, TypeError, ValueError):
        return {}
