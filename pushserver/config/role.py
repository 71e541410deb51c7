"""Role of a process: which apps it installs, and how long its statements may take. And which processes it is.

Each entry point names both once, before the settings are read: `manage.py` by its command, `pushserver.wsgi` and
`pushserver.worker` for what servers of others start. A process without a role is a command that an operator types.
"""

from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from enum import StrEnum

# Those of compose.yaml. What one uses of the secrets is in the table of settings.
PROCESSES = ("migrate", "web", "bridge", "xmpp", "batches", "tasks", "reports")
_OF_QUEUES = {"batches": "batches", "reports": "reports"}  # any other queue is served by `tasks`
_OF_COMMANDS: dict[str, Collection[str]] = {
    "migrate": ["migrate"],
    "run_waku_bridge": ["bridge"],
    "run_xmpp_bridge": ["xmpp"],
    "run_reports": ["reports"],
    "export_events": ["reports"],
    "up": PROCESSES,
    "demo": PROCESSES,
    "check": ["web"],  # which has the most settings to check
}
# Other commands are typed in the containers of `web` or `tasks`, and need what both have.
_OF_OTHERS = ["tasks"]


class Role(StrEnum):
    """Purpose of a process. Only some import the pages, which more than double the time and the memory of a start."""

    COMMAND = "command"  # has the pages; its statements may take as long as they like
    SERVER = "server"  # runs as long as the server does, and has the pages
    WORKER = "worker"  # runs as long as the server does, and installs neither the console nor the API


_named: list[tuple[Role, Collection[str]]] = []


def begin_as(role: Role, processes: Collection[str]) -> None:
    """Name the role of this process. The first one stays: `manage.py up` forks web server and workers."""
    if not _named:
        _named.append((role, processes))


def begin_command(command: str) -> None:
    """Begin as a command of `manage.py`. Those named `run_…_bridge` run as long as the server does."""
    is_bridge = command.startswith("run_") and command.endswith("_bridge")
    lasting = {"up": Role.SERVER, "demo": Role.SERVER, "demo_clients": Role.WORKER}
    role = Role.WORKER if is_bridge else lasting.get(command, Role.COMMAND)
    begin_as(role, _OF_COMMANDS.get(command, _OF_OTHERS))


def serving(arguments: Sequence[str]) -> set[str]:
    """Return the processes that a Celery worker with these arguments is. Without `--queues` it serves all queues."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-Q", "--queues", default="batches,maintenance,reports")
    named, _others = parser.parse_known_args(arguments)
    return {_OF_QUEUES.get(queue, "tasks") for queue in named.queues.split(",")}


def role() -> Role:
    """Return the role of this process."""
    return _named[0][0] if _named else Role.COMMAND


def processes() -> Collection[str]:
    """Return which of `PROCESSES` this one is."""
    return _named[0][1] if _named else _OF_OTHERS
