"""Checks of the configuration, and of whether database, secrets and clocks fit this version and each other.

A wrong value of the configuration is a system check with an id and a hint. What is wrong with the servers around stops
a process before its first message, or is logged: on tables that were not migrated every message would fail. With other
field keys a server would read no address, and write rows that the right keys do not open. With another private key it
would be unknown to every client. The checks read only the newest rows, so during a change of keys the listed keys are
enough.
"""

import socket
from collections.abc import Iterator, Sequence

import psycopg
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's word
from django.db import ProgrammingError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from kit.db import base
from kit.db.base import connection_parameters, fetch
from kit.db.sessions import EVERY_SESSION
from kit.processes.leader import POOLED
from pushserver.console.health.asking import refusing_broker
from pushserver.console.parts import parts
from pushserver.release import Schema, compare, known_migrations
from registrations.encryption import DecryptionError, Purpose, keyring
from registrations.messages import TokenType
from registrations.models import Route
from registrations.rules import DEVICE_TOKENS

NEWEST = 20
OTHER_FIELD_KEYS = (
    "FIELD_ENCRYPTION_KEYS do not open the stored addresses: add the earlier key of the server, "
    "or no push reaches anybody."
)
OTHER_PRIVATE_KEY = (
    "SERVER_PRIVATE_KEY is not the key that clients registered with: list the earlier key in "
    "OTHER_SERVER_PRIVATE_KEYS, or all clients must register again."
)
# Stores refuse messages that are dated 20 seconds from their clock.
MAX_SKEW_SECONDS = 20
# A page over all days takes some 20 locks for each day, and 16 threads may show one at the same time. Measured, there
# is space for five times as many locks as PostgreSQL guarantees.
LOCKS_PER_DAY = 64
_LOCK_CAPACITY = """
    SELECT current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer
"""
# An invalid index: its creation was interrupted, or is in progress.
_UNFINISHED = """
    SELECT class.relname FROM pg_index AS index JOIN pg_class AS class ON class.oid = index.indexrelid
    WHERE NOT index.indisvalid AND class.relnamespace = current_schema()::regnamespace ORDER BY 1
"""

# The session as PostgreSQL knows it, the encoding of the database, and where new tables would be made. Each is asked
# before any statement is prepared, which a pooler may not survive.
_PLACE = """
    SELECT pg_backend_pid(), current_setting('server_encoding'), quote_ident(current_user),
        quote_ident(current_database()), quote_ident(current_schema()),
        has_schema_privilege(current_schema(), 'CREATE')
"""
# Initial settings of this session, and its role.
_BEGUN_WITH = "SELECT quote_ident(current_user), name, reset_val FROM pg_settings WHERE name = ANY (%s)"


def unusable_database() -> Iterator[str]:
    """Yield the faults of a database that this server cannot use, whatever is in it."""
    with connection.cursor() as cursor:
        cursor.execute(_PLACE)
        pid, encoding, account, database, schema_name, may_create = cursor.fetchone()
    if pid != connection.connection.info.backend_pid and _are_sessions_exchanged():
        yield f"There is {POOLED}."
    if encoding != "UTF8":
        yield (
            f"The database {database} has the encoding {encoding}, which cannot store every text: name another one in "
            f"DATABASE_URL, made by CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0;"
        )
    if not may_create:
        where = f"the schema {schema_name}" if schema_name else "any schema of its search_path"
        yield (
            f"The account {account} may not make tables in {where}, and each day needs new ones: "
            f"GRANT CREATE ON SCHEMA {schema_name or 'public'} TO {account};"
        )


def _are_sessions_exchanged() -> bool:
    """Return whether a pooler gives our session to others between two transactions.

    A pooler is known by the process id of a connection, which it makes up. Its free session goes to the next
    transaction, so that ours is another one while that lasts.
    """
    parameters = connection_parameters() | {"prepare_threshold": None}
    with psycopg.connect(**parameters, autocommit=True) as ours, psycopg.connect(**parameters) as other:
        before = ours.execute("SELECT pg_backend_pid()").fetchone()
        other.execute("SELECT pg_backend_pid()")
        return before != ours.execute("SELECT pg_backend_pid()").fetchone()


def schema() -> Schema:
    """Compare the database with the migrations of this version."""
    return compare(known_migrations(), set(MigrationRecorder(connection).applied_migrations()))


def unfit_schema() -> Iterator[str]:
    """Yield the fault of a database that lacks migrations of this version."""
    found = schema()
    if found.is_too_old:
        yield f"The database is {found.words}."
    elif found.missing:
        yield f"The database is {found.words}: run `manage.py migrate`, also where it was interrupted."


def odd_schema() -> Iterator[str]:
    """Yield oddities of a database that can be used: newer migrations, and unfinished indexes."""
    found = schema()
    if found.newer:
        yield f"The database was {found.words}. Go back to that version soon."
    for (name,) in fetch(_UNFINISHED):
        yield f"The index {name} is not finished and not used: REINDEX INDEX CONCURRENTLY {name};"


def untried_version() -> Iterator[str]:
    """Yield a line if PostgreSQL is newer than the versions that this server was tested with."""
    connection.ensure_connection()
    version = connection.connection.info.server_version
    if version // 10_000 > base.NEWEST:
        tested = f"{base.NEWEST} is the newest tested version"
        yield f"PostgreSQL {base.name_of(version)} is not tested with this server: {tested}."


def odd_session() -> Iterator[str]:
    """Yield a line for each session setting that a pooler does not pass on to PostgreSQL."""
    begun_with = fetch(_BEGUN_WITH, [list(EVERY_SESSION)])
    for user, name, value in begun_with:
        if value != EVERY_SESSION[name]:
            yield (
                f"A pooler keeps {name} = {EVERY_SESSION[name]} of our sessions from PostgreSQL. Without it requests "
                f"or pages take several times the CPU: ALTER ROLE {user} SET {name} = '{EVERY_SESSION[name]}';"
            )


def few_locks() -> Iterator[str]:
    """Yield a line if pages over all days may use up the locks of PostgreSQL."""
    capacity, wanted = fetch(_LOCK_CAPACITY)[0][0], LOCKS_PER_DAY * settings.NOTIFICATION_RETENTION_DAYS
    if capacity < wanted:
        yield (
            f"PostgreSQL has room for {capacity} locks, which {settings.NOTIFICATION_RETENTION_DAYS} days of "
            f"notifications may use up: ALTER SYSTEM SET max_locks_per_transaction = 256; and start PostgreSQL anew."
        )


def clocks_apart() -> Iterator[str]:
    """Yield a line if the clocks of this machine and of PostgreSQL differ too much."""
    ours = timezone.now()
    [(theirs,)] = fetch("SELECT clock_timestamp()")
    ahead = (ours - theirs).total_seconds()
    if abs(ahead) > MAX_SKEW_SECONDS:
        words = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        yield f"The clock of this machine is {words} PostgreSQL's: run NTP on both, or stores refuse what we send."


def foreign_field_keys() -> Iterator[str]:
    """Yield a fault if the field keys open none of the newest addresses. No process that has them may start then.

    A query of a missing table would leave an error in PostgreSQL's log at each first start.
    """
    [(is_there,)] = fetch("SELECT to_regclass('registrations_route') IS NOT NULL")
    if not is_there or not settings.FIELD_ENCRYPTION_KEYS:
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
    """Yield an oddity if none of the newest clients of a bridge registered with our keys. It is no fault, because an
    operator may have replaced a leaked key.
    """
    if settings.SERVER_PRIVATE_KEY and not all(part.knows_newest_clients(NEWEST) for part in parts()):
        yield OTHER_PRIVATE_KEY


# Checks whose findings stop the start of a process, those that stop workers, too, and those that are only logged.
FAULTS = (unusable_database, unfit_schema, foreign_field_keys)
FAULTS_OF_WORKERS = (*FAULTS, refusing_broker)
ODDITIES = (untried_version, odd_session, odd_schema, few_locks, clocks_apart, foreign_private_key)


# System checks --------------------------------------------------------------------------------------------------------


@register()
def configuration_is_usable(**_kwargs: object) -> list[CheckMessage]:
    """Report the problems that `pushserver.config.environment` found while the settings were read."""
    return list(settings.CONFIGURATION_PROBLEMS)


@register()
def canary_can_register(**_kwargs: object) -> list[CheckMessage]:
    """Report a CANARY_DEVICE_TOKEN that the server would refuse when the canary registers it."""
    token = settings.CANARY_DEVICE_TOKEN
    kind = TokenType.APN if settings.CANARY_APP_TOPIC else TokenType.FIREBASE
    if not token or not settings.CHECK_DEVICE_TOKENS or DEVICE_TOKENS[kind].fullmatch(token):
        return []
    message = f"CANARY_DEVICE_TOKEN is no token as the service {kind.name} makes them."
    hint = "Copy it in full. CANARY_APP_TOPIC makes it one of Apple, else it is one of Firebase."
    return [Error(message, hint=hint, id="pushserver.bad_canary_token")]


@register(Tags.database)
def database_is_usable(*, databases: Sequence[str] | None = None, **_kwargs: object) -> list[CheckMessage]:
    """Report a database that this server cannot use, or whose addresses the field keys do not open. `manage.py migrate`
    runs this check before anything starts.
    """
    if not databases or settings.CONFIGURATION_PROBLEMS:
        return []
    if unusable := [Error(fault, id="pushserver.unusable_database") for fault in unusable_database()]:
        return list(unusable)
    try:
        return [Error(fault, id="pushserver.foreign_field_keys") for fault in foreign_field_keys()]
    except ProgrammingError:  # the first migrations were interrupted before the column came
        return []


@register(Tags.database)
def servers_do_as_asked(*, databases: Sequence[str] | None = None, **_kwargs: object) -> list[CheckMessage]:
    """Warn about session settings that a pooler does not pass on, without which the server is slow, and about a Redis
    that refuses what workers do there.
    """
    if not databases or settings.CONFIGURATION_PROBLEMS:
        return []
    return [
        *(Warning(oddity, id="pushserver.odd_session") for oddity in odd_session()),
        *(Warning(fault, id="pushserver.refusing_broker") for fault in refusing_broker()),
    ]


@register()
def listens_here(**_kwargs: object) -> list[CheckMessage]:
    """Report a HOST that no server of this machine can listen on."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in settings.HOST else socket.AF_INET) as tried:
            tried.bind((settings.HOST, 0))
    except (OSError, UnicodeError):
        hint = "Set 127.0.0.1, or 0.0.0.0 in a container. Other programs set HOST, too: conda, tcsh."
        return [Error("HOST is no address of this machine.", hint=hint, id="pushserver.bad_host")]
    return []
