"""How many registrations and tombstones are stored, as PostgreSQL estimates it without counting."""

from typing import LiteralString

from kit.db.estimates import stored
from registrations.models import Registration

_TABLE: LiteralString = "registrations_registration"
STORED_TOMBSTONES: LiteralString = stored(
    _TABLE, where=f"state = '{Registration.State.UNREGISTERED}'", index="registration_tombstone"
)
STORED_REGISTRATIONS: LiteralString = f"greatest(0, {stored(_TABLE)} - {STORED_TOMBSTONES})"
