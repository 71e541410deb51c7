"""Role of a process: which apps it installs, and how long its statements may take.

Each entry point names the role once, before the settings are read: `manage.py` by its command, `pushserver.wsgi` and
`pushserver.worker` for what servers of others start. A process without a role is a command that an operator types.
"""

from enum import StrEnum

_named: list["Role"] = []


class Role(StrEnum):
    """Purpose of a process. Only some import the pages, which more than double the time and the memory of a start."""

    COMMAND = "command"  # has the pages; its statements may take as long as they like
    SERVER = "server"  # runs as long as the server does, and has the pages
    WORKER = "worker"  # runs as long as the server does, and installs neither the console nor the API


def role_of(command: str) -> Role:
    """Return the role of a command of `manage.py`. Those named `run_…_bridge` run as long as the server does."""
    if command.startswith("run_") and command.endswith("_bridge"):
        return Role.WORKER
    return {"up": Role.SERVER, "demo": Role.SERVER, "demo_clients": Role.WORKER}.get(command, Role.COMMAND)


def begin_as(role: Role) -> None:
    """Name the role of this process. The first one stays: `manage.py up` forks web server and workers."""
    if not _named:
        _named.append(role)


def role() -> Role:
    """Return the role of this process."""
    return _named[0] if _named else Role.COMMAND
