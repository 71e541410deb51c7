"""Estimated numbers of stored registrations and tombstones, as SQL expressions (see `kit.db.estimates`)."""

from typing import LiteralString

from kit.db.estimates import stored
from registrations.models import Registration

_TABLE: LiteralString = "registrations_registration"
STORED_TOMBSTONES: LiteralString = stored(
    _TABLE, where=f"state = '{Registration.State.UNREGISTERED}'", index="registration_tombstone"
)
STORED_REGISTRATIONS: LiteralString = f"greatest(0, {stored(_TABLE)} - {STORED_TOMBSTONES})"
