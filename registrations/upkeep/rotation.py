"""Changing the field encryption keys: every value made with another key than the first is made anew.

It is safe while the server runs, and can be stopped and started again. Each batch is a transaction that takes only rows
that nobody else holds. So it never waits while it holds a lock, and cannot dead-lock. The next pass finds rows that
were held.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from django.db.models import Model, Q, QuerySet

from registrations.keys.encryption import KEY_ID_SIZE, DecryptionError, Keyring, Purpose
from registrations.models import Grant, Registration, Route, TopicKey
from registrations.routes.routes import identity_of

BATCH_SIZE = 500


def _itself(_row: Any, value: bytes) -> bytes:
    return value


def _identity(route: Any, address: bytes) -> bytes:
    return identity_of(route.token_type, route.app_topic, address)


@dataclass(frozen=True, slots=True)
class Column:
    """An encrypted column, and the columns that may hold the digest of the same value: the first one always does.

    ``digested`` returns what the digest is made of, and ``needs`` names the columns that it reads.
    """

    model: type[Model]
    purpose: Purpose
    encrypted: str
    digests: tuple[str, ...] = ()
    digested: Callable[[Any, bytes], bytes] = _itself
    needs: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [self.encrypted, *self.digests]


COLUMNS = (
    Column(Registration, Purpose.ACCESS_TOKEN, "access_token_encrypted", ("access_token_digest",)),
    Column(
        Route,
        Purpose.ADDRESS,
        "address_encrypted",
        ("address_digest", "delivered_digest"),
        _identity,
        ("token_type", "app_topic"),
    ),
    Column(TopicKey, Purpose.TOPIC_KEY, "key_encrypted"),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step did. An unreadable row was altered, or made with a key that is not listed any more."""

    changed: int
    unreadable: int


def rotate(column: Column, keyring: Keyring, *, batch_size: int = BATCH_SIZE) -> Iterator[Batch]:
    """Make one pass over a column, with a transaction per batch."""
    last_pk = 0
    while True:
        with transaction.atomic():
            rows = list(_outdated(column, keyring).filter(pk__gt=last_pk)[:batch_size])
            if not rows:
                return
            changed = _remake(column, rows, keyring)
        last_pk = rows[-1].pk
        yield Batch(changed, len(rows) - changed)


def _outdated(column: Column, keyring: Keyring) -> QuerySet[Any]:
    is_outdated = Q()
    for name in (column.encrypted, *column.digests[:1]):
        is_outdated |= made_with_another_key(name, keyring)
    # In the order of the primary key, as all code that locks registrations does.
    rows = column.model._default_manager.select_for_update(skip_locked=True)  # noqa: SLF001
    return rows.filter(is_outdated).only("pk", *column.names, *column.needs).order_by("pk")


def made_with_another_key(name: str, keyring: Keyring) -> Q:
    """Return the condition that a value was made with another key than the current one.

    Values begin with the id of their key. Empty ones match nothing.
    """
    current_id = keyring.current_id
    next_id = (int.from_bytes(current_id) + 1).to_bytes(KEY_ID_SIZE + 1)[1:]
    below = Q(**{f"{name}__lt": current_id})
    above = Q(**{f"{name}__gte": next_id})
    return below | above if next_id > current_id else below


def _remake(column: Column, rows: Sequence[Any], keyring: Keyring) -> int:
    """Make the values of these rows anew, and return how many could be read."""
    values = {row.pk: value for row in rows if (value := _open(column, row, keyring)) is not None}
    made = {row.pk: list(_made(column, row, values[row.pk], keyring)) for row in rows if row.pk in values}
    _write(column.model, column.names, made)
    if column.model is Registration:
        _digest_grants(values, keyring)
    return len(values)


def _made(column: Column, row: Any, value: bytes, keyring: Keyring) -> Iterator[bytes | None]:
    """Yield the values of a row as they are from now on. A digest of something else than this value is dropped."""
    yield keyring.encrypt(column.purpose, value)
    digested = column.digested(row, value)
    for number, name in enumerate(column.digests):
        is_of_this = number == 0 or keyring.matches(column.purpose, digested, getattr(row, name) or b"")
        yield keyring.digest(column.purpose, digested) if is_of_this else None


def _open(column: Column, row: Any, keyring: Keyring) -> bytes | None:
    try:
        return keyring.decrypt(column.purpose, getattr(row, column.encrypted))
    except DecryptionError:
        return None


def _digest_grants(access_tokens: dict[int, bytes], keyring: Keyring) -> None:
    """Make the digests of grants anew, which are those of their registration's token.

    Whoever writes a grant holds its registration, as we do here.
    """
    grants = Grant.objects.filter(registration__in=access_tokens).only("registration_id", "access_token_digest")
    made: dict[int, list[bytes]] = {}
    for grant in grants:
        token = access_tokens[grant.registration_id]
        if keyring.matches(Purpose.ACCESS_TOKEN, token, bytes(grant.access_token_digest)):
            made[grant.pk] = [keyring.digest(Purpose.ACCESS_TOKEN, token)]
    _write(Grant, ["access_token_digest"], made)


def _write(model: type[Model], names: Sequence[str], values: Mapping[int, Sequence[bytes | None]]) -> None:
    """Write the values of all rows in one statement. The names come from this module alone."""
    if not values:
        return
    assignments = ", ".join(f"{name} = item.{name}" for name in names)
    arrays = ", ".join(["%s::bigint[]", *["%b::bytea[]"] * len(names)])
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {model._meta.db_table} AS own SET {assignments} "  # noqa: SLF001
            f"FROM unnest({arrays}) AS item (id, {', '.join(names)}) WHERE own.id = item.id",
            [list(values), *map(list, zip(*values.values(), strict=True))],
        )


def still_needing_old_keys(keyring: Keyring) -> dict[str, int]:
    """Return how many rows only an old key can serve, by what they hold."""
    counts = {
        "content digests": Registration.objects.filter(made_with_another_key("content_digest", keyring)).count(),
        "grant digests": Grant.objects.filter(made_with_another_key("access_token_digest", keyring)).count(),
    }
    for column in COLUMNS:
        condition = made_with_another_key(column.encrypted, keyring)
        label = f"{column.purpose.replace('-', ' ')}s"
        counts[label] = column.model._default_manager.filter(condition).count()  # noqa: SLF001
    return {name: number for name, number in counts.items() if number}
