"""Rotation of the field encryption keys: values of other keys are encrypted and digested again with the first key.

It is safe while the server runs, and can be stopped and repeated. Each batch is a transaction that skips rows which
other sessions have locked. So it never waits for a lock while it holds one, and cannot dead-lock. The next pass finds
the skipped rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Model, Q, QuerySet

from registrations.encryption import KEY_ID_SIZE, DecryptionError, Keyring, Purpose
from registrations.messages import identity_of
from registrations.models import Grant, Registration, Route, TopicKey

BATCH_SIZE = 500


@dataclass(frozen=True, slots=True)
class Column:
    """An encrypted column, the columns with a digest of the same value, and others that the digests depend on.

    The first of ``digests`` always belongs to this value, and the others may belong to an earlier one.
    """

    model: type[Model]
    purpose: Purpose
    encrypted: str
    digests: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [self.encrypted, *self.digests]


COLUMNS = (
    Column(Registration, Purpose.ACCESS_TOKEN, "access_token_encrypted", ("access_token_digest",)),
    Column(
        Route, Purpose.ADDRESS, "address_encrypted", ("address_digest", "delivered_digest"), ("token_type", "app_topic")
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
            readable = [row for row in rows if _encrypt_again(row, column, keyring)]
            column.model._default_manager.bulk_update(readable, column.names)  # noqa: SLF001
            if column.model is Registration:
                _digest_grants(readable, keyring)
        last_pk = rows[-1].pk
        yield Batch(len(readable), len(rows) - len(readable))


def _outdated(column: Column, keyring: Keyring) -> QuerySet[Any]:
    is_outdated = Q()
    for name in (column.encrypted, *column.digests[:1]):
        is_outdated |= _made_with_another_key(name, keyring)
    # In the order of the primary key, like all code that locks registrations.
    rows = column.model._default_manager.select_for_update(skip_locked=True)  # noqa: SLF001
    return rows.filter(is_outdated).only("pk", *column.names, *column.needs).order_by("pk")


def _made_with_another_key(name: str, keyring: Keyring) -> Q:
    """Return the condition that a column's value has another key than the current one.

    Values begin with the id of their key. Empty values match neither condition.
    """
    current_id = keyring.current_id
    next_id = (int.from_bytes(current_id) + 1).to_bytes(KEY_ID_SIZE + 1)[1:]
    below = Q(**{f"{name}__lt": current_id})
    above = Q(**{f"{name}__gte": next_id})
    return below | above if next_id > current_id else below


def _encrypt_again(row: Any, column: Column, keyring: Keyring) -> bool:
    """Set the new values of a row's columns, and return whether the row could be read.

    A digest that belongs to another value becomes empty.
    """
    try:
        value = keyring.decrypt(column.purpose, getattr(row, column.encrypted))
    except DecryptionError:
        return False
    setattr(row, column.encrypted, keyring.encrypt(column.purpose, value))
    digested = identity_of(row.token_type, row.app_topic, value) if isinstance(row, Route) else value
    for number, name in enumerate(column.digests):
        known = getattr(row, name)
        is_of_this = number == 0 or keyring.matches(column.purpose, digested, known)
        setattr(row, name, keyring.digest(column.purpose, digested) if is_of_this else known and b"")
    return True


def _digest_grants(registrations: list[Registration], keyring: Keyring) -> None:
    """Digest the access tokens of grants again, which are those of their registrations.

    No other session can write these grants, because writers of a grant first lock its registration, as here.
    """
    sealed = {each.pk: each.access_token_encrypted or b"" for each in registrations}
    changed = []
    for grant in Grant.objects.filter(registration__in=sealed).only("registration_id", "access_token_digest"):
        token = keyring.decrypt(Purpose.ACCESS_TOKEN, sealed[grant.registration_id])
        if keyring.matches(Purpose.ACCESS_TOKEN, token, grant.access_token_digest):
            grant.access_token_digest = keyring.digest(Purpose.ACCESS_TOKEN, token)
            changed.append(grant)
    Grant.objects.bulk_update(changed, ["access_token_digest"])


def still_needing_old_keys(keyring: Keyring) -> dict[str, int]:
    """Return the number of rows that need an old key, by the name of their values."""
    counts = {
        "content digests": Registration.objects.filter(_made_with_another_key("content_digest", keyring)).count(),
        "grant digests": Grant.objects.filter(_made_with_another_key("access_token_digest", keyring)).count(),
    }
    for column in COLUMNS:
        condition = _made_with_another_key(column.encrypted, keyring)
        label = f"{column.purpose.replace('-', ' ')}s"
        counts[label] = column.model._default_manager.filter(condition).count()  # noqa: SLF001
    return {name: number for name, number in counts.items() if number}
