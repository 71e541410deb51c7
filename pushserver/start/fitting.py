"""Whether database, secrets and clocks fit this version and each other. Asked before the first message.

On tables that were not migrated every message would fail. A server with other field keys would read no address and
write rows that the right ones do not open. One with another private key would be unknown to every client. Only the
newest rows are asked about, so while keys are being changed those that are listed are enough.
"""

from collections.abc import Iterator

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from kit.db.postgresql.sessions import EVERY_SESSION
from kit.db.postgresql.versions import untried
from kit.db.statements import fetch
from kit.operations import parts
from pushserver.start.release import Schema, compare, known_migrations
from registrations.keys.encryption import DecryptionError, Purpose
from registrations.keys.keyring import keyring
from registrations.models import Route

NEWEST = 20
OTHER_FIELD_KEYS = (
    "FIELD_ENCRYPTION_KEYS do not open what is stored: add the key that the server ran with before, "
    "or nobody is reached."
)
OTHER_PRIVATE_KEY = (
    "SERVER_PRIVATE_KEY is not the one that clients registered with: list the one of before in "
    "OTHER_SERVER_PRIVATE_KEYS, or they must all register anew."
)
# Stores refuse what is dated 20 seconds from their clock.
MAX_SKEW_SECONDS = 20
# A page that looks at all days takes some 20 locks for each, and 16 threads may show one at once. As measured, there is
# room for five times as many locks as PostgreSQL promises.
LOCKS_PER_DAY = 64
_LOCK_CAPACITY = """
    SELECT current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer
"""
# Left behind by an index that was interrupted while it was made, or is being made right now.
_UNFINISHED = """
    SELECT class.relname FROM pg_index AS index JOIN pg_class AS class ON class.oid = index.indexrelid
    WHERE NOT index.indisvalid AND class.relnamespace = current_schema()::regnamespace ORDER BY 1
"""

# What this session began with, and whose it is.
_BEGUN_WITH = "SELECT quote_ident(current_user), name, reset_val FROM pg_settings WHERE name = ANY (%s)"


def schema() -> Schema:
    """Return how the database stands to the migrations of this version."""
    return compare(known_migrations(), set(MigrationRecorder(connection).applied_migrations()))


def unfit_schema() -> Iterator[str]:
    """Yield what is wrong when migrations of this version were not applied, all of them or the last ones."""
    found = schema()
    if found.is_too_old:
        yield f"The database is {found.words}."
    elif found.missing:
        yield f"The database is {found.words}: run `manage.py migrate`, also where it was interrupted."


def odd_schema() -> Iterator[str]:
    """Yield what an operator should know of a database that can be used."""
    found = schema()
    if found.newer:
        yield f"The database was {found.words}. Go back to that version soon."
    for (name,) in fetch(_UNFINISHED):
        yield f"The index {name} is not finished and not used: REINDEX INDEX CONCURRENTLY {name};"


def untried_version() -> Iterator[str]:
    """Yield what an operator should know of a PostgreSQL that is newer than this version of ours."""
    connection.ensure_connection()
    if words := untried(connection.connection.info.server_version):
        yield words


def odd_session() -> Iterator[str]:
    """Yield a line when our sessions begin with other settings than we ask for, as behind a pooler that drops them."""
    begun_with = fetch(_BEGUN_WITH, [list(EVERY_SESSION)])
    for user, name, value in begun_with:
        if value != EVERY_SESSION[name]:
            yield (
                f"A pooler keeps {name} = {EVERY_SESSION[name]} of our sessions from PostgreSQL. Without it requests "
                f"or pages take several times the CPU: ALTER ROLE {user} SET {name} = '{EVERY_SESSION[name]}';"
            )


def few_locks() -> Iterator[str]:
    """Yield a line when pages that look at all days may leave PostgreSQL without room for anybody's locks."""
    capacity, wanted = fetch(_LOCK_CAPACITY)[0][0], LOCKS_PER_DAY * settings.NOTIFICATION_RETENTION_DAYS
    if capacity < wanted:
        yield (
            f"PostgreSQL has room for {capacity} locks, which {settings.NOTIFICATION_RETENTION_DAYS} days of "
            f"notifications may use up: ALTER SYSTEM SET max_locks_per_transaction = 256; and start PostgreSQL anew."
        )


def clocks_apart() -> Iterator[str]:
    """Yield a line when the clock of this machine and that of PostgreSQL's are apart."""
    ours = timezone.now()
    [(theirs,)] = fetch("SELECT clock_timestamp()")
    ahead = (ours - theirs).total_seconds()
    if abs(ahead) > MAX_SKEW_SECONDS:
        words = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        yield f"The clock of this machine is {words} PostgreSQL's: run NTP on both, or stores refuse what we send."


def foreign_field_keys() -> Iterator[str]:
    """Yield what is wrong when none of the newest addresses can be opened. Nothing may start then.

    Asking a table that is not there yet would leave an error in PostgreSQL's log at each first start.
    """
    [(is_there,)] = fetch("SELECT to_regclass('registrations_route') IS NOT NULL")
    if not is_there:
        return
    newest = Route.objects.order_by("-pk").values_list("address_encrypted", flat=True)
    sealed = list(newest[:NEWEST])
    if sealed and not any(map(_opens, sealed)):
        yield OTHER_FIELD_KEYS


def _opens(sealed: bytes) -> bool:
    try:
        keyring().decrypt(Purpose.ADDRESS, sealed)
    except DecryptionError:
        return False
    return True


def foreign_private_key() -> Iterator[str]:
    """Yield what is odd when none of the newest clients of a bridge registered with us. An operator may want that,
    after a key has leaked.
    """
    if not all(part.knows_newest_clients(NEWEST) for part in parts()):
        yield OTHER_PRIVATE_KEY


# Findings that keep a process from its work, and findings that it logs at its start.
FAULTS = (unfit_schema, foreign_field_keys)
ODDITIES = (untried_version, odd_session, odd_schema, few_locks, clocks_apart, foreign_private_key)
