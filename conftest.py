"""Fixtures for all tests: real embedded servers, a fixed configuration, and no access to other networks.

The import of this file sets the environment, before anything reads `pushserver.settings`. Therefore pyproject.toml does
not name the settings module for pytest. The servers start with the first test that needs them.

    one process             pytest                     PostgreSQL, Valkey, database
    several (`-n 2`)        controller                 PostgreSQL: one for the run, started before the processes are
                            process gw0, gw1, ...      Valkey, database (a clone of the run's template)
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import count, cycle
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from hypothesis import settings as hypothesis_settings
from pytest_django import DjangoDbBlocker
from redis import Redis

from embedded.servers import installed, ports
from embedded.servers.ports import free_port
from embedded.servers.postgres import EmbeddedPostgres
from embedded.servers.valkey import EmbeddedValkey
from embedded.supervisor.guard import Guard

pytest_plugins = ["tests.rig.suite"]

# pytest-xdist gives a name to each process that it starts. They inherit the folder of the run from the controller.
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "")
if PROCESS:  # a part of the ports, so that no other process gives one away whose server is about to start here
    ports.PORTS = ports.PORTS[sum(PROCESS.encode()) % 8 :: 8]
RUN_DIR = Path(os.environ["TESTS_RUN_DIR"] if PROCESS else tempfile.mkdtemp(prefix="pushserver-tests-"))
DATA_DIR = RUN_DIR / PROCESS
# These settings trade crash safety for speed, as a test database may be lost. Without autovacuum, only tests take locks
# and change plans. DATABASE=system uses Debian's server.
POSTGRES = installed.postgres(
    RUN_DIR / "postgres",
    {
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "shared_buffers": "128MB",
        "autovacuum": "off",
    },
)
VALKEY = EmbeddedValkey(DATA_DIR / "valkey", free_port())

SERVERS = {"WAKU_NODES", "WAKU_STORE_NODES", "GORUSH_URL", "METRICS_DIR", "METRICS_PORT", "METRICS_TOKEN"}
for variable in list(os.environ):
    if variable in SERVERS | {"DEBUG", "HOST", "PORT"} or variable.endswith("_FILE") or variable.startswith("OTEL_"):
        del os.environ[variable]
os.environ |= {
    "DJANGO_SETTINGS_MODULE": "pushserver.settings",
    "DATA_DIR": str(DATA_DIR),
    "DATABASE_URL": POSTGRES.url(),
    "REDIS_URL": VALKEY.url,
    "SECRET_KEY": "tests-only-secret-key-that-is-long-enough-for-the-checks-of-django",
    "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "SERVER_PRIVATE_KEY": "02" * 32,
    "CANARY_PERIOD_SECONDS": "0",  # rows of scheduled runs would change counts; the canary's own tests start runs
}
django.setup()
# Otherwise WhiteNoise reads the list of all static files (30 ms) for each client of a test.
settings.WHITENOISE_AUTOREFRESH = True
# A fast hash is enough for passwords of tests. The real one takes 0.3 s each time.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Imported after the setup, because these modules read the settings.
from django.test import TransactionTestCase  # noqa: E402

from kit.buckets.shared import SharedBuckets, own_buckets  # noqa: E402
from kit.processes.starting import OWN_FAULT  # noqa: E402
from pushserver.console.health import asking  # noqa: E402
from tests.rig import budget, databases  # noqa: E402
from tests.rig.server import Fleet, NewFleet, running  # noqa: E402
from waku_bridge.inbox.processing import query_limits  # noqa: E402

asking.KEPT_SECONDS = 0.0  # no cached answers, because tests change the servers' state and request it again at once

budget.register_profiles()
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    """Remove the folder of the run at the end, also after a run that only collects tests."""
    if not PROCESS:
        config.add_cleanup(lambda: shutil.rmtree(RUN_DIR, ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during collection, and exclude the collected tests from it during the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Start PostgreSQL before the processes of the run. It stops after them."""
    os.environ["TESTS_RUN_DIR"] = str(RUN_DIR)
    del os.environ["DJANGO_SETTINGS_MODULE"]  # otherwise the processes would read the settings before this file
    servers = ExitStack()
    config.add_cleanup(servers.close)
    guard = servers.enter_context(Guard())
    servers.enter_context(running(POSTGRES, guard, DATA_DIR / "postgres.log"))


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    """Provide a guard that stops the embedded servers, also when the test session is killed."""
    with Guard() as running:
        yield running


@pytest.fixture(scope="session")
def postgres(guard: Guard) -> Iterator[EmbeddedPostgres]:
    if PROCESS:
        yield POSTGRES
    else:
        with running(POSTGRES, guard, DATA_DIR / "postgres.log"):
            yield POSTGRES


@pytest.fixture(scope="session", autouse=True)
def valkey(guard: Guard) -> Iterator[EmbeddedValkey]:
    """Start Valkey for every test, because tasks and cache use it without a fixture. It starts in milliseconds."""
    with running(VALKEY, guard, DATA_DIR / "valkey.log"):
        yield VALKEY


@pytest.fixture(scope="session")
def new_database(postgres: EmbeddedPostgres, django_db_blocker: DjangoDbBlocker) -> Callable[[str], str]:
    """Return ``new_database(name)``, which creates a migrated database and returns its URL. Each call makes another."""
    with django_db_blocker.unblock():
        databases.make_template(postgres, RUN_DIR)
    numbers = count(1)

    def clone(name: str) -> str:
        name = "_".join(filter(None, (name, PROCESS, str(next(numbers)))))
        databases.clone_template(postgres, name)
        return postgres.url(name)

    return clone


@pytest.fixture(scope="session")
def new_redis(valkey: EmbeddedValkey) -> Callable[[], str]:
    """Return ``new_redis()``, which empties the next of Valkey's databases but the first, and returns its URL."""
    numbers = cycle(range(1, 16))

    def empty() -> str:
        url = f"{valkey.url.removesuffix('/0')}/{next(numbers)}"
        with Redis.from_url(url) as client:
            client.flushdb()
        return url

    return empty


@pytest.fixture(scope="session")
def new_fleet(
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    guard: Guard,
    tmp_path_factory: pytest.TempPathFactory,
) -> NewFleet:
    """Return ``new_fleet(name, **settings)``, which makes a server with databases of its own and does not start it."""

    def make(name: str, **settings: str) -> Fleet:
        folder = tmp_path_factory.mktemp(name)
        environment = {
            "DATABASE_URL": settings.get("DATABASE_URL") or new_database(name),
            "REDIS_URL": settings.get("REDIS_URL") or new_redis(),
            "WAKU_NODES": f"http://127.0.0.1:{free_port()}",
            "GORUSH_URL": f"http://127.0.0.1:{free_port()}",
            "METRICS_DIR": str(folder / "metrics"),
        }
        return Fleet(folder, environment | settings, guard)

    return make


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None,  # noqa: ARG001 - pytest-django's own fixture depends on it too
    new_database: Callable[[str], str],
) -> Iterator[None]:
    """Replace pytest-django's fixture, which would migrate a database in every process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TransactionTestCase, "_fixture_teardown", lambda _case: databases.put_back())
        patched.setattr(TransactionTestCase, "_should_reload_connections", lambda _case: False)
        with databases.connected_to(new_database("test_pushserver")):
            yield


@pytest.fixture
def admin_user(django_user_model: Any, db: None) -> Any:  # noqa: ARG001 - the database is needed
    """Replace pytest-django's fixture, because hashing an unused password takes longer than most tests."""
    return django_user_model.objects.create_superuser("admin", password=None)


@pytest.fixture(autouse=True)
def no_own_faults() -> None:
    """Forget the faults that an earlier test met, because the server believes in them for seconds."""
    for metric in OWN_FAULT.collect():
        for sample in metric.samples:
            OWN_FAULT.labels(*sample.labels.values()).set(0)


@pytest.fixture(autouse=True)
def full_buckets() -> None:
    """Forget what earlier tests spent, because many tests have the same time and the same sender."""
    vars(own_buckets()).update(vars(SharedBuckets()))
    query_limits.cache_clear()


@pytest.fixture(scope="session")
def require_or_skip() -> Callable[[bool, str], None]:
    """Return ``require_or_skip(condition, reason)``, which skips a test if a part of the system is missing.

    The run ends with a list of skipped tests. With REQUIRE_ALL=1 (CI) they are failures (tests/rig/suite.py).
    """

    def check(condition: bool, reason: str) -> None:
        if not condition:
            pytest.skip(reason)

    return check
