"""Log filter that reports a condition when it changes."""


class ChangeFilter:
    """Remembers the last report of a condition, so that callers report it once, and again when it changes."""

    def __init__(self) -> None:
        self._last = ""

    def has_changed(self, words: str) -> bool:
        """Return whether ``words`` differ from the last report, and remember them. Empty words mean no fault."""
        last, self._last = self._last, words
        return words != last
