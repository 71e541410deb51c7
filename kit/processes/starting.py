"""Start of a process: it logs one line about each fault, and waits until it can work.

It waits instead of ending, so that nobody has to start it again after a repair. Nothing is lost meanwhile: messages
wait in the stores of the nodes, and rows in the database.

The setting STARTS_WHEN names the module with the checks, functions that yield one line about each fault. The process
waits as long as a check of `FAULTS`, or `FAULTS_OF_WORKERS`, yields a line. It logs the lines of `ODDITIES` as
warnings, and starts.

A fault for which a process waits, and a refusal of PostgreSQL at any time later, are noted in the metrics of this
machine, and so at each metrics port, because database and Redis may be what failed. They outrank what other processes
infer from its silence.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from time import sleep

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, ProgrammingError, connection
from prometheus_client import Gauge

from kit.db.clock import database_now
from kit.db.reasons import reason, sqlstate
from kit.processes.status import ChangeFilter

log = structlog.get_logger(__name__)

OWN_FAULT = Gauge(
    "pushserver_own_fault_timestamp_seconds",
    "When a process of this machine last met a fault that it knows the reason of: a code of PostgreSQL (`53100`: its "
    "disk is full), or the start-up check for which it waits. "
    "When it moves: `docs/runbooks/PushServerDatabaseDown.md` for a code, the log line `start_waits` for a check.",
    ["fault"],
    multiprocess_mode="livemax",
)
# PostgreSQL refuses every process for these reasons, and not one statement.
REFUSALS = ("25006", "42501", "53100", "53300")
for code in REFUSALS:  # a full disk has no room for a new entry
    OWN_FAULT.labels(code)

Check = Callable[[], Iterable[str]]
RETRY_SECONDS = 2.0


def wait_until_fit(*, is_worker: bool = False) -> None:
    """Wait until no check finds a fault. Note it meanwhile, and log each once, and again after another."""
    checks, faults = import_module(settings.STARTS_WHEN), ChangeFilter()
    stopping: Iterable[Check] = checks.FAULTS_OF_WORKERS if is_worker else checks.FAULTS
    while fault := next(_lines_of(stopping), ""):
        OWN_FAULT.labels(fault).set_to_current_time()
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


def note_refusal(error: BaseException) -> None:
    """Note that PostgreSQL refuses this process, if the error says that it refuses every process."""
    if (code := sqlstate(error)) in REFUSALS:
        OWN_FAULT.labels(code).set_to_current_time()
