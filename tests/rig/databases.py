"""Databases of the tests: one template, migrated once in a run, and clones of it.

After a test that commits, its database is put back to the state of the template. Django's own `flush` truncates every
table and makes content types, permissions and roles again. That takes 0.3 s and leaves out rows that migrations stored.
Here only tables that have rows are emptied, and tables that the template fills get their rows again. The connection
stays, as a new one reads the catalogue of all partitions again (20 ms); its session begins anew.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.core.management import call_command
from django.db import connection
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from embedded.servers.postgres import EmbeddedPostgres
from kit.db.base import connection_parameters

TEMPLATE = "tests_template"

# Copies of the rows that migrations stored lie in a schema of their own. Triggers of foreign keys are off, so that the
# order of the tables does not matter.
PUT_BACK = """
    CREATE SCHEMA tests;
    DO $$
    DECLARE name text; filled boolean;
    BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
            EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO filled;
            IF filled THEN
                EXECUTE format('CREATE TABLE tests.%I AS TABLE public.%I', name, name);
            END IF;
        END LOOP;
    END $$;
    CREATE FUNCTION tests.put_back() RETURNS void LANGUAGE plpgsql SET session_replication_role = replica AS $$
    DECLARE name text; filled boolean; kept boolean;
    BEGIN
        FOR name, kept IN
            SELECT relname, copy IS NOT NULL FROM pg_class, to_regclass(format('tests.%I', relname)) AS copy
            WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                AND (copy IS NOT NULL OR pg_relation_size(pg_class.oid) > 0)  -- most partitions never had a row
        LOOP
            EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO filled;
            IF filled THEN
                EXECUTE format('DELETE FROM public.%I', name);
            END IF;
            IF kept THEN
                EXECUTE format('INSERT INTO public.%I SELECT * FROM tests.%I', name, name);
            END IF;
        END LOOP;
    END $$;
"""


def make_template(postgres: EmbeddedPostgres, folder: Path) -> None:
    """Make the template unless another process of this run has made it. ``folder`` belongs to the whole run."""
    with (folder / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _exists(postgres, TEMPLATE):
            draft = f"{TEMPLATE}_draft"
            _run(postgres, "CREATE DATABASE {}", draft)
            with connected_to(postgres.url(draft)):
                call_command("migrate", verbosity=0, interactive=False)
                with connection.cursor() as cursor:
                    cursor.execute(PUT_BACK)
            _run(postgres, "ALTER DATABASE {} RENAME TO {}", draft, TEMPLATE)


def clone_template(postgres: EmbeddedPostgres, name: str) -> None:
    _run(postgres, "CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY", name, TEMPLATE)


@contextmanager
def notices(channel: str) -> Iterator[Callable[[], list[psycopg.Notify]]]:
    """Yield a function that returns the announcements since its last call."""
    with psycopg.connect(**connection_parameters(), autocommit=True) as session:
        session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

        def received() -> list[psycopg.Notify]:
            session.execute("SELECT 1")
            return list(session.notifies(timeout=0))

        yield received


def put_back() -> None:
    if not connection.is_usable():  # a test may end all sessions
        connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT tests.put_back(), pg_advisory_unlock_all(); RESET ALL; UNLISTEN *")


@contextmanager
def connected_to(url: str) -> Iterator[None]:
    """Connect this thread's Django connection to the database of ``url`` while the block runs."""
    before = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = conninfo_to_dict(url)["dbname"]
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before


def _exists(postgres: EmbeddedPostgres, name: str) -> bool:
    with psycopg.connect(postgres.url("postgres")) as admin:
        return admin.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def _run(postgres: EmbeddedPostgres, statement: str, *names: str) -> None:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
