"""The config check of Waku nodes: whether each one runs as the bridge needs it to (docs/waku.md).

`readings` and `enr` understand what a node says about itself and `rules` judges it, all without I/O; `pages` notes how
long its pages are; `checking` asks every node and saves what it found, for `/readyz` and the console.
"""
