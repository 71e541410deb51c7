"""Removal of old history, expiry of unused registrations, and removal of old tombstones."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, LiteralString

from kit.db.base import fetch
from kit.db.partitions import WRITTEN_ONCE, DayTable
from kit.expiry.models import may_end
from kit.telemetry import count
from registrations import metrics, statements
from registrations.models import RegistrationEvent, Route

Kind = RegistrationEvent.Kind
# A partition has a week, because a statement without a fixed day would open and lock four hundred partitions of days.
EVENTS = DayTable("registrations_registrationevent", "at", width=7, storage=WRITTEN_ONCE)

# The tables are walked in the order of their ids. An index by age would slow down every registration, and a walk from
# the oldest row would read the rows that stay again and again.
_WALKED = 5_000


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove events older than ``keep``, and make the partitions of the coming weeks. Yield the number of rows that
    each step removed, which is 0 for a dropped partition.

    The last event of an active installation stays at any age, because reports count active installations. When its week
    is dropped, it moves to the default partition.
    """
    EVENTS.make_ahead(now=now)
    yield from EVENTS.drop_days(now - keep, kept=_last_of_active)
    for step in walk(f"{EVENTS.name}_default"):
        yield len(fetch(statements.PURGE_EVENTS, {**step, "before": now - keep}))


def _last_of_active(partition: LiteralString) -> list[int]:
    """Return the ids of the events of a partition that stay."""
    sql = statements.LAST_OF_ACTIVE.format(partition=partition)
    return [event_id for step in walk(partition) for (event_id,) in fetch(sql, step)]


def expire(step: Mapping[str, int], *, now: datetime, keep: timedelta) -> list[int]:
    """Unregister unused installations of one step of `walk`, in the caller's transaction. Return their routes' ids.

    An installation is unused if the client did not repeat its registration, and no push reached it, for ``keep``. It
    leaves a tombstone like every unregistered one. Installations that are just being registered are left alone.
    """
    return _end(statements.EXPIRE, {**step, "before": now - keep}, now=now)


def may_expire(*, now: datetime, keep: timedelta) -> bool:
    """Return whether `expire` may unregister all installations that were unused for ``keep`` (see `kit.expiry`)."""
    unused = sum(fetch(statements.COUNT_UNUSED, {**step, "before": now - keep})[0][0] for step in walk())
    [(total,)] = fetch(f"SELECT {statements.STORED_REGISTRATIONS}")
    return may_end("registrations", unused, total, now=now)


def end_longest_dead(public_key_hash: bytes, *, but: Collection[str], now: datetime) -> list[int]:
    """Unregister the installation of a key whose route was disabled first, in the caller's transaction.

    The installation ids ``but`` are left alone. Return the id of its route, in a list, or an empty list.
    """
    return _end(statements.END_DEAD, {"key_hash": public_key_hash, "but": list(but)}, now=now)


def end_replaced(ids: Collection[int], *, now: datetime) -> None:
    """Remove registrations whose places new ones took, without a tombstone, in the caller's transaction."""
    if ids:
        _end(statements.END_REPLACED, {"ids": list(ids)}, now=now)


def _end(sql: LiteralString, parameters: dict[str, Any], *, now: datetime) -> list[int]:
    route_ids = [route_id for (route_id,) in fetch(sql, parameters | {"now": now})]
    Route.objects.filter(pk__in=route_ids).delete()
    count(metrics.REGISTRATION_EVENTS, {(Kind.EXPIRED.value,): len(route_ids)})
    return route_ids


def remove_tombstones(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Delete tombstones older than ``keep``, and so the last versions of those installations. Yield the number of rows
    that each step removed.
    """
    for step in walk():
        yield len(fetch(statements.REMOVE_TOMBSTONES, {**step, "before": now - keep}))


def walk(table: LiteralString = "registrations_registration") -> Iterator[dict[str, int]]:
    """Yield for each step of a walk through a table the id after which it begins, and its last id."""
    [(first, last)] = fetch(f"SELECT min(id), max(id) FROM {table}")
    if last is not None:
        for after in range(first - 1, last, _WALKED):
            yield {"after": after, "up_to": after + _WALKED}
