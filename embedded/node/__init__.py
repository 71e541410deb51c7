"""The development Waku node: nwaku's REST interface without a network behind it.

Wherever our code looks, the answers are those of nwaku v0.38: the one lossy ring, draining reads, the
store's order and admission (`store.py`), health, and refusals. They are known by its source, or were measured on
v0.38.1 where a test says so. Lightpush, which our code does not use, libp2p and RLN are absent. `/dev/faults` sets the
faults that real nodes show once a month (`node.py`).

See docs/waku.md.
"""
