"""Settings of PostgreSQL sessions: timeouts, and what our query plans need. It imports no Django: the settings read it.

Each setting is here, with the statements that need it, and nowhere else. An operator's server has other defaults than
the embedded one (docs/decisions/0141).
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Seconds to wait for PostgreSQL's own timeout error before the client gives up.
GRACE_SECONDS = 5.0
# Seconds after which PostgreSQL ends a transaction whose process sends nothing, as it was stopped or its container
# frozen. Otherwise the rows that it locked would wait until somebody ends it. Decoding the largest batch takes two
# seconds on a busy machine.
IDLE_SECONDS = 30.0

# Settings of every session. They are options of the connection, which override those of a role or a database.
#
# jit: a statement of a batch takes less than a millisecond, and compiling it takes much longer. PostgreSQL compiles
# plans with a high cost, and before version 18 that includes every plan with a node that `BATCH_WORKER` disables. On
# Debian's 15 a request took four times the CPU time, and an idle server sixteen times.
# random_page_cost: the default is for rotating disks. With it, the console's list of registration events, filtered by
# kind, reads and sorts the whole table instead of using an index, and gets slower as the table grows.
EVERY_SESSION: Mapping[str, str] = {"jit": "off", "random_page_cost": "1.1"}

# Settings of batch workers, whose statements look up a few hundred keys by an index. PostgreSQL keeps the plan of a
# prepared statement. A plan from the statistics of a small table would read the whole table until its next analysis.
# The statements below would do so without the setting before them.
#
# enable_seqscan: `FIND_KNOWN` (notifications/acceptance/statements.py) and `_FINISH`
# (notifications/delivery/recording.py) read all notifications, and `FIND_ADDRESSEES`
# (beside it) reads all registrations.
# enable_hashjoin: with an index scan of the whole table, `FIND_ADDRESSEES` and `_CLAIM`
# (notifications/queues/claim.py) hash every row.
# enable_mergejoin: without hash joins, these statements use merge joins in three of four cases, and so does the update
# of attempts (notifications/delivery/recording.py).
# enable_bitmapscan: `_TAKE` (waku_bridge/inbox/inbox.py) and `EXPIRED` (notifications/queues/queues.py) read and
# sort all waiting rows, if few rows waited when the statistics were made, instead of reading the first index entries.
#
# lock_timeout, in ms: an item whose row another session, such as an operator's, keeps locked for longer waits.
# idle_in_transaction_session_timeout: as in every session (`Timeouts`), but also where a pooler drops our options.
BATCH_WORKER: Mapping[str, str] = {
    "lock_timeout": "1000",
    "idle_in_transaction_session_timeout": str(round(IDLE_SECONDS * 1000)),
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
}


def options(settings: Mapping[str, str]) -> str:
    """Return settings as options for a new connection."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def set_all(settings: Mapping[str, str]) -> str:
    """Return SQL expressions for a SELECT that applies settings to an open session."""
    return ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The longest time of a statement (0: no limit), of its wait for a lock, and between two of a transaction."""

    statement_seconds: float
    lock_seconds: float
    idle_seconds: float = IDLE_SECONDS

    @property
    def answer_seconds(self) -> float | None:
        """Return the seconds within which a working server answers, at least with its own timeout error."""
        return self.statement_seconds + GRACE_SECONDS if self.statement_seconds else None

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of a new session, in the notation of PostgreSQL."""
        return {
            "statement_timeout": milliseconds(self.statement_seconds),
            "lock_timeout": milliseconds(self.lock_seconds),
            "idle_in_transaction_session_timeout": milliseconds(self.idle_seconds),
        }


def milliseconds(seconds: float) -> str:
    """Return a duration in the notation of PostgreSQL."""
    return f"{round(seconds * 1000)}ms"
