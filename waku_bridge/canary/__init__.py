"""The canary: a client of our own that registers, asks, notifies itself and unregisters every minute.

It goes through all that real messages go through, and says which link of the chain is broken. It stands beside the
server and shares only its settings and its database, where it looks for the reason when an answer does not come. What
it leaves in the tables is marked, left out of reports, and removed when the run is over.
"""

from waku_bridge.canary.board import Last, is_expected, last
from waku_bridge.canary.runs import is_under_way, purge, run
from waku_bridge.canary.traces import remove_traces

__all__ = ["Last", "is_expected", "is_under_way", "last", "purge", "remove_traces", "run"]
