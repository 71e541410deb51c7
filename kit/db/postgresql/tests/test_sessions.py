"""Tests of the settings of our sessions, which override those of the server, the database and the account."""

import threading
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from kit.batches.batch import Wakeup, Worker
from kit.db.postgresql.sessions import BATCH_WORKER, EVERY_SESSION
from kit.db.statements import fetch

pytestmark = pytest.mark.django_db(transaction=True)
FOUND = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"


def in_new_session(read: Any) -> Any:
    found: list[Any] = []

    def run() -> None:
        found.append(read())
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_setting_of_the_account_or_the_database_does_not_override_ours() -> None:
    database = connection.ops.quote_name(connection.settings_dict["NAME"])
    fetch(f"ALTER ROLE CURRENT_USER IN DATABASE {database} SET jit = on")
    fetch(f"ALTER DATABASE {database} SET jit = on")
    try:
        assert in_new_session(lambda: dict(fetch(FOUND, [list(EVERY_SESSION)]))) == EVERY_SESSION
    finally:
        fetch(f"ALTER ROLE CURRENT_USER IN DATABASE {database} RESET jit")
        fetch(f"ALTER DATABASE {database} RESET jit")


def test_the_session_of_a_batch_worker_has_its_own_settings() -> None:
    def work() -> dict[str, str]:
        with_worker = Worker([], Wakeup())
        with_worker.stop(timeout_seconds=0)
        with_worker.process_batch(now=timezone.now())
        return dict(fetch(FOUND, [[*EVERY_SESSION, *BATCH_WORKER]]))

    assert in_new_session(work) == {**EVERY_SESSION, **BATCH_WORKER}
