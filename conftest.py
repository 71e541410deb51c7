"""Fixtures for every test: real embedded servers, a fixed configuration, and no way out to the network.

The environment is set while this file is imported, before anything reads `pushserver.settings`; that is why
pyproject.toml does not name the settings module for pytest. The servers start with the first test that needs them.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import django
import pytest
from hypothesis import settings as hypothesis_settings

from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.guard import Guard, kill_group
from pushserver.supervisor.processes import ProcessSpec

Server = TypeVar("Server", EmbeddedPostgres, EmbeddedValkey)

DATA_DIR = Path(tempfile.mkdtemp(prefix="pushserver-tests-"))
# A test database may be lost with the machine.
POSTGRES = EmbeddedPostgres(
    DATA_DIR / "postgres",
    {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "128MB"},
)
VALKEY = EmbeddedValkey(DATA_DIR / "valkey", free_port())

for variable in list(os.environ):
    if variable.endswith("_FILE") or variable in {
        "DEBUG",
        "HOST",
        "PORT",
        "WAKU_NODES",
        "WAKU_STORE_NODES",
        "GORUSH_URL",
        "METRICS_DIR",
        "METRICS_PORT",
        "METRICS_TOKEN",
    }:
        del os.environ[variable]
os.environ |= {
    "DJANGO_SETTINGS_MODULE": "pushserver.settings",
    "DATA_DIR": str(DATA_DIR),
    "DATABASE_URL": POSTGRES.url(),
    "REDIS_URL": VALKEY.url,
    "SECRET_KEY": "tests-only-secret-key-that-is-long-enough-for-the-checks-of-django",
    "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "SERVER_PRIVATE_KEY": "02" * 32,
    "CANARY_PERIOD_SECONDS": "0",  # tests count what is there; the canary's own ones call it
}
django.setup()

# How long an example takes says more about the machine than about the code.
hypothesis_settings.register_profile("pushserver", hypothesis_settings.default, deadline=None)
hypothesis_settings.load_profile("pushserver")


def pytest_unconfigure() -> None:
    """At the very end, also of a run that only collected."""
    shutil.rmtree(DATA_DIR, ignore_errors=True)


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    """Stops the embedded servers, also when the test session is killed."""
    with Guard() as running:
        yield running


@pytest.fixture(scope="session")
def postgres(guard: Guard) -> Iterator[EmbeddedPostgres]:
    yield from _served(POSTGRES, POSTGRES.spec(), guard)


@pytest.fixture(scope="session", autouse=True)
def valkey(guard: Guard) -> Iterator[EmbeddedValkey]:
    """For every test: tasks and cache reach it without asking for a fixture, and it starts in a few milliseconds."""
    yield from _served(VALKEY, VALKEY.spec(), guard)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: EmbeddedPostgres) -> None:
    """pytest-django asks for this before it makes the test database: the moment PostgreSQL is needed."""


@pytest.fixture
def admin_user(django_user_model: Any, db: None) -> Any:  # noqa: ARG001 - the database is needed
    """In place of pytest-django's: hashing a password that nobody types takes longer than most tests."""
    return django_user_model.objects.create_superuser("admin", password=None)


@pytest.fixture(scope="session")
def require_or_skip() -> Callable[[bool, str], None]:
    """``require_or_skip(condition, reason)``: skip without a system part; with REQUIRE_ALL=1 (CI) that is a failure."""

    def check(condition: bool, reason: str) -> None:
        if condition:
            return
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(f"REQUIRE_ALL=1, but {reason}")
        pytest.skip(reason)

    return check


def _served(server: Server, spec: ProcessSpec, guard: Guard) -> Iterator[Server]:
    spec.prepare()
    with (DATA_DIR / f"{spec.name}.log").open("wb") as log:
        process = subprocess.Popen(spec.command, stdout=log, stderr=log, **spec.arguments())
    guard.watch(process.pid, spec.stop_signal)
    deadline = time.monotonic() + 30
    while not server.is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"{spec.name} does not start: {(DATA_DIR / f'{spec.name}.log').read_text()}")
        time.sleep(0.02)
    yield server
    kill_group(process.pid, spec.stop_signal)
    process.wait(timeout=30)
    guard.forget(process.pid)
