"""The config check of Waku nodes: it finds settings of a node that the bridge cannot work with (docs/waku.md).

`readings` and `enr` parse the node's answers and `rules` judges them, all without I/O. `checking` queries every node
and saves the findings, for `/readyz` and the console, with the facts that the console shows.
"""

from pushserver.console.checks.notices import NoticeCache

NOTICES = NoticeCache("node")
