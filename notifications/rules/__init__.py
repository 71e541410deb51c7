"""Rules of the life of a notification: decisions, deadlines, the changes of a state, and what a sender is told.

See docs/delivery.md.
"""
