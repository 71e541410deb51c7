"""Spark as a process of its own: spark-submit with our jobs as a package, without our secrets in its environment.

The process gets the lake and the folder of the run. The database, keys and secrets are not passed to it. The settings
of a master, an object store or Java come from the environment variables that PASSED_ON names, and from SPARK_CONF_DIR.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from signal import SIGKILL, SIGTERM, Signals
from threading import Thread
from time import monotonic
from urllib.parse import urlsplit

from django.conf import settings

from spark_reports.jobs.plan import PROGRESS
from spark_reports.running.parts import missing

PACKAGE = Path(__file__).parents[1]
KILL_WITH_PARENT = str(Path(__file__).with_name("kill_with_parent.py"))
ENTRY = "from spark_reports.jobs.nightly import main\n\nmain()\n"
PASSED_ON = re.compile(
    r"(PATH|HOME|LANG|TZ|TMPDIR|USER|JAVA_HOME|KRB5.*|SPARK_CONF_DIR|SPARK_LOCAL_.*|HADOOP_.*|YARN_.*|AWS_.*|GOOGLE_.*|AZURE_.*)"
)
# The number of facts from which optimised compilation pays.
MANY_ROWS = 10_000_000
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
ARCHIVE = "spark-classes-{}.jsa"
QUIET = "-Xlog:all=error"  # no warning for each class that cannot be archived
# Providers of S3 keys: S3A's own, then Amazon's chain, which reads the file that AWS_SHARED_CREDENTIALS_FILE names.
S3_KEYS = (
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
)
LOG_LINES = 200
MAX_LINE = 300
# Spark is stopped after this time.
TIMEOUT_SECONDS = 14_400.0
BEAT_SECONDS = 20
STOP_SECONDS = 10


class SparkError(Exception):
    """Spark did not finish. The text says why in one line. ``log`` is the end of Spark's log."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of one Spark process.

    ``folder`` has the plan and takes the results and all temporary files. ``rows`` is the number of facts to read.
    ``on_line`` gets each line of progress, and an empty text every BEAT_SECONDS without one. ``classes`` is an archive
    of Java's classes, which is written at the end if there is none.
    """

    master: str
    driver_memory: str
    lake: str
    folder: Path
    rows: int
    on_line: Callable[[str], None]
    classes: Path | None = None


def submit(submission: Submission) -> str:
    """Run the jobs and return the end of Spark's log. Raises SparkError."""
    log: deque[str] = deque(maxlen=LOG_LINES)
    folder = str(submission.folder)
    environ = environment(submission.master, submission.rows) | {"SPARK_LOCAL_DIRS": folder, "TMPDIR": folder}
    environ |= _for_driver(submission) | _for_remote(submission)
    with _running(_command(submission, *package(submission.folder)), environ) as process:
        code = _follow(process, submission, log)
    if code != 0:
        raise SparkError(f"Spark failed: {_killed_by(code) or _reason(log)}", "\n".join(log))
    if submission.classes:
        _keep_draft(submission.classes)
    return "\n".join(log)


@contextmanager
def empty(folder: Path) -> Iterator[Path]:
    """Make the folder empty and readable for this account only, and remove it afterwards.

    A killed run leaves it to the next one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def job_files() -> list[Path]:
    """Return the files that Spark runs."""
    return [PACKAGE / "__init__.py", *sorted((PACKAGE / "jobs").rglob("*.py"))]


def code_version() -> str:
    """Return the version of the server and a digest of the jobs. Equal digests mean equal computations."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in job_files())).hexdigest()
    return f"{settings.VERSION} {digest[:12]}"


def package(folder: Path) -> tuple[Path, Path]:
    """Write the jobs as a zip file, which Spark sends to executors, and the script that starts them."""
    archive, entry = folder / "jobs.zip", folder / "entry.py"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as jobs:
        for path in job_files():
            jobs.write(path, path.relative_to(PACKAGE.parent))
    entry.write_text(ENTRY, encoding="ascii")
    return archive, entry


def spark_home() -> Path:
    """Return the folder of Spark. Raises SparkError when something that Spark needs is not installed."""
    found = importlib.util.find_spec("pyspark")
    if (lack := missing()) or found is None or found.origin is None:
        raise SparkError(lack)
    return Path(found.origin).parent


def archive_of(jars: Path, folder: Path) -> Path | None:
    """Return the path of the archive of Java's classes (CDS) for this Java and these JARs, whether it exists or not.

    Java starts faster with it, because it reads and verifies ten thousand classes less. It ignores one that does not
    fit. Return None without a Java, or if SPARK_CONF_DIR puts a folder before the JARs, because Java takes an archive
    for JARs only.
    """
    home, java = os.environ.get("JAVA_HOME"), shutil.which("java")
    java = str(Path(home, "bin", "java")) if home else java
    if os.environ.get("SPARK_CONF_DIR") or java is None:
        return None
    parts = [Path(java).resolve(), *sorted(jars.glob("*.jar"))]
    fingerprint = "\n".join(f"{part} {part.stat().st_mtime_ns} {part.stat().st_size}" for part in parts)
    return folder / ARCHIVE.format(hashlib.sha256(fingerprint.encode()).hexdigest()[:16])


def _command(submission: Submission, archive: Path, entry: Path) -> list[str]:
    guarded = [sys.executable, "-I", KILL_WITH_PARENT]
    arguments = [str(entry), "--lake", submission.lake, "--folder", str(submission.folder)]
    if is_remote(submission.master):
        return [*guarded, sys.executable, *arguments]
    return [
        *guarded,
        *[str(spark_home() / "bin" / "spark-submit"), "--master", submission.master],
        *["--driver-memory", submission.driver_memory, "--py-files", str(archive)],
        *["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=WARN"],
        *["--conf", "spark.ui.showConsoleProgress=false"],
        *_for_one_machine(submission),
        *_for_s3(submission.lake),
        *arguments,
    ]


def is_remote(master: str) -> bool:
    """Return whether a master is a server of Spark Connect, which has a session and needs no driver here."""
    return master.startswith("sc://")


def _for_s3(lake: str) -> Iterable[str]:
    """Yield the options for a lake on S3.

    They name the connector, which Spark downloads once, and the region. An S3 other than Amazon's needs its endpoint,
    and keys in a file need their providers.
    """
    if not lake.startswith("s3a://"):
        return
    if not any((spark_home() / "jars").glob("hadoop-aws-*.jar")):
        yield from ("--packages", s3_connector())
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        yield from ("--conf", f"spark.hadoop.fs.s3a.endpoint={endpoint}")
        yield from ("--conf", "spark.hadoop.fs.s3a.path.style.access=true")
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        yield from ("--conf", f"spark.hadoop.fs.s3a.endpoint.region={region}")
    keys = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", os.devnull))
    if keys.is_file() and keys.read_text(encoding="utf-8").strip():
        yield from ("--conf", f"spark.hadoop.fs.s3a.aws.credentials.provider={S3_KEYS}")


def s3_connector() -> str:
    """Return the Maven coordinates of the connector that fits Spark's own Hadoop."""
    [client] = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-aws:{client.stem.removeprefix('hadoop-client-api-')}"


def _for_remote(submission: Submission) -> dict[str, str]:
    """Return the environment of a client of Spark Connect: the server's address, and our jobs on the path."""
    jobs = str(submission.folder / "jobs.zip")
    return {"SPARK_REMOTE": submission.master, "PYTHONPATH": jobs} if is_remote(submission.master) else {}


def is_here(master: str) -> bool:
    return master.startswith("local") or urlsplit(master).hostname in {"127.0.0.1", "localhost", "::1"}


def _for_one_machine(submission: Submission) -> Iterable[str]:
    """Return the options for a master on this machine.

    The driver is on localhost, and a shuffle has eight partitions.
    """
    options = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.sql.shuffle.partitions=8"]
    options.append(f"spark.hadoop.hadoop.tmp.dir={submission.folder}")
    return (part for option in options for part in ("--conf", option)) if is_here(submission.master) else ()


def environment(master: str, rows: int = 0) -> dict[str, str]:
    """Return the environment of Spark, without our secrets.

    A run of fewer than MANY_ROWS ends before optimised compilation pays, so Java then compiles quickly on this machine.
    """
    passed_on = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    # The Spark of the installed package and no other one, and the interpreter that has the package.
    ours = {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
    if not is_here(master):
        return passed_on | ours
    quick = {"JDK_JAVA_OPTIONS": QUICK_JAVA} if rows < MANY_ROWS else {}
    return passed_on | ours | quick | {"SPARK_LOCAL_IP": "127.0.0.1"}


def _for_driver(submission: Submission) -> dict[str, str]:
    """Return the Java options of the driver, in a variable that Spark's launcher itself does not read.

    The heap has its full size from the start. A growing heap would cost a hundred garbage collections.
    """
    options = [f"-Xms{submission.driver_memory}", "-XX:MetaspaceSize=192m", f'"-Djava.io.tmpdir={submission.folder}"']
    if submission.classes:
        options += _with_archive(submission.classes, submission.rows)
    return {"SPARK_SUBMIT_OPTS": " ".join(options)} if is_here(submission.master) else {}


def _with_archive(archive: Path, rows: int) -> list[str]:
    """Return the options to start with the archive of classes, or to write a draft of it at the end of a short run.

    A draft that exists was left by a run that was killed, maybe for want of memory, so this one writes none.
    """
    draft = _draft(archive)
    if archive.exists():
        return [f'"-XX:SharedArchiveFile={archive}"', QUIET]
    if draft.exists():
        draft.unlink()
    elif rows < MANY_ROWS:
        draft.touch()
        return [f'"-XX:ArchiveClassesAtExit={draft}"', QUIET]
    return []


def _draft(archive: Path) -> Path:
    return archive.with_suffix(".draft")


def _keep_draft(archive: Path) -> None:
    """Replace the archive and all older ones by the draft that a run has written."""
    if (draft := _draft(archive)).exists() and draft.stat().st_size:
        for old in archive.parent.glob(ARCHIVE.format("*")):
            old.unlink()
        draft.replace(archive)


@contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Start the command in a session of its own, so that Java is stopped together with the script that started it.

    The command ends when this process ends, because its standard input is a pipe: see `kill_with_parent`.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, SIGKILL)
            process.wait()


def _follow(process: "subprocess.Popen[str]", submission: Submission, log: deque[str]) -> int:
    lines: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=_read_lines, args=(process, lines), daemon=True).start()
    deadline = monotonic() + TIMEOUT_SECONDS
    while (line := _next(lines)) is not None:
        if line.startswith(PROGRESS) or not line:
            submission.on_line(line.removeprefix(PROGRESS))
        else:
            log.append(line[:MAX_LINE])
        if monotonic() > deadline:
            raise SparkError(f"Spark did not finish within {TIMEOUT_SECONDS:.0f} seconds.", "\n".join(log))
    return process.wait()


def _read_lines(process: "subprocess.Popen[str]", lines: SimpleQueue[str | None]) -> None:
    for line in process.stdout or ():
        lines.put(line.rstrip())
    lines.put(None)


def _next(lines: SimpleQueue[str | None]) -> str | None:
    try:
        return lines.get(timeout=BEAT_SECONDS)
    except Empty:
        return ""


def _killed_by(code: int) -> str:
    """Return a sentence about the signal that ended Java, or an empty text if none did."""
    if code <= 128:
        return ""
    hint = ", usually because memory ran out: SPARK_DRIVER_MEMORY must be below the memory of the container"
    name = Signals(code - 128).name if code - 128 in set(Signals) else f"signal {code - 128}"
    return f"Java was ended by {name}{hint if name == 'SIGKILL' else ''}."


_CAUSE = re.compile(r"(?:Caused by: |py4j\S+: |\S*\.)?([A-Za-z_.]*(?:Error|Exception|Exit)\b.*)")


def _reason(log: Iterable[str]) -> str:
    """Return the deepest cause in the log, or its last line."""
    lines = [line.strip() for line in log if line.strip() and not line.startswith("{") and " WARN " not in line]
    causes = [found for line in lines if (found := _CAUSE.fullmatch(line))]
    deepest = [cause for cause in causes if cause[0].startswith("Caused by: ")] or causes
    return deepest[-1][1] if deepest else (lines or ["its log is empty"])[-1]
