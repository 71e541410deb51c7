"""The config check: whether the configuration of each gorush suits our delivery (docs/gorush.md).

`readings` parses what gorush reports about itself and `rules` judges it, both without I/O. `checking` reads from every
gorush and saves the complaints, for `/readyz` and the console, with the counters that the next check compares with.
"""

from pushserver.console.checks.notices import NoticeCache

NOTICES = NoticeCache("gorush")
