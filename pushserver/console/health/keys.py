"""Reader of the change of the server's key: which key clients used, and the present settings lack."""

from pushserver.console.health.kinds.server import KEY, LostKey
from pushserver.console.parts import parts_in_use
from pushserver.models import Incident, ServerStart


def present() -> str:
    """Return the public keys of the settings, as `ServerStart` has them."""
    return ",".join(key.hex() for part in parts_in_use() for key in part.own_keys())


def lost() -> LostKey | None:
    """Return the key that clients still use and the settings lack. Staff may have acknowledged that.

    A key that was the first one no more was taken out on purpose, as docs/backup.md says.
    """
    own = set(present().split(","))
    starts = ServerStart.objects.exclude(keys__in=["", present()]).order_by("-started_at")
    for start in starts:
        missing = [key for key in start.keys.split(",") if key not in own]
        if missing:
            return _lost(start) if missing[0] == start.keys.split(",")[0] else None
    return None


def _lost(start: ServerStart) -> LostKey | None:
    """Return the key of a start, unless no client uses it. After an acknowledgement that is not asked: it reads all."""
    taken_care_of = Incident.objects.filter(indicator=KEY.id, acknowledged_at__gt=start.started_at)
    by = taken_care_of.values_list("acknowledged_by", flat=True).last() or ""
    key = bytes.fromhex(start.keys.split(",")[0])
    is_used = bool(by) or any(part.has_clients_of(key) for part in parts_in_use())
    return LostKey(start.started_at, by) if is_used else None
