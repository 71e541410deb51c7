"""The error that ends a program, with a message for the person who started it."""


class StartError(Exception):
    """A process cannot start. The message is one line that tells the operator what to do."""
