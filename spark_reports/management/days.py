"""Options, progress and errors of the commands: the days (by default the last closed one), and --replace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import Any

import psycopg
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, InterfaceError
from rich.console import Console

from kit.db.clock import database_now
from spark_reports.export.days import Progress
from spark_reports.lake import in_one_line
from spark_reports.nights.nights import last_closed_day
from spark_reports.running.runs import FAULTS, RunError


def add_options(parser: CommandParser) -> None:
    parser.add_argument("--day", type=date.fromisoformat, help="one day, as 2026-11-20; by default the last closed one")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, metavar="DAY", help="first day of a range")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, metavar="DAY", help="last day of a range")
    parser.add_argument("--replace", action="store_true", help="export days again that are in the lake already")


def chosen_days(options: Mapping[str, Any]) -> tuple[date, date]:
    """Return the first and the last day that the options name."""
    day, first, last = options["day"], options["first"], options["last"]
    if day and (first or last):
        raise CommandError("Give either --day or --from and --to.")
    if last and not first:
        raise CommandError("--to needs --from.")
    newest = last_closed_day(database_now())
    return (first, last or newest) if first else (day or newest, day or newest)


@contextmanager
def with_progress() -> Iterator[Progress]:
    """Yield what shows the last line of progress, and turn faults into CommandError.

    Only the kind of a database error is shown, because its text may quote a row.
    """
    try:
        with Console(stderr=True).status("starting") as status:
            yield status.update
    except (RunError, *FAULTS) as error:
        raise CommandError(in_one_line(error)) from error
    except (DatabaseError, InterfaceError, psycopg.Error) as error:
        raise CommandError(f"The database failed ({type(error).__name__}): nothing of this was published.") from error
