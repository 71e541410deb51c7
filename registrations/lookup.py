"""Answering queries: which installations of a key can be notified, and with which token."""

from collections import defaultdict
from collections.abc import Iterable

from django.db.models import F, Window
from django.db.models.functions import RowNumber

from measuring.batches import count
from registrations import metrics
from registrations.encryption import Purpose, Stored
from registrations.keyring import keyring
from registrations.messages import QueryInfo
from registrations.models import Grant, Registration, Route

# A client keeps three devices per user; whoever registers thousands must not make every answer about it huge.
MAX_INSTALLATIONS_PER_KEY = 20


def find(public_key_hashes: Iterable[bytes], *, server_public_key: bytes) -> dict[bytes, list[QueryInfo]]:
    """What a sender may know of these keys, by key hash, newest first; keys without anything to tell are absent.

    Left out: unregistered and disabled installations, those that asked not to be notified, and those whose grant names
    another server than ``server_public_key`` (33 bytes), because clients verify it.
    """
    asked = set(public_key_hashes)
    rows = (
        Grant.objects.filter(
            server_public_key=server_public_key,
            registration__public_key_hash__in=asked,
            registration__state=Registration.State.ACTIVE,
            registration__enabled=True,
            registration__route__state=Route.State.ACTIVE,
        )
        .annotate(recency=Window(RowNumber(), F("registration__public_key_hash"), F("granted_at").desc()))
        .filter(recency__lte=MAX_INSTALLATIONS_PER_KEY)
        .order_by("registration__public_key_hash", "recency")
        .values_list(
            "registration__public_key_hash",
            "registration__installation_id",
            "registration__version",
            "signature",
            "registration__allow_from_contacts_only",
            "registration__access_token_encrypted",
            "registration__allowed_key_list",
        )
    )
    found: defaultdict[bytes, list[QueryInfo]] = defaultdict(list)
    for row in rows:
        found[bytes(row[0])].append(_info(*row))
    count(metrics.QUERIED_KEYS, {("found",): len(found), ("not_found",): len(asked) - len(found)})
    return dict(found)


def _info(
    public_key_hash: Stored,
    installation_id: str,
    version: int,
    grant: Stored,
    contacts_only: bool,
    access_token_encrypted: Stored | None,
    allowed_key_list: list[bytes],
) -> QueryInfo:
    """The token itself for everybody, or its encrypted copies for contacts only."""
    return QueryInfo(
        public_key_hash=bytes(public_key_hash),
        installation_id=installation_id,
        version=version,
        grant=bytes(grant),
        access_token="" if contacts_only else _open(access_token_encrypted),
        allowed_key_list=tuple(map(bytes, allowed_key_list)) if contacts_only else (),
    )


def _open(access_token_encrypted: Stored | None) -> str:
    return keyring().decrypt(Purpose.ACCESS_TOKEN, access_token_encrypted or b"").decode()
