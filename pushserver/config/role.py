"""Role of a process: which apps it installs, and how long its statements may take.

Each entry point names the role once, before the settings are read: `manage.py` by its command, `pushserver.wsgi` and
`pushserver.worker` for what servers of others start. A process without a role is a command that an operator types.
"""

from enum import StrEnum

_named: list["Role"] = []


class Role(StrEnum):
    """What a process is for. Importing the pages more than doubles the time and the memory of a start."""

    COMMAND = "command"  # has the pages; its statements may take as long as they like
    SERVER = "server"  # runs as long as the server does, and has the pages
    WORKER = "worker"  # runs as long as the server does, and installs neither the console nor the API


# Commands that run as long as the server does. For those that an operator types now and then it would not pay off.
OF_COMMANDS = {
    "up": Role.SERVER,
    "demo": Role.SERVER,
    "run_waku_bridge": Role.WORKER,
    "run_xmpp_bridge": Role.WORKER,
    "demo_clients": Role.WORKER,
}


def begin_as(role: Role) -> None:
    """Name the role of this process. The first one stays: `manage.py up` forks web server and workers."""
    if not _named:
        _named.append(role)


def role() -> Role:
    """Return the role of this process."""
    return _named[0] if _named else Role.COMMAND
