"""What keeps a process from its work, said in one line before it takes the first message.

It waits instead of ending: whoever mends the fault need not start anything again. Nothing is lost meanwhile, as
messages wait in the stores of the nodes and rows in the database. What is asked is not known here: it stands in the
module that STARTS_WHEN names, in two lists of functions that yield what is wrong, in one line. For as long as one of
`FAULTS` does so the process waits; `ODDITIES` are told, and it goes on.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from time import sleep

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, ProgrammingError, connection

from kit.db.clock import clock, database_now
from kit.db.reasons import reason

log = structlog.get_logger(__name__)

Question = Callable[[], Iterable[str]]
RETRY_SECONDS = 2.0


def wait_until_fit() -> None:
    """Return once nothing keeps this process from its work. What is wrong is told whenever it changes."""
    questions, logged = import_module(settings.STARTS_WHEN), ""
    while fault := next(_ask(questions.FAULTS), ""):
        if fault != logged:
            log.error("start_waits", reason=fault)
        logged = fault
        connection.close()
        sleep(RETRY_SECONDS)
    for oddity in _ask(questions.ODDITIES):
        log.warning("started_all_the_same", reason=oddity)
    clock.set(database_now())
    connection.close()  # nobody may inherit it


def _ask(questions: Iterable[Question]) -> Iterator[str]:
    try:
        for question in questions:
            yield from question()
    except (OperationalError, InterfaceError, ProgrammingError) as error:
        yield reason(error)
