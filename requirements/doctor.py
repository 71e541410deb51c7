"""Check of this machine: one line for each part that the server needs. It needs no packages and installs nothing.

    make doctor        or: python3 requirements/doctor.py

`ok` means fine, `--` optional, and `!!` that the server cannot run; then the exit code is 1. The script also runs on
old versions of Python, down to 3.6.
"""

import email.utils
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
# If the server runs as systemd units: the folder of its settings, and the script that runs manage.py with them.
UNITS = Path("/etc/push-server")
MANAGE_AS_UNIT = ROOT / "deploy" / "systemd" / "push-server-manage"
OK, OPTIONAL, BAD = "ok", "--", "!!"
Finding = Tuple[str, str]
TIMEOUT_SECONDS = 5
MAX_PORT = 65_535
# Differences of the clock for a hint and for a fault. Nodes refuse messages that are dated 20 s off.
CLOCK_SKEW_SECONDS, CLOCK_WRONG_SECONDS = 5, 20


def machine(*parts: str) -> List[Finding]:
    """Return the findings of machine.sh about parts of this machine. With a bad one, `make run` does not start."""
    output = _output_of(str(HERE / "machine.sh"), *parts)
    return [(line[:2], line[3:]) for line in output.splitlines()]


def packages() -> Finding:
    """Check whether the Python packages are installed, or can be fetched."""
    if PYTHON.exists():
        return OK, "Python packages are installed"
    if not _index():
        return OPTIONAL, "Python packages: their index is unknown until pip is installed"
    if _index_date() is None:
        return BAD, "No answer from the package index {}: connect to a network, or set PIP_INDEX_URL.".format(_index())
    return OK, "Python packages can be fetched from " + _index()


def account() -> Finding:
    """Describe the effect of the account: root or another one."""
    if os.geteuid() != 0:
        return OK, "not root: everything runs as you; missing system packages are named, but not installed"
    name = "nobody" if shutil.which("useradd") is None else "an account of its own"
    folder = "/var/cache" if os.access("/var/cache", os.W_OK) else tempfile.gettempdir()
    return OK, "root: PostgreSQL runs as {}, with a copy of its programs in {}/pushserver".format(name, folder)


def data() -> Finding:
    """Check whether the data belong to this account."""
    if _has_units():
        return OK, "systemd runs the server: its settings and secrets are in {}".format(UNITS)
    lock = _data_dir() / "up.lock"
    if not lock.exists():
        return OK, "no data yet in {}".format(_data_dir())
    if lock.stat().st_uid != os.geteuid():
        words = "{} has data of another account: use that account, or set DATA_DIR to another folder."
        return BAD, words.format(_data_dir())
    return OK, "the data in {} are yours".format(_data_dir())


def port() -> Finding:
    """Check whether the web server can listen at HOST and PORT."""
    host, number = os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8000"
    if not number.isdigit() or not 0 < int(number) <= MAX_PORT:
        return BAD, "PORT is not a port: set it to a number up to 65535."
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(number), type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except PermissionError:
        return BAD, "port {} is for root only: set PORT to 1024 or above.".format(number)
    except OSError:
        if _has_units() or (_data_dir() / "embedded.json").exists():
            return OK, "port {} on {} is in use: the server is probably running".format(number, host)
        return BAD, "port {} on {} is in use: set PORT to another one.".format(number, host)
    return OK, "port {} on {} is free".format(number, host)


def clock() -> Finding:
    """Compare the clock with that of the package index, because nodes refuse messages that are dated 20 s off."""
    theirs = _index_date()
    if theirs is None:
        return OPTIONAL, "clock: not checked, because the package index does not answer"
    off = abs(time.time() - theirs)
    if off >= CLOCK_WRONG_SECONDS:
        return BAD, "the clock is {:.0f} s off: repair NTP, or nodes refuse our messages.".format(off)
    if off >= CLOCK_SKEW_SECONDS:
        return OPTIONAL, "the clock is {:.0f} s off: repair NTP".format(off)
    return OK, "the clock is right"


def java() -> Finding:
    """Look for Java, which the reports need."""
    return _program("Java 17 or 21", ["java", "-version"], r'version "(17|21)[."]', "no Spark reports")


def chromium() -> Finding:
    """Look for a Chromium that tests can control, which only tests need."""
    if _output_of(str(HERE / "system.sh"), "--chromium"):
        return OK, "Chromium"
    return OPTIONAL, "no Chromium other than a snap: no browser tests (as root, `make test` installs it)"


def go() -> Finding:
    """Look for Go, which only the tests against real peers need."""
    return _program("Go 1.21 or newer", ["go", "version"], r"go1\.(2[1-9]|[3-9]\d)", "no tests against real peers")


def _program(name: str, command: Sequence[str], pattern: str, without: str) -> Finding:
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return OPTIONAL, "no {}: {}".format(name, without)
    if not re.search(pattern, ended.stdout.decode(errors="replace")):
        return OPTIONAL, "no {}, but another version: {}".format(name, without)
    return OK, name


def settings() -> Iterator[Finding]:
    """Yield a line for each wrong setting, from the server's own checks, and a line about the database."""
    if not PYTHON.exists():
        yield OPTIONAL, "settings: not checked until the packages are installed (make install)"
        return
    if _has_units() and os.geteuid() != 0:
        yield OPTIONAL, "settings: not checked, because only root can read {}".format(UNITS)
        return
    if not _has_units() and not os.environ.get("DATABASE_URL") and not _data_dir().is_dir():
        yield OPTIONAL, "settings: none yet; `make run` creates the ones that it needs"
        return
    answer = _manage("check")
    problems = list(_problems(answer))
    if "System check identified" not in answer:
        problems.append("manage.py check failed: " + (answer.strip() or "no output").splitlines()[-1])
    for problem in problems:
        yield BAD, problem
    if not problems:
        yield OK, "settings: manage.py check finds no fault"
        lines = _manage("version").splitlines()
        version = [line for line in lines if line.startswith("database ")]
        yield from _postgres([line for line in lines if line.startswith("PostgreSQL ")])
        is_good = version == ["database up to date"]
        is_embedded = not _has_units() and not os.environ.get("DATABASE_URL")
        without = " (the embedded one runs only with the server)" if is_embedded else ""
        yield (
            OK if is_good else OPTIONAL,
            version[0] + ("" if is_good else without) if version else "database: its state is unknown",
        )


def _postgres(lines: Sequence[str]) -> Iterator[Finding]:
    """Yield a line about the version of PostgreSQL, if one was reached."""
    for line in lines:
        yield (BAD if "is too old" in line else OPTIONAL if "is not tested" in line else OK), line


def _problems(text: str) -> Iterator[str]:
    """Yield one line for each problem, with its message and hint."""
    for identity, message, hint in re.findall(r"^\S+: \((\S+)\) (.+)(?:\n\s+HINT: (.+))?", text, re.MULTILINE):
        yield "{}: {} {}".format(identity, message, hint).strip()


def _has_units() -> bool:
    return UNITS.is_dir() and (os.geteuid() != 0 or (UNITS / "environment").exists())


def _manage(command: str) -> str:
    manage = [str(MANAGE_AS_UNIT)] if _has_units() else [str(PYTHON), str(ROOT / "manage.py")]
    output = subprocess.run(
        [*manage, command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return output.stdout.decode(errors="replace")


def _data_dir() -> Path:
    return ROOT / (os.environ.get("DATA_DIR") or ".data")


def _index() -> str:
    """Return the URL of the package index, without a password, or an empty text."""
    parts = urllib.parse.urlsplit(os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or _pip_index())
    if not parts.hostname:
        return ""
    return "{}://{}{}{}".format(
        parts.scheme, parts.hostname, ":{}".format(parts.port) if parts.port else "", parts.path
    )


def _pip_index() -> str:
    """Return the index of pip's configuration, or else pip's default. It is empty without pip."""
    settings = _output_of(sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list")
    configured = re.search(r"^global\.index-url='(.*)'$", settings, re.MULTILINE)
    built_in = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    return configured.group(1) if configured else _output_of(sys.executable, "-c", built_in)


def _output_of(*command: str) -> str:
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return output.stdout.decode().strip()


def _index_date() -> Optional[float]:
    """Return the clock of the package index in Unix time, or None without an answer."""
    try:
        question = urllib.request.Request(_index(), method="HEAD")  # noqa: S310 - the operator's own address
        with urllib.request.urlopen(question, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return None
    date = email.utils.parsedate_to_datetime(headers["Date"]) if headers["Date"] else None
    return date.timestamp() if date else time.time()


def main() -> int:
    """Print the findings about all parts, and return the exit code."""
    found = machine("system", "python", "venv", "folder", "disk", "memory")
    found += [part() for part in (account, data, packages, port, clock, java, chromium, go)] + list(settings())
    for state, words in found:
        print(state, words)
    return int(any(state == BAD for state, _ in found))


if __name__ == "__main__":
    sys.exit(main())
