"""The development Waku node: nwaku's REST interface without a network behind it.

What a program may observe through REST (the one lossy ring, draining reads, the store's order and admission, the error
answers) is the same as on nwaku v0.38; what it may not observe (libp2p, RLN) is absent. Faults that real nodes
show once a month are added by `tests/faulty/node.py`.

See docs/waku.md.
"""
