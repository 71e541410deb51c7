"""Other places for the lake and for Spark: an object store, and a server of Spark Connect."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from pushserver.embedded.ports import free_port
from spark_reports.export import last_closed_day
from spark_reports.lake import Kind, Lake
from spark_reports.models import DataQuality, ErrorRate, PublishedDay
from spark_reports.runs import Progress, run_reports
from spark_reports.spark import environment, s3_connector, spark_home
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


# An object store ------------------------------------------------------------------------------------------------------
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


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_or_skip: Callable[[bool, str], None]) -> Iterator[None]:
    server = shutil.which("moto_server") or shutil.which("moto_server", path=str(Path(sys.executable).parent))
    require_or_skip(server is not None, "moto_server is missing: a lake on S3 is not tested")
    jar = Path.home() / ".m2/repository" / s3_connector().replace(".", "/", 2).replace(":", "/")
    require_or_skip(jar.exists() or bool(list(Path.home().glob(".ivy2*/**/*hadoop-aws*"))), "no connector of S3")
    port = free_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # moto does not know those of newer clients
    }.items():
        monkeypatch.setenv(name, value)
    with listening([str(server), "-H", "127.0.0.1", "-p", str(port)], port, tmp_path / "s3.log"):
        made = urllib.request.Request(f"http://127.0.0.1:{port}/reports", method="PUT")
        made.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing/20261122/us-east-1/s3/aws4_request")
        urllib.request.urlopen(made, timeout=10).close()  # noqa: S310 - a server of ours
        yield


def test_reports_are_made_in_a_lake_on_s3(
    s3: None, lake_url: str, spark_conf: Path, day: date, settings: LazySettings
) -> None:
    settings.REPORTS_LAKE = "s3a://reports/lake"
    assert_published(day)

    lake = Lake(settings.REPORTS_LAKE)
    manifest = lake.manifest(Kind.REPORTS, day)
    assert manifest is not None
    lake.verify(Kind.REPORTS, day, manifest)


# Spark Connect --------------------------------------------------------------------------------------------------------
@pytest.fixture
def connect(lake_url: str, spark_conf: Path, tmp_path: Path, settings: LazySettings) -> Iterator[None]:
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
