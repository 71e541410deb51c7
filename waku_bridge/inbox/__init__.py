"""The inbox: the envelopes that came in and wait, and the order in which they are taken. See docs/reading.md."""
