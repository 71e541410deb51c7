"""Removal of old history, expiry of unused registrations, and removal of old tombstones."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, LiteralString

from kit.db.partitions import WRITTEN_ONCE, DayTable
from kit.db.statements import fetch
from kit.expiry.asking import may_end
from kit.metrics.batches import count
from registrations import metrics
from registrations.models import Registration, RegistrationEvent, Route
from registrations.upkeep.estimates import STORED_REGISTRATIONS

Kind = RegistrationEvent.Kind
# After one of these events an installation cannot be pushed to.
ENDS = (Kind.UNREGISTERED, Kind.TOKEN_DIED, Kind.EXPIRED)
_ENDED = {"ends": [str(kind) for kind in ENDS]}

# A partition has a week, because a statement without a fixed day would open and lock four hundred partitions of days.
EVENTS = DayTable("registrations_registrationevent", "at", width=7, storage=WRITTEN_ONCE)

# The tables are walked in the order of their ids. An index by age would slow down every registration, and a walk from
# the oldest row would read the rows that stay again and again.
_WALKED = 5_000
# Events of one batch have the same time. Their ids are in the order in which they were decided.
_STAYS: LiteralString = """
    kind <> ALL (%(ends)s::text[]) AND NOT EXISTS (
        SELECT FROM registrations_registrationevent AS later
        WHERE later.pseudonym = event.pseudonym AND (later.at, later.id) > (event.at, event.id)
    )
"""
_PURGE_EVENTS: LiteralString = f"""
    WITH removed AS (
        DELETE FROM registrations_registrationevent_default AS event
        WHERE id > %(after)s AND id <= %(up_to)s AND at < %(before)s AND NOT ({_STAYS}) RETURNING 1
    )
    SELECT count(*) FROM removed
"""


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove events older than ``keep``, and make the partitions of the coming weeks. Yield the number of rows that
    each step removed, which is 0 for a dropped partition.

    The last event of an active installation stays at any age, because reports count active installations. When its week
    is dropped, it moves to the default partition.
    """
    EVENTS.make_ahead(now=now)
    yield from EVENTS.drop_days(now - keep, kept=_last_of_active)
    for step in walk(f"{EVENTS.name}_default"):
        [(removed,)] = fetch(_PURGE_EVENTS, {**step, **_ENDED, "before": now - keep})
        yield removed


def _last_of_active(partition: LiteralString) -> list[int]:
    """Return the ids of the events of a partition that stay."""
    sql = f"SELECT id FROM {partition} AS event WHERE id > %(after)s AND id <= %(up_to)s AND {_STAYS}"
    return [event_id for step in walk(partition) for (event_id,) in fetch(sql, step | _ENDED)]


_END = f"""
    WITH old AS (
        SELECT registration.id, registration.pseudonym, route_id, token_type, app_topic, bridge, delivered_digest
        FROM registrations_registration AS registration JOIN registrations_route AS route ON route.id = route_id
        WHERE registration.state = '{Registration.State.ACTIVE}' AND {{which}}
        FOR UPDATE OF registration SKIP LOCKED
    ), ended AS ({{end}}), ungranted AS (
        DELETE FROM registrations_grant USING old WHERE registration_id = old.id
    ), noted AS (
        INSERT INTO registrations_registrationevent (kind, pseudonym, token_type, app_topic, bridge, at)
        SELECT '{Kind.EXPIRED}', pseudonym, token_type, app_topic, bridge, %(now)s FROM old
            WHERE pseudonym IS NOT NULL
    )
    SELECT route_id FROM old
"""
_TO_TOMBSTONE: LiteralString = f"""
    UPDATE registrations_registration AS registration
    SET state = '{Registration.State.UNREGISTERED}', is_forgettable = delivered_digest IS NULL,
        route_id = NULL, pseudonym = NULL, updated_at = %(now)s, access_token_encrypted = NULL,
        access_token_digest = NULL, enabled = false, allow_from_contacts_only = false, block_mentions = false,
        allowed_key_list = '{{}}', blocked_chat_list = '{{}}', muted_chat_list = '{{}}',
        allowed_mentions_chat_list = '{{}}'
    FROM old WHERE registration.id = old.id
"""
_TO_NOTHING: LiteralString = (
    "DELETE FROM registrations_registration AS registration USING old WHERE registration.id = old.id"
)
_UNUSED: LiteralString = """
    registration.id > %(after)s AND registration.id <= %(up_to)s
    AND updated_at < %(before)s AND coalesce(last_success_at, updated_at) < %(before)s
"""
_EXPIRE: LiteralString = _END.format(which=f"{_UNUSED} ORDER BY registration.id", end=_TO_TOMBSTONE)
_COUNT_UNUSED: LiteralString = f"""
    SELECT count(*) FROM registrations_registration AS registration
    JOIN registrations_route AS route ON route.id = route_id
    WHERE registration.state = '{Registration.State.ACTIVE}' AND {_UNUSED}
"""
_END_DEAD: LiteralString = _END.format(
    which=f"""
        public_key_hash = %(key_hash)s AND route.state = '{Route.State.DISABLED}'
        AND installation_id <> ALL (%(but)b::text[]) ORDER BY disabled_at LIMIT 1
    """,
    end=_TO_TOMBSTONE,
)
_END_REPLACED: LiteralString = _END.format(which="registration.id = ANY (%(ids)b::bigint[])", end=_TO_NOTHING)
_REMOVE_TOMBSTONES: LiteralString = f"""
    WITH removed AS (
        DELETE FROM registrations_registration
        WHERE id > %(after)s AND id <= %(up_to)s AND state = '{Registration.State.UNREGISTERED}'
            AND updated_at < %(before)s
        RETURNING id
    )
    SELECT count(*) FROM removed
"""


def expire(step: Mapping[str, int], *, now: datetime, keep: timedelta) -> list[int]:
    """Unregister unused installations of one step of `walk`, in the caller's transaction. Return their routes' ids.

    An installation is unused if the client did not repeat its registration, and no push reached it, for ``keep``. It
    leaves a tombstone like every unregistered one. Installations that are just being registered are left alone.
    """
    return _end(_EXPIRE, {**step, "before": now - keep}, now=now)


def may_expire(*, now: datetime, keep: timedelta) -> bool:
    """Return whether `expire` may unregister all installations that were unused for ``keep`` (see `kit.expiry`)."""
    unused = sum(fetch(_COUNT_UNUSED, {**step, "before": now - keep})[0][0] for step in walk())
    [(total,)] = fetch(f"SELECT {STORED_REGISTRATIONS}")
    return may_end("registrations", unused, total, now=now)


def end_longest_dead(public_key_hash: bytes, *, but: Collection[str], now: datetime) -> list[int]:
    """Unregister the installation of a key whose route was disabled first, in the caller's transaction.

    The installation ids ``but`` are left alone. Return the id of its route, in a list, or an empty list.
    """
    return _end(_END_DEAD, {"key_hash": public_key_hash, "but": list(but)}, now=now)


def end_replaced(ids: Collection[int], *, now: datetime) -> None:
    """Remove registrations whose places new ones took, without a tombstone, in the caller's transaction."""
    if ids:
        _end(_END_REPLACED, {"ids": list(ids)}, now=now)


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
        [(removed,)] = fetch(_REMOVE_TOMBSTONES, {**step, "before": now - keep})
        yield removed


def walk(table: LiteralString = "registrations_registration") -> Iterator[dict[str, int]]:
    """Yield for each step of a walk through a table the id after which it begins, and its last id."""
    [(first, last)] = fetch(f"SELECT min(id), max(id) FROM {table}")
    if last is not None:
        for after in range(first - 1, last, _WALKED):
            yield {"after": after, "up_to": after + _WALKED}
