"""Expiry of registrations that were neither repeated nor reached by a push for months.

A client repeats its registration whenever its device, its contacts or its chats change, and a push that arrives proves
that the device exists. A registration without either for months is abandoned, or was made up.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction

from notifications.acceptance import acceptance
from registrations.upkeep import retention


def expire(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Unregister installations that were neither repeated nor reached for ``keep``, and yield the number of each step.

    Above a limit, nothing is unregistered until an operator allows it: see `retention.may_expire`.
    """
    if not retention.may_expire(now=now, keep=keep):
        return
    for step in retention.walk():
        with transaction.atomic():
            expired = retention.expire(step, now=now, keep=keep)
            acceptance.withdraw(expired, now=now)
        yield len(expired)
