"""Checks of the calls of a recipe against this repository: each yields the names that do not exist."""

import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from django.core.management import CommandError, get_commands, load_command_class
from django.urls import Resolver404, resolve

from pushserver.config.page import readings
from tests.recipes.blocks import ROOT
from tests.recipes.stage import Call

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text(encoding="utf-8"))
VERSION = (ROOT / "VERSION").read_text(encoding="ascii").strip()
OF_DEBIAN = ("postgresql.service", "redis-server.service", "systemd-timesyncd.service")
UNITS = {path.name for path in (ROOT / "deploy/systemd").iterdir()} | set(OF_DEBIAN)
SETTINGS = set(readings())


def check_make(call: Call) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    yield from (f"no target {word}" for word in call.arguments if "=" not in word and word not in targets)


def parser_of(command: str) -> ArgumentParser:
    return load_command_class(get_commands()[command], command).create_parser("manage.py", command)


def check_manage(call: Call) -> Iterator[str]:
    """The command's own parser takes the arguments."""
    command, *arguments = call.arguments
    if command not in get_commands():
        yield f"no command {command}"
        return
    if {"-h", "--help"} & {*arguments}:
        return
    try:
        parser_of(command).parse_args(arguments)
    except CommandError as error:
        yield f"{command}: {error}"


def check_python(call: Call) -> Iterator[str]:
    """It runs manage.py, or a module or a script of the repository."""
    first, *rest = call.arguments
    if first == "manage.py":
        yield from check_manage(Call(first, tuple(rest)))
    else:
        name = rest[0].replace(".", "/") if first == "-m" else first
        yield from [] if any((ROOT / f"{name}{end}").exists() for end in ("", ".py")) else [f"no {name}"]


def after_options(words: tuple[str, ...], with_value: set[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options before the first word that is none, with their values, and the words from it on."""
    options, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        options.append((name, rest.pop(0) if name in with_value else ""))
    return options, rest


def check_compose(words: tuple[str, ...]) -> Iterator[str]:
    """Profiles and services are those of compose.yaml."""
    options, (command, *rest) = after_options(words, {"--profile", "-f"})
    profiles = {profile for service in COMPOSE["services"].values() for profile in service.get("profiles", ())}
    yield from (f"no profile {value}" for name, value in options if name == "--profile" and value not in profiles)
    if command not in {"build", "exec", "logs", "ps", "pull", "restart", "run", "stop", "up"}:
        yield f"compose {command} is not known here"
    _, services = after_options(tuple(rest), {"-u", "--user", "--scale"})
    services = services[:1] if command in {"exec", "run"} else [word for word in services if not word.startswith("-")]
    yield from (f"no service {name}" for name in services if name not in COMPOSE["services"])


def check_docker(call: Call) -> Iterator[str]:
    command, *rest = call.arguments
    if command == "compose":
        yield from check_compose(tuple(rest))
        return
    stages = re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    options, words = after_options(tuple(rest), {"--target", "-t", "-p", "-e", "--build-arg"})
    yield from (f"no stage {value}" for name, value in options if name == "--target" and value not in stages)
    yield from (
        f"no setting {value}" for name, value in options if name == "-e" and value.split("=")[0] not in SETTINGS
    )
    images = [value for name, value in options if name == "-t"] + (words if command == "push" else [])
    yield from (f"{image} is of another version" for image in images if image.rsplit(":", 1)[1] != VERSION)
    if command not in {"build", "push", "run"}:
        yield f"docker {command} is not known here"


def check_helm(call: Call) -> Iterator[str]:
    """The chart exists, and so does each value that is set."""
    words = [word for word in call.arguments if not word.startswith("-")]
    if not any((ROOT / word / "Chart.yaml").exists() for word in words):
        yield "no chart"
    for name, value in zip(call.arguments, call.arguments[1:], strict=False):
        if name == "--set":
            yield from unknown_values(nested(value))


def nested(assignment: str) -> dict[str, Any]:
    path, _, value = assignment.partition("=")
    made: Any = value
    for name in reversed(path.split(".")):
        made = {name: made}
    return dict(made)


def unknown_values(given: Mapping[str, Any], known: Any = VALUES, path: str = "") -> Iterator[str]:
    """Yield each value that the chart does not have. Settings are those of the server."""
    for name, value in given.items():
        if path == "settings.":
            yield from [] if name in SETTINGS else [f"no setting {name}"]
        elif not isinstance(known, dict) or name not in known:
            yield f"no value {path}{name}"
        elif isinstance(value, dict):
            yield from unknown_values(value, known[name], f"{path}{name}.")


def check_kubectl(call: Call) -> Iterator[str]:
    """The deployment is one of the chart, and the secret has its keys."""
    _, (verb, *rest) = after_options(call.arguments, {"-n"})
    _, words = after_options(tuple(rest), {"--tail"})
    if verb in {"exec", "logs"}:
        release, _, process = words[0].removeprefix("deployment/").partition("-")
        yield from [] if release == "push" and process in VALUES["processes"] else [f"no {words[0]}"]
    elif (verb, *words[:2]) == ("create", "secret", "generic"):
        keys = {word.removeprefix("--from-file=") for word in words if word.startswith("--from-file=")}
        yield from [] if (words[2], keys) == (VALUES["secret"]["name"], {*VALUES["secret"]["keys"]}) else [str(keys)]
    elif (verb, words[0]) not in {("create", "namespace"), ("rollout", "restart")}:
        yield f"kubectl {verb} {words[0]} is not known here"


def check_systemctl(call: Call) -> Iterator[str]:
    verb, *rest = call.arguments
    if verb not in {"enable", "disable", "start", "stop", "restart", "status", "daemon-reload"}:
        yield f"no verb {verb}"
    names = [word if "." in word else f"{word}.service" for word in rest if not word.startswith("-")]
    yield from (f"no unit {name}" for name in names if name not in UNITS)


def check_curl(call: Call) -> Iterator[str]:
    """A path of this server leads somewhere. Other servers are not asked."""
    if not any(re.match(r"https?://(127\.0\.0\.1:8000|push\.example\.org)/", word) for word in call.arguments):
        return
    _, path, _, _ = read_curl(call)
    try:
        resolve(path.partition("?")[0])
    except Resolver404:
        yield f"no page {path}"


def read_curl(call: Call) -> tuple[str, str, dict[str, str], str]:
    """Return the method, the path, the headers and the data of a call. Raises KeyError for an option beyond these."""
    found: dict[str, list[str]] = {"-H": [], "-d": [], "url": []}
    words = iter(call.arguments)
    for word in words:
        found[word if word.startswith("-") else "url"].append(next(words) if word.startswith("-") else word)
    headers = dict(header.split(": ", 1) for header in found["-H"])
    return "POST" if found["-d"] else "GET", "/" + found["url"][0].split("/", 3)[3], headers, "".join(found["-d"])


def check_git(call: Call) -> Iterator[str]:
    if call.arguments[:2] != ("clone", "THIS-REPOSITORY") and call.arguments != ("pull",):
        yield "git does something else here"


def check_apt(call: Call) -> Iterator[str]:
    packages = [word for word in call.arguments[1:] if not word.startswith("-")]
    if call.arguments[0] not in {"update", "install"} or not all(
        re.fullmatch(r"[a-z][a-z0-9.+-]+", p) for p in packages
    ):
        yield "apt-get cannot read this"


def check_peers(call: Call) -> Iterator[str]:
    """A peer is a folder beside the program."""
    yield from (f"no peer {name}" for name in call.arguments if not (ROOT / call.program).with_name(name).is_dir())


def check_pre_commit(call: Call) -> Iterator[str]:
    if call.arguments != ("install",) or "\npre-commit==" not in (ROOT / "requirements/dev.txt").read_text("utf-8"):
        yield "pre-commit is not installed, or does something else"


def is_fine(_: Call) -> Iterator[str]:
    """It changes files of the machine, or is compared by a test of its own."""
    yield from ()


CHECKS: dict[str, Callable[[Call], Iterator[str]]] = {
    ".venv/bin/pre-commit": check_pre_commit,
    ".venv/bin/python": check_python,
    "apt-get": check_apt,
    "chown": is_fine,
    "curl": check_curl,
    "deploy/systemd/install.sh": is_fine,
    "docker": check_docker,
    "git": check_git,
    "helm": check_helm,
    "install": is_fine,
    "kubectl": check_kubectl,
    "make": check_make,
    "manage.py": check_manage,
    "pg_basebackup": is_fine,  # test_the_backup_of_the_page_is_that_of_the_drill
    "psql": is_fine,  # test_postgresql_has_the_settings_that_recipes_alter
    "push-server-manage": check_manage,
    "python": check_python,
    "su": is_fine,  # what it runs is a call of its own
    "systemctl": check_systemctl,
    "tests/interop/peers/build.sh": check_peers,
    "wakunode2": is_fine,  # waku_bridge/node/tests/test_documented_flags.py
}


def faults(call: Call) -> Iterator[str]:
    """Yield what a call names and what does not exist. A program that has no check is a fault, too."""
    check = CHECKS.get(call.program)
    yield from check(call) if check else [f"{call.program} has no check in tests/recipes/calls.py"]
