"""The config check: whether each gorush runs as our delivery needs it to (docs/gorush.md).

`readings` understands what gorush says about itself and `rules` judges it, both without I/O. `checking` asks every
gorush and saves what it found, for `/readyz` and the console.
"""
