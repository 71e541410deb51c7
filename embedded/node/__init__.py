"""The development Waku node: nwaku's REST interface without a network behind it.

Everything that a program may observe through REST is as on nwaku v0.38: the one lossy ring, draining reads, the store's
order and admission, and the error answers. Everything else (libp2p, RLN) is absent. `tests/faulty/node.py` adds the
faults that real nodes show once a month.

See docs/waku.md.
"""
