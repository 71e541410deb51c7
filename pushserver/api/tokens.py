"""Tokens of the API: made, recognised, revoked."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from pushserver.models import ApiToken

MARK = "psk_"  # so that scanners for leaked secrets know one when they see it
SECRET_BYTES = 32
PREFIX_LENGTH = 12  # enough to tell one from the other, and nothing to guess the rest by
USE_IS_NOTED_EVERY = timedelta(minutes=1)


class NameTakenError(ValueError):
    """There is a token of this name that was not revoked: probably the same form, sent twice."""

    def __init__(self) -> None:
        super().__init__("There is a token of this name already. Revoke it first, or choose another name.")


def issue(
    name: str, scopes: Collection[str], *, by: str, now: datetime, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """A new token: its row, and the text that nobody can read again.

    Raises ValueError for a scope that does not exist, and NameTakenError.
    """
    unknown = set(scopes) - set(ApiToken.Scope.values)
    if unknown or not scopes:
        raise ValueError(f"Scopes are {', '.join(ApiToken.Scope.values)}: at least one of them.")
    text = MARK + secrets.token_urlsafe(SECRET_BYTES)
    row = ApiToken(
        name=name,
        prefix=text[:PREFIX_LENGTH],
        digest=digest_of(text),
        scopes=sorted(scopes),
        created_by=by,
        created_at=now,
        expires_at=expires_at,
    )
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        raise NameTakenError from error
    return row, text


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def recognise(text: str, *, now: datetime) -> ApiToken | None:
    """The token with this text, if it may still be used.

    Looked up by its digest: how long that takes tells about the digest, from which nobody gets to the token.
    """
    token = ApiToken.objects.filter(_usable(now), digest=digest_of(text)).first()
    if token and (token.last_used_at is None or now - token.last_used_at > USE_IS_NOTED_EVERY):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def _usable(now: datetime) -> Q:
    return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))


def revoke(token_ids: Collection[int], *, now: datetime) -> int:
    """How many of them it was this call that ended."""
    return ApiToken.objects.filter(pk__in=token_ids, revoked_at=None).update(revoked_at=now)
