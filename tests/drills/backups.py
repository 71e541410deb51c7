"""Base backup, WAL archive and restore of a cluster as docs/backup.md describes them, with PostgreSQL's own
programs.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg

from embedded.servers.folders import own_folder
from embedded.servers.postgres import EmbeddedPostgres
from tests.rig.postgres import run_program


@dataclass(frozen=True)
class Backups:
    """Base backup and WAL archive of one cluster, below ``folder``."""

    folder: Path

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    def settings(self) -> dict[str, str]:
        """Return settings of the cluster that is backed up. A WAL segment appears in the archive once it is whole."""
        kept = f"{self.archive}/%f"
        command = f"test ! -f {kept} && cp %p {kept}.part && sync {kept}.part && mv {kept}.part {kept}"
        return {"archive_mode": "on", "archive_command": command, "archive_timeout": "60"}

    def settings_to_restore(self, until: datetime) -> dict[str, str]:
        """Return settings of the restored cluster: it replays the archive up to that time and then serves."""
        return {
            "restore_command": f"cp {self.archive}/%f %p",
            "recovery_target_time": until.isoformat(),
            "recovery_target_action": "promote",
        }

    def make_folders(self, cluster: EmbeddedPostgres) -> None:
        """Make the folders for the account of the cluster."""
        for folder in (self.folder, self.archive):
            own_folder(folder, cluster.account)

    def take(self, cluster: EmbeddedPostgres) -> None:
        """Take the base backup of the cluster while it serves.

        The wheel's pg_verifybackup ends with a segmentation fault, and a restore is the better proof anyway.
        """
        source = ["--host", str(cluster.socket_dir), "--username", "postgres"]
        options = ["--pgdata", str(self.base), "--checkpoint=fast", "--wal-method=stream"]
        run_program(cluster, "pg_basebackup", *source, *options)

    def restore(self, cluster: EmbeddedPostgres) -> None:
        """Make the data folder of another cluster, which replays the archive when it starts."""
        own_folder(cluster.data_dir.parent, cluster.account)
        run_program(cluster, "cp", "--archive", str(self.base), str(cluster.data_dir))
        run_program(cluster, "touch", str(cluster.data_dir / "recovery.signal"))


def archived_up_to_now(cluster: EmbeddedPostgres) -> datetime:
    """Return a recovery target: the time of the server now, with a WAL record after it."""
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        [moment] = connection.execute("SELECT clock_timestamp()").fetchone()
        # Without a record after the target, there is no segment to switch, and recovery does not stop at the target.
        connection.execute("SELECT pg_logical_emit_message(true, 'drill', 'after')")
    return moment


def send_to_archive(cluster: EmbeddedPostgres) -> str:
    """Begin a new WAL segment, as archive_timeout does within a minute. Return the name of the segment that ended."""
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        [name] = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()
    return name


def size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
