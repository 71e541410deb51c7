"""The inbox: what came in and waits, and in which order it is taken. See docs/reading.md."""
