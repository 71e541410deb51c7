"""The query topics that we read, one per registered key hash: their table, a bridge's copy in memory, and their keys.

A registration announces its topic in the transaction that stores it. A reader takes in the announcements after fetching
a page. So it knows every topic whose registration was answered before the page was fetched.

See docs/reading.md.
"""

from waku_bridge.query_topics.budget import CpuBudget
from waku_bridge.query_topics.keys import Keys, derive_keys, derive_newest, load_keys, urgent_budget
from waku_bridge.query_topics.reader import QueryTopics
from waku_bridge.query_topics.registering import listen_to, stop_listening_to, stop_listening_to_nobody

__all__ = [
    "CpuBudget",
    "Keys",
    "QueryTopics",
    "derive_keys",
    "derive_newest",
    "listen_to",
    "load_keys",
    "stop_listening_to",
    "stop_listening_to_nobody",
    "urgent_budget",
]
