"""Remote Spark and remote lake: a server of Spark Connect, and a lake on S3."""

import os
import shutil
import socket
import subprocess
import sys
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.db import connection

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from spark_reports.lake import Lake
from spark_reports.models import DataQuality, ErrorRate, PublishedDay
from spark_reports.running.runs import run_reports
from spark_reports.running.spark import environment, spark_home
from spark_reports.tests.cluster import Cluster, running
from spark_reports.tests.history import History

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.nightly]


def add_history(day: date) -> None:
    history = History(seed=8)
    history.add_day(day - timedelta(days=1))
    history.add_day(day)


def assert_published(day: date) -> None:
    assert list(DataQuality.objects.filter(is_ok=False).values()) == []
    assert PublishedDay.objects.get().day == day
    assert ErrorRate.objects.filter(stage="dispatch").exists()


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# Spark Connect --------------------------------------------------------------------------------------------------------
@pytest.fixture
def connect(lake_url, spark_conf, tmp_path, require_or_skip):
    """Run a server of Spark Connect, and return its URL as master."""
    client = ("grpc_status", "pandas", "zstandard")
    require_or_skip(all(map(find_spec, client)), f"a client of Spark Connect needs {', '.join(client)}")
    port = free_port()
    options = [f"spark.connect.grpc.binding.port={port}", "spark.connect.grpc.binding.address=127.0.0.1"]
    options += ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.ui.enabled=false"]
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [part for option in options for part in ("--conf", option)]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with running(command, tmp_path / "connect.log", lambda: listens(port), environment("local[2]")):
        yield f"sc://127.0.0.1:{port}"


def test_reports_are_made_by_a_server_of_spark_connect(connect, lake_url, day, postgres):
    """The settings are read from the environment and checked, as in production."""
    add_history(day)
    environ = os.environ | {"SPARK_MASTER": connect, "REPORTS_LAKE": lake_url}
    environ["DATABASE_URL"] = postgres.url(connection.settings_dict["NAME"])
    command = [sys.executable, str(PROJECT / "manage.py"), "run_reports", "--day", day.isoformat()]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert_published(day)


# S3 -------------------------------------------------------------------------------------------------------------------
S3 = Path(__file__).parents[2] / "tests" / "reports" / "s3"


@pytest.fixture
def s3_lake(lake_url, spark_conf, tmp_path, settings, monkeypatch, require_or_skip):
    """Put the lake into a bucket of an S3 server on this machine, and refuse every other address."""
    go = shutil.which("go")
    require_or_skip(go is not None, "the S3 that reports are tested with is made with Go")
    server, port = tmp_path / "s3", free_port()
    subprocess.run([str(go), "build", "-mod=readonly", "-o", str(server), "."], cwd=S3, check=True)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }.items():
        monkeypatch.setenv(name, value)
    settings.REPORTS_LAKE = "s3a://lake/push"
    with running([str(server), f"127.0.0.1:{port}"], tmp_path / "s3.log", lambda: listens(port)):
        yield


@pytest.fixture
def beside_s3(s3_lake, request, settings):
    """Start two workers after the environment names the S3 server, because they inherit that environment."""
    cluster: Cluster = request.getfixturevalue("cluster")
    settings.SPARK_MASTER = cluster.url
    return cluster


def test_reports_are_made_by_two_workers_of_a_lake_on_s3(beside_s3, day, settings, monkeypatch, tmp_path):
    """Later, the keys are in a file, as compose, systemd and the chart write it for the worker."""
    add_history(day)
    run_reports(day, day)
    assert_published(day)
    assert beside_s3.workers_used() == 2
    lake = Lake("s3a://lake/push")
    first = lake.day(day)
    assert first is not None
    lake.verify(first)

    settings.SPARK_MASTER, keys = "local[2]", tmp_path / "aws_shared_credentials"
    keys.write_text("[default]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n", encoding="ascii")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    run_reports(day, day, replace=True)
    assert PublishedDay.objects.get().day == day
    second = lake.day(day)
    assert second is not None
    lake.verify(second)
    assert (second.rows, second.export_id != first.export_id) == (first.rows, True)
