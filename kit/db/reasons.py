"""Why the database did not do what it was asked, in words that an operator can act on.

Errors of PostgreSQL quote what was to be stored, so their text goes nowhere; its code (SQLSTATE) does.
"""

from django.db import Error, InterfaceError, OperationalError

from kit.db.postgresql.versions import TooOldError

REASONS = {
    "25006": "PostgreSQL is read-only: this is a standby, or somebody made it so",
    "28P01": "PostgreSQL refuses the password of DATABASE_URL",
    "3D000": "the database of DATABASE_URL does not exist",
    "42501": "the account of DATABASE_URL may not use a table: it must own all of them",
    "42703": "a column is missing: run `manage.py migrate`",
    "42P01": "a table is missing: run `manage.py migrate`",
    "53100": "the disk of PostgreSQL is full: make room, and start it if it has ended",
    "53200": "PostgreSQL has no memory left, or no room for locks: raise max_locks_per_transaction",
    "53300": "PostgreSQL takes no more connections: raise max_connections",
    "57014": "a statement took too long: is a snapshot open for hours (pg_stat_activity, pg_replication_slots)?",
    "57P01": "PostgreSQL is stopping, or somebody ended this session",
    "57P02": "PostgreSQL ended all its sessions after a fault of its own: its log says which",
    "57P03": "PostgreSQL is starting or stopping",
}
UNAVAILABLE = "PostgreSQL does not answer"
POOLED = "a pooler before PostgreSQL refuses what our sessions set: PgBouncer needs ignore_startup_parameters = options"
# The database itself is not as it must be, whatever is stored there.
UNFIT = {"42501", "42703", "42P01"}
# It stores nothing now, whoever asks for what.
CLOSED = {"25006", "53100", "53300", "57P01", "57P02", "57P03"}
# Another session was in the way: serialization failure, deadlock. A unique violation may stay when it is repeated.
COLLISIONS = {"40001", "40P01"}
CONFLICTS = {"23505", *COLLISIONS}
LOCK_TIMEOUT = "55P03"
STATEMENT_TIMEOUT = "57014"
TOO_LARGE = "54"  # class "program limit exceeded", which Django counts as OperationalError


def sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's code of an error, or an empty string for errors that are not PostgreSQL's."""
    cause = error.__cause__ if isinstance(error, Error) else error
    return getattr(cause, "sqlstate", None) or ""


def reason(error: BaseException) -> str:
    """Return why a statement failed, or PostgreSQL's code where that says nothing to an operator."""
    code = sqlstate(error)
    return REASONS.get(code) or (f"PostgreSQL says {code}" if code else _unfit(error) or UNAVAILABLE)


def _unfit(error: BaseException) -> str:
    """Return why a connection that can be made is of no use to us, or nothing. No code tells that."""
    if isinstance(error, TooOldError):
        return str(error)
    return POOLED if isinstance(error, OperationalError) and "unsupported startup parameter" in str(error) else ""


def is_unavailable(error: BaseException) -> bool:
    """Return whether an error is about the database rather than about what it was asked to store.

    An answer that did not come in time says nothing about an item either: it is worked off later, never quarantined.
    Neither does a table that was not migrated yet, nor a standby.
    """
    code = sqlstate(error)
    if code in UNFIT | CLOSED:
        return True
    is_operational = isinstance(error, OperationalError | InterfaceError)
    return is_operational and not code.startswith(TOO_LARGE) and code not in CONFLICTS | {LOCK_TIMEOUT}


def is_collision(error: BaseException) -> bool:
    """Return whether PostgreSQL ended one of two sessions that were in each other's way, whatever they stored."""
    return sqlstate(error) in COLLISIONS


def is_conflict(error: BaseException) -> bool:
    """Return whether another session was in the way, so that the same work succeeds when it is repeated."""
    return sqlstate(error) in CONFLICTS


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement ended because another session held a row or table for longer than `lock_timeout`."""
    return sqlstate(error) == LOCK_TIMEOUT


def is_closed(error: BaseException) -> bool:
    """Return whether PostgreSQL has failed everybody, so that the place where it failed says nothing."""
    code = sqlstate(error)
    return code in CLOSED or (not code and isinstance(error, OperationalError | InterfaceError))


def words(error: BaseException) -> str:
    """Return the same in one line for somebody who sits at a terminal, or nothing where the error itself says more.

    What libpq says of a connection that could not be made quotes no row.
    """
    if sqlstate(error):
        return REASONS.get(sqlstate(error), "")
    return _unfit(error) or f"PostgreSQL cannot be reached: {' '.join(str(error).split())}"
