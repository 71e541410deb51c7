"""Log filter that reports a condition when it changes."""


class ChangeFilter:
    """Remembers what was reported last about a condition, so that it is reported once, and again when it changes."""

    def __init__(self) -> None:
        self._last = ""

    def has_changed(self, words: str) -> bool:
        """Return whether this was not what was reported last, and remember it. Empty words mean that all is well."""
        last, self._last = self._last, words
        return words != last
