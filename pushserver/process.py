"""Tell what a process is for by the command that started it.

The settings ask once. A process that shows no pages installs and imports neither the console nor the API, which more
than halves the time and the memory of its start. A command that is not known here gets everything, and so does
`manage.py up`, which forks the web server.
"""

from collections.abc import Sequence
from pathlib import PurePath

# Commands that run as long as the server does. For those that an operator types now and then it would not pay off.
WITHOUT_PAGES = frozenset({"demo_clients", "run_waku_bridge", "run_xmpp_bridge"})
SERVERS = WITHOUT_PAGES | {"up", "demo"}


def shows_pages(arguments: Sequence[str]) -> bool:
    """Return whether the process with these ``arguments``, its program first, needs the console, the API and their
    apps.
    """
    program, *rest = arguments
    if _name(program) == "celery":
        return False
    return not (_name(program) == "manage" and rest[:1] and rest[0] in WITHOUT_PAGES)


def is_server(arguments: Sequence[str]) -> bool:
    """Return whether the process with these ``arguments``, its program first, runs as long as the server does."""
    program, *rest = arguments
    return _name(program) in {"celery", "granian"} or (_name(program) == "manage" and bool(rest) and rest[0] in SERVERS)


def _name(program: str) -> str:
    """Return the name of a program: ``celery`` both for ``/usr/bin/celery`` and for ``python -m celery``."""
    path = PurePath(program)
    return path.parent.name if path.name == "__main__.py" else path.stem
