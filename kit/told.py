"""Saying once what lasts."""


class Told:
    """What was said last about a state that lasts, so that it is said once, and again when it changes."""

    def __init__(self) -> None:
        self._last = ""

    def is_news(self, words: str) -> bool:
        """Return whether this was not what was said last, and remember it. Empty words mean that all is well."""
        last, self._last = self._last, words
        return words != last
