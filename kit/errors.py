"""Errors that end a program, with a message for the person who started it."""


class StartError(Exception):
    """A process cannot start. The message is one line that tells the operator what to do."""


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group: those of tasks that run together come as a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
