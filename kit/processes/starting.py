"""Start-up checks: a process logs one line about each fault, and waits until it can work.

It waits instead of ending, so that nobody has to start it again after a repair. Nothing is lost meanwhile: messages
wait in the stores of the nodes, and rows in the database.

The setting STARTS_WHEN names the module with the checks, functions that yield one line about each fault. The process
waits as long as a check of `FAULTS`, or `FAULTS_OF_WORKERS`, yields a line. It logs the lines of `ODDITIES` as
warnings, and starts.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from time import sleep

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, ProgrammingError, connection

from kit.db.clock import database_now
from kit.db.reasons import reason
from kit.processes import own_faults
from kit.processes.status import ChangeFilter

log = structlog.get_logger(__name__)

Check = Callable[[], Iterable[str]]
RETRY_SECONDS = 2.0


def wait_until_fit(*, is_worker: bool = False) -> None:
    """Wait until no check finds a fault, which is in the metrics meanwhile. Log each once, and again after another."""
    checks, faults = import_module(settings.STARTS_WHEN), ChangeFilter()
    stopping: Iterable[Check] = checks.FAULTS_OF_WORKERS if is_worker else checks.FAULTS
    while fault := next(_lines_of(stopping), ""):
        own_faults.note(fault)
        if faults.has_changed(fault):
            log.error("start_waits", reason=fault)
        connection.close()
        sleep(RETRY_SECONDS)
    for oddity in _lines_of(checks.ODDITIES):
        log.warning("started_all_the_same", reason=oddity)
    database_now()  # sets the clock
    connection.close()  # so that no forked process inherits it


def _lines_of(checks: Iterable[Check]) -> Iterator[str]:
    try:
        for check in checks:
            yield from check()
    except (OperationalError, InterfaceError, ProgrammingError) as error:
        yield reason(error)
