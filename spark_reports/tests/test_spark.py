"""Spark as a process: its environment and package, its end, and the cause of its failure."""

import subprocess
import sys
import zipfile
from queue import SimpleQueue

import psutil

from spark_reports.running import spark
from spark_reports.running.spark import (
    KILL_WITH_PARENT,
    MANY_ROWS,
    QUIET,
    _keep_draft,
    _killed_by,
    _reason,
    _with_archive,
    archive_of,
    environment,
    package,
)

CAUSE = """26/11/21 14:35:01 WARN NativeCodeLoader: Unable to load native-hadoop library
Traceback (most recent call last):
pyspark.errors.exceptions.captured.SparkException: Job aborted
Caused by: java.io.IOException: could not read page
Caused by: java.io.FileNotFoundException: File part-0.parquet does not exist
at org.apache.spark.deploy"""


def test_spark_gets_no_credentials_of_the_server(java, monkeypatch):
    names = ["DATABASE_URL", "REDIS_URL", "SECRET_KEY", "FIELD_ENCRYPTION_KEYS", "SERVER_PRIVATE_KEY", "PGPASSWORD"]
    for name in names:
        monkeypatch.setenv(name, f"secret {name}")
        monkeypatch.setenv(f"{name}_FILE", f"secret {name}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "needed for the lake")

    given = environment("local[*]")

    assert not [name for name, value in given.items() if "secret" in value]
    assert given["AWS_ACCESS_KEY_ID"] == "needed for the lake"


def test_the_package_holds_the_jobs_and_nothing_else_of_the_server(tmp_path):
    archive, entry = package(tmp_path)
    names = zipfile.ZipFile(archive).namelist()

    assert "spark_reports/jobs/nightly.py" in names
    assert [n for n in names if not n.startswith("spark_reports/jobs/")] == ["spark_reports/__init__.py"]
    assert "main()" in entry.read_text()


def test_the_deepest_cause_is_named_and_a_killed_java_is_reported_instead():
    assert _reason(CAUSE.splitlines()) == "java.io.FileNotFoundException: File part-0.parquet does not exist"
    assert _reason(["Error: bad option"]) == "Error: bad option"
    assert _reason([]) == "its log is empty"
    assert _killed_by(137).startswith("Java was ended by SIGKILL, usually because memory ran out")
    assert [_killed_by(code) for code in (143, 1)] == ["Java was ended by SIGTERM.", ""]


def test_a_spark_that_says_nothing_is_still_followed(monkeypatch):
    monkeypatch.setattr(spark, "BEAT_SECONDS", 0.01)
    assert spark._next(SimpleQueue()) == ""


WORKER = """
import sys, time
from spark_reports.running.spark import _running, environment
command = [sys.executable, "-I", {program!r}, "sh", "-c", "echo $$; exec sleep 600"]
with _running(command, environment("local")) as process:
    print(process.stdout.readline(), flush=True)
    time.sleep(600)
"""


def test_the_command_ends_when_its_worker_is_killed_and_a_killed_one_has_the_code_of_its_signal(java):
    script = WORKER.format(program=KILL_WITH_PARENT)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        sleeper = psutil.Process(int(worker.stdout.readline()))
        assert sleeper.is_running()
        worker.kill()
    gone, alive = psutil.wait_procs([sleeper], timeout=20)
    assert (len(gone), alive) == (1, [])

    command = [sys.executable, "-I", KILL_WITH_PARENT, "sh", "-c", "kill -9 $$"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as guarded:
        assert guarded.wait(30) == 137


def test_an_archive_of_classes_belongs_to_this_java_and_these_jars(java, tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    (tmp_path / "spark.jar").write_bytes(b"a version")
    before = archive_of(tmp_path, tmp_path)
    (tmp_path / "spark.jar").write_bytes(b"another version")
    after = archive_of(tmp_path, tmp_path)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    assert before is not None
    assert after not in {None, before}
    assert archive_of(tmp_path, tmp_path) is None


def test_an_archive_of_classes_is_written_by_a_short_run_and_not_after_one_that_was_killed_meanwhile(tmp_path):
    old, new = tmp_path / "spark-classes-1.jsa", tmp_path / "spark-classes-2.jsa"
    old.write_bytes(b"old")
    draft = new.with_suffix(".draft")
    writes = [f'"-XX:ArchiveClassesAtExit={draft}"', QUIET]
    assert _with_archive(new, MANY_ROWS) == []
    assert [_with_archive(new, 1) for _ in range(3)] == [writes, [], writes]
    _keep_draft(new)  # Java wrote nothing
    assert list(tmp_path.glob("*.jsa")) == [old]

    draft.write_bytes(b"new")
    _keep_draft(new)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(new.name, b"new")]
    assert _with_archive(new, 1)[0] == f'"-XX:SharedArchiveFile={new}"'
