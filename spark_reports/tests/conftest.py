"""Fixtures: one small Spark session for all transforms, and a lake, a configuration and a cluster for whole runs."""

import os
import shutil
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from spark_reports.export.days import export_day
from spark_reports.lake import Day, Lake
from spark_reports.nights import nights
from spark_reports.nights.nights import last_closed_day
from spark_reports.tests.cluster import QUICK_JAVA, Cluster, write_quick_conf

NO_JAVA = "there is no Java: `make test` installs it as root, or names its package"


@pytest.fixture(autouse=True)
def _forgotten():
    """Forget what a test has saved for later ones, such as the part that a worker lacks."""
    yield
    cache.clear()


@pytest.fixture
def closed_at_midnight(monkeypatch):
    """Close a day at midnight. Otherwise tests with the real clock would fail in the minutes after midnight."""
    monkeypatch.setattr(nights, "CLOSED_AFTER", timedelta(0))


@pytest.fixture
def day():
    return last_closed_day(timezone.now())


@pytest.fixture
def export(lake_url, day):
    def run(**options: Any) -> Day:
        return export_day(day, Lake(lake_url), now=timezone.now(), **options)

    return run


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture(scope="session")
def java(require_or_skip):
    require_or_skip(bool(os.environ.get("JAVA_HOME") or shutil.which("java")), NO_JAVA)


@pytest.fixture(scope="session")
def spark(java, tmp_path_factory):
    from pyspark.sql import SparkSession

    from spark_reports.jobs.nightly import OPTIONS

    folder = tmp_path_factory.mktemp("spark")
    options = OPTIONS | {
        "spark.master": "local[1]",  # for frames of a few rows, a second thread costs more than it saves
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",  # re-planning tiny frames costs more than running them
        "spark.sql.codegen.wholeStage": "false",  # compiling costs more, too
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.appName("tests")
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
    _end_gateway()


def _end_gateway() -> None:
    """End Java, which would otherwise run until this process ends, with open pipes."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def spark_conf(java, tmp_path, monkeypatch):
    folder = write_quick_conf(tmp_path / "spark-conf")
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    return folder


@pytest.fixture
def cluster(spark_conf, tmp_path):
    with Cluster.started(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def lake_url(tmp_path, settings):
    settings.REPORTS_LAKE = str(tmp_path / "lake")
    settings.SPARK_MASTER = "local[2]"
    settings.SPARK_DRIVER_MEMORY = "1g"
    return settings.REPORTS_LAKE
