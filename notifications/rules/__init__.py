"""Rules of a notification's life: decisions, deadlines, changes of state, and the reports to senders.

See docs/delivery.md.
"""
