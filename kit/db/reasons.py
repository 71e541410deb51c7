"""Reasons for database errors, in words that an operator can act on, and classes of these errors.

Rule: the text of an error never leaves this module, because PostgreSQL quotes stored values in it. Its code (SQLSTATE)
may leave.
"""

import psycopg
from django.db import Error, InterfaceError, OperationalError

from kit.db.base import TooOldError

READ_ONLY = "25006"
REASONS = {
    READ_ONLY: "PostgreSQL cannot be written: it is a standby, or its default_transaction_read_only is on",
    "25P03": "PostgreSQL ended a transaction that sent nothing for half a minute: was the process stopped?",
    "28P01": "PostgreSQL refuses the password of DATABASE_URL",
    "3D000": "the database of DATABASE_URL does not exist",
    "42501": "the account of DATABASE_URL has no access to a table: it must own all tables",
    "42703": "a column is missing: run `manage.py migrate`",
    "42P01": "a table is missing: run `manage.py migrate`",
    "53100": "the disk of PostgreSQL is full: free some space, and start PostgreSQL if it has stopped",
    "53200": "PostgreSQL has no memory left, or no space for locks: raise max_locks_per_transaction",
    "53300": "PostgreSQL accepts no more connections: raise max_connections",
    "55P03": "another session keeps a table or a row locked: see pg_locks",
    "57014": "a statement took too long: is a snapshot open for hours (pg_stat_activity, pg_replication_slots)?",
    "57P01": "PostgreSQL is stopping, or an administrator ended this session",
    "57P02": "PostgreSQL ended all sessions after a crash of one of its processes: see its log",
    "57P03": "PostgreSQL is starting or stopping",
}
DISK_FULL = "53100"
UNAVAILABLE = "PostgreSQL does not answer"
POOLED = "a pooler refuses the settings of our sessions: PgBouncer needs ignore_startup_parameters = options"
# By what libpq says about a connection that was refused, as it passes on no code. "read-only" is about
# `target_session_attrs`.
_OF_CONNECTIONS = {
    "unsupported startup parameter": POOLED,
    "session is read-only": REASONS[READ_ONLY],
    "password authentication failed": REASONS["28P01"],
    "too many clients already": REASONS["53300"],
    "remaining connection slots": REASONS["53300"],
}
_OPERATIONAL = (OperationalError, psycopg.OperationalError)
# The schema or the permissions of the database are wrong.
UNFIT = {"42501", "42703", "42P01"}
# The server refuses all statements at the moment.
CLOSED = {READ_ONLY, "25P03", "53100", "53300", "57P01", "57P02", "57P03"}
# Two sessions collided: serialization failure, deadlock. A unique violation is a conflict too, but may last.
COLLISIONS = {"40001", "40P01"}
CONFLICTS = {"23505", *COLLISIONS}
LOCK_TIMEOUT = "55P03"
STATEMENT_TIMEOUT = "57014"
TOO_LARGE = "54"  # class "program limit exceeded", which Django counts as OperationalError


def sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's code of an error, or an empty string for other errors."""
    cause = error.__cause__ if isinstance(error, Error) else error
    return getattr(cause, "sqlstate", None) or ""


def reason(error: BaseException) -> str:
    """Return the reason for an error, or PostgreSQL's code for errors that an operator cannot repair."""
    code = sqlstate(error)
    return REASONS.get(code) or (f"PostgreSQL reports {code}" if code else _unfit(error) or UNAVAILABLE)


def _unfit(error: BaseException) -> str:
    """Return why a reachable server cannot be used, or an empty text. These errors have no code."""
    if isinstance(error, TooOldError):
        return str(error)
    if isinstance(error, _OPERATIONAL):
        return next((why for words, why in _OF_CONNECTIONS.items() if words in str(error)), "")
    return ""


def is_unavailable(error: BaseException) -> bool:
    """Return whether the database as a whole causes an error, and not the values of a statement.

    Such errors include timeouts, missing migrations, and standbys. An item is retried after them, and never
    quarantined.
    """
    code = sqlstate(error)
    if code in UNFIT | CLOSED:
        return True
    is_operational = isinstance(error, OperationalError | InterfaceError)
    return is_operational and not code.startswith(TOO_LARGE) and code not in CONFLICTS | {LOCK_TIMEOUT}


def is_collision(error: BaseException) -> bool:
    """Return whether PostgreSQL rolled back a transaction that collided with another one."""
    return sqlstate(error) in COLLISIONS


def is_conflict(error: BaseException) -> bool:
    """Return whether a statement conflicted with another session, so that it may succeed when it is repeated."""
    return sqlstate(error) in CONFLICTS


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement failed because another session kept a lock for longer than `lock_timeout`."""
    return sqlstate(error) == LOCK_TIMEOUT


def is_closed(error: BaseException) -> bool:
    """Return whether the server fails for all statements, so that the place of the error is irrelevant."""
    code = sqlstate(error)
    return code in CLOSED or (not code and isinstance(error, (*_OPERATIONAL, InterfaceError, psycopg.InterfaceError)))


def words(error: BaseException) -> str:
    """Return the reason for a person at a terminal, or an empty text where the error itself is clearer.

    The text includes libpq's message about a failed connection, which quotes no stored values.
    """
    if sqlstate(error):
        return REASONS.get(sqlstate(error), "")
    return _unfit(error) or f"PostgreSQL cannot be reached: {' '.join(str(error).split())}"
