"""Typed reading of environment variables: each call is a row of the table of settings, see `pushserver/settings.py`.

A wrong value never raises here: it is remembered as a problem, the default takes its place, and `pushserver.checks`
reports it with an id and a hint before anything is started.
"""

import base64
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from django.core.checks import Error

from pushserver.config.data_dir import usable
from pushserver.config.kinds import KEY_BYTES, PROBLEMS, SECP256K1_ORDER, Kind, WrongError

T = TypeVar("T")
# `$(NAME)` and `${NAME}`, which not every program that sets an environment replaces, and placeholders of templates.
_UNREPLACED = re.compile(r"\$\([A-Za-z_]\w*\)|\$\{[A-Za-z_]\w*\}|\{\{.*\}\}")
GENERATED = "generated while the database is embedded, else required"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. ``default`` and ``looks`` are Markdown.

    ``used_by`` has the processes that need a secret, and is empty for what is no secret.
    """

    group: str
    name: str
    default: str
    looks: str
    used_by: frozenset[str]


@dataclass(slots=True)
class Environment:
    """Reads ``values`` (name to text) for some ``processes``, and collects an error of the system checks for each value
    that is wrong. An error never holds the value itself, which may be a secret.
    """

    values: Mapping[str, str]
    processes: Collection[str] = ()
    # In production a missing secret stays missing, which is a problem of each process that uses it.
    generate: Callable[[str], str] = lambda _name: ""
    group: str = ""
    table: list[Setting] = field(default_factory=list)
    problems: list[Error] = field(default_factory=list)

    def __call__(self, name: str, kind: Kind[T], default: str = "", *, words: str = "", used_by: str = "") -> T:
        """Add a row to the table, and return the value: that of the variable, else the default.

        A ``default`` is written as an operator would. ``words`` say it where it follows from something else. A secret
        is ``used_by`` some processes.
        """
        own = frozenset(used_by.split())
        shown = GENERATED if name in GENERATORS else words or (f"`{default}`" if default else "none")
        self.table.append(Setting(self.group, name, shown, kind.looks, own))
        try:
            text = self.secret(name) if own else self.text(name)
            if not text and name in GENERATORS:
                text = self.generate(name) or self._missed(kind, own)
            return kind.read(text or default)
        except WrongError as wrong:
            hint = wrong.hint or f"The default is {shown.replace('`', '')}."
            self.report(wrong.problem, f"{wrong.name or name} {wrong.words}.", hint)
        except ValueError:
            words, hint = PROBLEMS[kind.problem]
            self.report(kind.problem, f"{name} {words}.", hint)
        return kind.read(default)

    def report(self, problem: str, message: str, hint: str) -> None:
        """Remember a problem under the id ``pushserver.<problem>``. A name stands for one thing to do.

        ``message`` begins with the variable that is wrong.
        """
        self.problems.append(Error(message, hint=hint, id=f"pushserver.{problem}"))

    def text(self, name: str) -> str:
        """Return the text without surrounding spaces. An empty one counts as unset.

        Raises WrongError for a value that another program should have changed: env files of Docker and systemd keep
        what a shell replaces.
        """
        text = self.values.get(name, "").strip()
        if text[:1] in {'"', "'"} and text[1:].endswith(text[0]):
            raise WrongError("quoted_value", "has quotes around its value", "Remove them.", name)
        if _UNREPLACED.search(text):
            hint = "Write the value itself: what starts the server does not replace names of variables."
            raise WrongError("unreplaced_variable", "has the name of a variable in its value", hint, name)
        return text

    def secret(self, name: str) -> str:
        """Return the content of the file that ``NAME_FILE`` names, unless that is empty, else the text of ``NAME``.

        Raises WrongError for a file that cannot be read.
        """
        if not (path := self.text(f"{name}_FILE")):
            return self.text(name)
        try:
            return Path(path).read_text(encoding="utf-8").strip() or self.text(name)
        except (OSError, UnicodeDecodeError):
            words, hint = "names a file that cannot be read", "Check the path and its permissions."
            raise WrongError("unreadable_secret_file", words, hint, f"{name}_FILE") from None

    def is_set(self, name: str) -> bool:
        """Return whether the variable has a value, or a file with one."""
        try:
            return bool(self.secret(name))
        except WrongError:
            return True

    def _missed(self, kind: Kind[T], used_by: Collection[str]) -> str:
        """Return no text. Raises WrongError where a process that uses it is without a secret."""
        if self.uses(*used_by):
            raise WrongError(kind.problem, *PROBLEMS[kind.problem])
        return ""

    def uses(self, *processes: str) -> bool:
        """Return whether this process is one of these."""
        return not {*processes}.isdisjoint(self.processes)


class GeneratedSecrets:
    """Makes up secrets for development and keeps each in a file of mode 600, so that a restart finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> str:
        path = self.folder / name.lower()
        with usable(self.folder.parent):
            if not path.exists():
                self._write_once(path, GENERATORS[name]())
            return path.read_text(encoding="ascii").strip()

    def _write_once(self, path: Path, value: str) -> None:
        """Write the secret unless another process has done so.

        Several processes may start at once: the first to link its file wins, and the others read it.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(value, encoding="ascii")
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()


GENERATORS: dict[str, Callable[[], str]] = {
    "SECRET_KEY": lambda: secrets.token_urlsafe(50),
    "SERVER_PRIVATE_KEY": lambda: (1 + secrets.randbelow(SECP256K1_ORDER - 1)).to_bytes(32).hex(),
    "FIELD_ENCRYPTION_KEYS": lambda: base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode(),
}
