"""The development gorush: the real one's HTTP interface (v1.22.0, sync mode), with Apple and Google imagined.

What happens to a push is decided by its device token's prefix (`outcomes.py`), and every push that would have reached
Apple or Google is kept (`pushes.py`), so that a test can prove "sent once". Not imitated: the data race by which the
real gorush loses failure entries of requests with several tokens.

See docs/gorush.md.
"""
