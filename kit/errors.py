"""Errors that end a program, with a text for the person who started it."""


class StartError(Exception):
    """A process cannot be started. The text says what to do, in one line."""
