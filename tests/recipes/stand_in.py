"""Stand-in for a program that a recipe calls (`tests.recipes.stage`). It records the call and makes expected folders.

It runs alone, without this repository. A program that runs another one (su, docker, kubectl) runs it on the same stage.
"""

import json
import os
import sys
from pathlib import Path

STAGE = Path(os.environ["STAGE"])
CHECKOUT = STAGE / "opt/push-server"


def record(**call: object) -> None:
    with (STAGE / "calls").open("a", encoding="utf-8") as calls:
        calls.write(json.dumps(call) + "\n")


def program() -> str:
    """Return the name of the program, below the checkout where it is one of the repository."""
    path = os.path.abspath(sys.argv[0])  # noqa: PTH100 - links are not followed
    for checkout in (CHECKOUT, CHECKOUT.resolve()):
        if path.startswith(f"{checkout}/"):
            return path.removeprefix(f"{checkout}/")
    return os.path.basename(path)  # noqa: PTH119


def inner(name: str, arguments: list[str]) -> list[str]:
    """Return the command that a program runs inside of an account, a container or a pod, or nothing."""
    if name == "su" and "-c" in arguments:
        return ["sh", "-c", arguments[arguments.index("-c") + 1]]
    if name == "kubectl" and "--" in arguments:
        return arguments[arguments.index("--") + 1 :]
    if name == "docker" and arguments[:1] == ["run"]:
        return arguments[arguments.index("sh") :]
    if name == "docker" and arguments[:2] == ["compose", "exec"]:
        return _after_options(arguments[2:], {"-u", "--user"})[1:]
    return []


def _after_options(arguments: list[str], with_value: set[str]) -> list[str]:
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[2 if arguments[0] in with_value else 1 :]
    return arguments


def leave_traces(name: str, arguments: list[str]) -> None:
    """Make the folders that later lines enter."""
    if name == "install" and "-d" in arguments:
        for folder in _after_options(arguments, {"-m", "-o", "-g"}):
            Path(folder).mkdir(parents=True, exist_ok=True)
    if name == "git" and arguments[0] == "clone" and not Path(arguments[2]).exists():
        Path(arguments[2]).symlink_to(CHECKOUT)


def main() -> None:
    if sys.argv[1:] == ["environment"] and sys.argv[0] == __file__:
        record(environment=dict(os.environ))
        return
    name, arguments = program(), sys.argv[1:]
    command = inner(name, arguments)
    given = "" if command or sys.stdin.isatty() else sys.stdin.read()
    record(program=name, arguments=arguments, given=given)
    leave_traces(name, arguments)
    if command:
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
