"""Another place for Spark: a server of Spark Connect."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from pushserver.embedded.ports import free_port
from spark_reports.export import last_closed_day
from spark_reports.models import DataQuality, ErrorRate, PublishedDay
from spark_reports.runs import Progress, run_reports
from spark_reports.spark import environment, spark_home
from spark_reports.tests.history import History

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
START_SECONDS = 120


@pytest.fixture
def day() -> date:
    return last_closed_day(timezone.now())


def assert_published(day: date) -> None:
    history = History(seed=8)
    history.add_day(day - timedelta(days=1))
    history.add_day(day)
    run_reports(day, day, progress=Progress())

    assert list(DataQuality.objects.filter(is_ok=False).values()) == []
    assert PublishedDay.objects.get().day == day
    assert ErrorRate.objects.filter(stage="dispatch").exists()


@contextmanager
def listening(command: list[str], port: int, log: Path, environ: dict[str, str] | None = None) -> Iterator[None]:
    """Run a server until the block ends, once it answers on its port."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as process:
        try:
            wait_for(port, log)
            yield
        finally:
            process.terminate()
            process.wait(30)


def wait_for(port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(log.read_text(encoding="utf-8", errors="replace")[-2000:])


# Spark Connect --------------------------------------------------------------------------------------------------------
@pytest.fixture
def connect(
    lake_url: str,
    spark_conf: Path,
    tmp_path: Path,
    settings: LazySettings,
    require_or_skip: Callable[[bool, str], None],
) -> Iterator[None]:
    client = ("grpc_status", "pandas", "zstandard")
    require_or_skip(all(map(find_spec, client)), f"a client of Spark Connect needs {', '.join(client)}")
    port = free_port()
    options = [f"spark.connect.grpc.binding.port={port}", "spark.connect.grpc.binding.address=127.0.0.1"]
    options += ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.ui.enabled=false"]
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [part for option in options for part in ("--conf", option)]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    settings.SPARK_MASTER = f"sc://127.0.0.1:{port}"
    with listening(command, port, tmp_path / "connect.log", environment("local[2]")):
        yield


def test_reports_are_made_by_a_server_of_spark_connect(connect: None, day: date) -> None:
    assert_published(day)
