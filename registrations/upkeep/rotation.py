"""Rotation of the field encryption keys: values of other keys are encrypted and digested again with the first key.

It is safe while the server runs, and can be stopped and repeated. Each batch is a transaction that skips rows which
other sessions have locked. So it never waits for a lock while it holds one, and cannot dead-lock. The next pass finds
the skipped rows.
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
    """An encrypted column, and the columns with a digest of the same value.

    The first of ``digests`` always belongs to this value, and the others may belong to an earlier one. ``digested``
    returns the input of the digest, and ``needs`` names the columns that it reads.
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
    """The result of one step. An unreadable row was altered, or encrypted with a key that is no longer listed."""

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
    # In the order of the primary key, like all code that locks registrations.
    rows = column.model._default_manager.select_for_update(skip_locked=True)  # noqa: SLF001
    return rows.filter(is_outdated).only("pk", *column.names, *column.needs).order_by("pk")


def made_with_another_key(name: str, keyring: Keyring) -> Q:
    """Return the condition that a column's value has another key than the current one.

    Values begin with the id of their key. Empty values match neither condition.
    """
    current_id = keyring.current_id
    next_id = (int.from_bytes(current_id) + 1).to_bytes(KEY_ID_SIZE + 1)[1:]
    below = Q(**{f"{name}__lt": current_id})
    above = Q(**{f"{name}__gte": next_id})
    return below | above if next_id > current_id else below


def _remake(column: Column, rows: Sequence[Any], keyring: Keyring) -> int:
    """Encrypt the values of these rows again, and return the number of rows that could be read."""
    values = {row.pk: value for row in rows if (value := _open(column, row, keyring)) is not None}
    made = {row.pk: list(_made(column, row, values[row.pk], keyring)) for row in rows if row.pk in values}
    _write(column.model, column.names, made)
    if column.model is Registration:
        _digest_grants(values, keyring)
    return len(values)


def _made(column: Column, row: Any, value: bytes, keyring: Keyring) -> Iterator[bytes | None]:
    """Yield the new values of a row's columns. A digest that belongs to another value becomes empty."""
    yield keyring.encrypt(column.purpose, value)
    digested = column.digested(row, value)
    for number, name in enumerate(column.digests):
        known = getattr(row, name)
        is_of_this = number == 0 or keyring.matches(column.purpose, digested, known)
        yield keyring.digest(column.purpose, digested) if is_of_this else known and b""


def _open(column: Column, row: Any, keyring: Keyring) -> bytes | None:
    try:
        return keyring.decrypt(column.purpose, getattr(row, column.encrypted))
    except DecryptionError:
        return None


def _digest_grants(access_tokens: dict[int, bytes], keyring: Keyring) -> None:
    """Digest the access tokens of grants again, which are those of their registrations.

    No other session can write these grants, because writers of a grant first lock its registration, as here.
    """
    grants = Grant.objects.filter(registration__in=access_tokens).only("registration_id", "access_token_digest")
    made: dict[int, list[bytes]] = {}
    for grant in grants:
        token = access_tokens[grant.registration_id]
        if keyring.matches(Purpose.ACCESS_TOKEN, token, bytes(grant.access_token_digest)):
            made[grant.pk] = [keyring.digest(Purpose.ACCESS_TOKEN, token)]
    _write(Grant, ["access_token_digest"], made)


def _write(model: type[Model], names: Sequence[str], values: Mapping[int, Sequence[bytes | None]]) -> None:
    """Write the values of all rows in one statement. The column names must be constants of this module."""
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
    """Return the number of rows that need an old key, by the name of their values."""
    counts = {
        "content digests": Registration.objects.filter(made_with_another_key("content_digest", keyring)).count(),
        "grant digests": Grant.objects.filter(made_with_another_key("access_token_digest", keyring)).count(),
    }
    for column in COLUMNS:
        condition = made_with_another_key(column.encrypted, keyring)
        label = f"{column.purpose.replace('-', ' ')}s"
        counts[label] = column.model._default_manager.filter(condition).count()  # noqa: SLF001
    return {name: number for name, number in counts.items() if number}
