"""Checks of the calls of a recipe against this repository: each yields the names that do not exist."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from django.conf import settings
from django.core.management import CommandError, get_commands, load_command_class
from django.urls import Resolver404, resolve

from tests.recipes.stage import ROOT, Call

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text(encoding="utf-8"))
VERSION = (ROOT / "VERSION").read_text(encoding="ascii").strip()
OF_DEBIAN = ("postgresql.service", "redis-server.service", "systemd-timesyncd.service")
UNITS = {path.name for path in (ROOT / "deploy/systemd").iterdir()} | set(OF_DEBIAN)
SETTINGS = {setting.name for setting in settings.ENVIRONMENT.table}


def check_manage(call: Call) -> Iterator[str]:
    """The command's own parser takes the arguments."""
    command, *arguments = call.arguments
    if command not in get_commands():
        yield f"no command {command}"
        return
    if {"-h", "--help"} & {*arguments}:
        return
    try:
        load_command_class(get_commands()[command], command).create_parser("manage.py", command).parse_args(arguments)
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
    _, services = after_options(tuple(rest), {"-u", "--user", "--scale"})
    services = services[:1] if command in {"exec", "run"} else [word for word in services if not word.startswith("-")]
    yield from (f"no service {name}" for name in services if name not in COMPOSE["services"])


def check_docker(call: Call) -> Iterator[str]:
    """Stages, settings and images exist, and images are of this version."""
    command, *rest = call.arguments
    if command == "compose":
        yield from check_compose(tuple(rest))
        return
    stages = re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    options, words = after_options(tuple(rest), {"--target", "-t", "-p", "-e", "--build-arg"})
    for name, value in [*options, *(("-t", word) for word in words if command == "push")]:
        known = {
            "--target": value in stages,
            "-e": value.split("=")[0] in SETTINGS,
            "-t": value.endswith(f":{VERSION}"),
        }
        yield from [] if known.get(name, True) else [f"docker {name} {value}"]


def check_helm(call: Call) -> Iterator[str]:
    """The chart exists. Its values are in blocks of their own, which another test compares."""
    if not any((ROOT / word / "Chart.yaml").exists() for word in call.arguments):
        yield "no chart"


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


def check_systemctl(call: Call) -> Iterator[str]:
    _, *rest = call.arguments
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


CHECKS: dict[str, Callable[[Call], Iterator[str]]] = {
    ".venv/bin/python": check_python,
    "curl": check_curl,
    "docker": check_docker,
    "helm": check_helm,
    "kubectl": check_kubectl,
    "manage.py": check_manage,
    "push-server-manage": check_manage,
    "python": check_python,
    "systemctl": check_systemctl,
}


def faults(call: Call) -> Iterator[str]:
    """Yield what a call names and what does not exist. Programs without a check change files, or are compared by a test
    of their own; targets of make are compared with all documents in tests/test_documents.py.
    """
    if check := CHECKS.get(call.program):
        yield from check(call)
