"""Registrations that nobody keeps up: they end, later nothing is known of them, and nobody listens for them.

A client repeats its registration whenever its device, its contacts or its chats change, and a push that arrives proves
that the device is there. Where neither happened for months there is nobody, or somebody who makes up registrations.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction

from notifications.acceptance import acceptance
from registrations.upkeep import retention


def expire(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Unregister what was neither repeated nor reached for ``keep``. Yield how many installations each step ended.

    Nothing ends while it is more than somebody has to allow.
    """
    if not retention.may_expire(now=now, keep=keep):
        return
    for after in retention.walk():
        with transaction.atomic():
            expired = retention.expire(after=after, now=now, keep=keep)
            acceptance.withdraw(expired, now=now)
        yield len(expired)
