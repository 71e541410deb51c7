"""The development gorush: the real one's HTTP interface (v1.22.0, sync mode), with Apple and Google imitated.

The prefix of a device token decides the outcome of its pushes (`outcomes.py`). Every push that would have reached Apple
or Google is recorded (`pushes.py`), so that a test can prove "sent once". One thing is not imitated: the data race by
which the real gorush loses failure entries of requests with several tokens.

See docs/gorush.md.
"""
