"""What our plans assume of a session of PostgreSQL, as plain values: the settings read them before Django is set up.

Each setting stands here with what needs it, and nowhere else. The server of an operator has other defaults than the
embedded one (docs/decisions/0035).
"""

from collections.abc import Mapping

# Every session. These are options of the connection, which win over what is set for a role or a database.
#
# jit: a statement of a batch takes less than a millisecond, and compiling it much more. PostgreSQL compiles what it
# thinks dear, and before version 18 that is every plan with a node that `BATCH_WORKER` disables: on Debian's 15 a
# request took four times the CPU time, and an idle server sixteen times.
# random_page_cost: the default is that of turning disks. By it the console's list of registration events, filtered by
# kind, reads and sorts the whole table instead of following an index, which grows with the table.
EVERY_SESSION: Mapping[str, str] = {"jit": "off", "random_page_cost": "1.1"}

# Sessions of batch workers, whose statements look up a few hundred keys by an index. Plans are kept for a prepared
# statement; made by the statistics of a small table, they would read all of it for as long as that is not analyzed.
#
# enable_seqscan: `_FIND_KNOWN` (notifications/acceptance/storing.py) and `_FINISH`
# (notifications/delivery/recording.py) read all notifications, the registrations are read by `_FIND_ADDRESSEES`
# (notifications/acceptance/acceptance.py).
# enable_hashjoin: with an index scan of the whole table below it, `_FIND_ADDRESSEES`, `_CLAIM`
# (notifications/queues/claim.py) and `_RECORD` (waku_bridge/outbound/publishing.py) hash every row.
# enable_mergejoin: without hash joins these are merged instead, three of four times, and so is the update of
# attempts (notifications/delivery/recording.py).
# enable_bitmapscan: `_TAKE` (waku_bridge/inbound/inbound.py) and `EXPIRED` (notifications/queues/queues.py) read and
# sort all that waits, where next to nothing did when the statistics were made, instead of following the index as far
# as they need.
#
# lock_timeout, in ms: what another session keeps locked for longer, such as an operator's, is put off.
BATCH_WORKER: Mapping[str, str] = {
    "lock_timeout": "1000",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
}


def options(settings: Mapping[str, str]) -> str:
    """Return settings as the options of a connection that is made."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def set_all(settings: Mapping[str, str]) -> str:
    """Return SQL expressions that set these for an open session, to be selected by a statement."""
    return ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
