"""The config check of Waku nodes: it finds settings of a node that the bridge cannot work with (docs/waku.md).

`readings` and `enr` parse the node's answers and `rules` judges them, all without I/O. `pages` notes the lengths of its
pages. `checking` queries every node and saves the findings, for `/readyz` and the console.
"""
