"""Tokens of the API: issuing, recognising and revoking them."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from pushserver.models import ApiToken

MARK = "psk_"  # by which scanners for leaked secrets recognise a token
SECRET_BYTES = 32
PREFIX_LENGTH = 12  # enough to tell tokens apart, and no help to guess the rest
USE_IS_NOTED_EVERY = timedelta(minutes=1)


class NameTakenError(ValueError):
    """A token of this name exists and was not revoked. The form may have been sent twice."""

    def __init__(self) -> None:
        super().__init__("There is a token of this name already. Revoke it first, or choose another name.")


def issue(
    name: str, scopes: Collection[str], *, by: str, now: datetime, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """Store a new token. Return its row and its text, which is stored nowhere.

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
    """Return the SHA-256 of a token's text, 32 bytes, under which the token is stored."""
    return hashlib.sha256(text.encode()).digest()


def recognise(text: str, *, now: datetime) -> ApiToken | None:
    """Return the token with this text, or None if no usable token has it.

    The look-up is by digest. Its time depends on the digest only, and the token cannot be found from its digest.
    """
    is_valid = Q(expires_at=None) | Q(expires_at__gt=now)
    token = ApiToken.objects.filter(is_valid, revoked_at=None, digest=digest_of(text)).first()
    if token and (token.last_used_at is None or now - token.last_used_at > USE_IS_NOTED_EVERY):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def revoke(token_ids: Collection[int], *, now: datetime) -> int:
    """Revoke these tokens and return how many of them were not revoked before."""
    return ApiToken.objects.filter(pk__in=token_ids, revoked_at=None).update(revoked_at=now)
