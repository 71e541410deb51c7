"""The development gorush: the interface of the real one (v1.22.0, sync mode), with Apple and Google imitated.

The prefix of a device token decides the outcome of its push (`outcomes.py`). It takes pushes in the shape in which this
server sends them, and records every push that would have reached Apple or Google (`server.py`), so that a test can
prove "sent once". `/dev/faults` sets faults of the whole server.

See docs/gorush.md.
"""
