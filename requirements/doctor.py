"""Say what this machine lacks for the server, one line each. Needs nothing installed, and runs on an old Python, too.

    make doctor        or: python3 requirements/doctor.py

`ok` is fine, `--` can be done without, `!!` keeps the server from running, and makes the exit code 1. It installs
nothing.
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
from typing import Iterator, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
GIB = 2**30
OK, OPTIONAL, BAD = "ok", "--", "!!"
Finding = Tuple[str, str]
PATIENCE_SECONDS = 5
MAX_PORT = 65_535
NEEDED = (3, 11)
# What this process may be off by before it matters: nodes refuse messages at 20 s.
CLOCK_DOUBT_SECONDS, CLOCK_WRONG_SECONDS = 5, 20


def python() -> Finding:
    """Say whether this Python is new enough, and can make environments."""
    found = "Python " + ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < NEEDED:
        return BAD, found + " is too old: put python3 3.11 or newer first in PATH."
    if PYTHON.exists():
        return OK, found
    try:
        import ensurepip  # noqa: F401, PLC0415 - Debian keeps it in a package of its own
        import venv  # noqa: F401, PLC0415
    except ImportError:
        return BAD, found + " lacks its venv module (on Debian and Ubuntu: apt-get install python3-venv)."
    return OK, found


def packages() -> Finding:
    """Say whether the packages are installed, or can be fetched."""
    if PYTHON.exists():
        return OK, "Python packages are installed"
    if _index_date() is None:
        return BAD, "No answer from the package index {}: connect to a network, or set PIP_INDEX_URL.".format(_index())
    return OK, "Python packages can be fetched from " + _index()


def account() -> Finding:
    """Say what is different without root."""
    if os.geteuid() != 0:
        return OK, "not root: all runs as you; system packages are named, and not installed"
    name = "nobody" if shutil.which("useradd") is None else "an account of its own"
    place = "/var/cache" if os.access("/var/cache", os.W_OK) else tempfile.gettempdir()
    return OK, "root: PostgreSQL runs as {}, with a copy of its programs in {}/pushserver".format(name, place)


def disk() -> Finding:
    """Say whether there is room for packages and data."""
    folder = _data_dir()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return BAD, f"{folder} cannot be written: set DATA_DIR to a folder of yours."
    lock = folder / "up.lock"
    if folder == _data_dir() and lock.exists() and lock.stat().st_uid != os.geteuid():
        return BAD, f"{folder} holds data of another account: start as that one, or set DATA_DIR to another folder."
    free = min(shutil.disk_usage(each).free for each in (ROOT, folder))
    return _enough("disk free for packages and data", free, bad=1 * GIB, doubt=5 * GIB)


def memory() -> Finding:
    """Say whether there is memory for all processes."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    if found is None:
        return OPTIONAL, "memory: not told"
    return _enough("memory available", int(found.group(1)) * 1024, bad=1 * GIB, doubt=3 * GIB)


def _enough(what: str, amount: int, *, bad: int, doubt: int) -> Finding:
    words = "{:.1f} GiB {}".format(amount / GIB, what)
    if amount < bad:
        return BAD, "{}: at least {:.0f} are needed.".format(words, bad / GIB)
    if amount < doubt:
        return OPTIONAL, "{}: enough to try it; reports and tests want {:.0f}".format(words, doubt / GIB)
    return OK, words


def port() -> Finding:
    """Say whether the web server can listen where it is told to."""
    host, number = os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8000"
    if not number.isdigit() or not 0 < int(number) <= MAX_PORT:
        return BAD, "PORT is no port: set a number up to 65535."
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(number), type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except PermissionError:
        return BAD, "port {} is for root only: set PORT to 1024 or above.".format(number)
    except OSError:
        if (_data_dir() / "embedded.json").exists():
            return OK, "port {} on {} is in use: the server runs already".format(number, host)
        return BAD, "port {} on {} is in use: set PORT to another one.".format(number, host)
    return OK, "port {} on {} is free".format(number, host)


def clock() -> Finding:
    """Compare the clock with that of the package index: nodes refuse messages of somebody who is 20 s off."""
    theirs = _index_date()
    if theirs is None:
        return OPTIONAL, "clock: nobody to compare it with"
    off = abs(time.time() - theirs)
    if off >= CLOCK_WRONG_SECONDS:
        return BAD, "the clock is {:.0f} s off: repair NTP, or nodes refuse our messages.".format(off)
    if off >= CLOCK_DOUBT_SECONDS:
        return OPTIONAL, "the clock is {:.0f} s off: repair NTP".format(off)
    return OK, "the clock is right"


def java() -> Finding:
    """Look for Java, which the reports need."""
    return _program("Java 17 or 21", ["java", "-version"], r'version "(17|21)[."]', "no Spark reports")


def chromium() -> Finding:
    """Look for Chromium, which only the tests need."""
    known = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    names = [name for name in known if shutil.which(name)]
    return (OK, "Chromium") if names else (OPTIONAL, "no Chromium: no browser tests (`make test` installs it as root)")


def go() -> Finding:
    """Look for Go, which only the tests against real peers need."""
    return _program("Go 1.21 or newer", ["go", "version"], r"go1\.(2[1-9]|[3-9]\d)", "no tests against real peers")


def _program(what: str, command: Sequence[str], pattern: str, without: str) -> Finding:
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return OPTIONAL, "no {}: {}".format(what, without)
    if not re.search(pattern, ended.stdout.decode(errors="replace")):
        return OPTIONAL, "no {}, but another one: {}".format(what, without)
    return OK, what


def settings() -> Iterator[Finding]:
    """Yield a line for each wrong setting, by the server's own checks, and one about the database."""
    if not PYTHON.exists():
        yield OPTIONAL, "settings: checked once the packages are installed (make install)"
        return
    if not os.environ.get("DATABASE_URL") and not _data_dir().is_dir():
        yield OPTIONAL, "settings: none yet; `make run` makes up what it needs"
        return
    problems = list(_problems(_manage("check")))
    for problem in problems:
        yield BAD, problem
    if not problems:
        yield OK, "settings: manage.py check has nothing to say"
        version = [line for line in _manage("version").splitlines() if line.startswith("database ")]
        is_good = version == ["database up to date"]
        without = " (an embedded one runs with the server only)" if not os.environ.get("DATABASE_URL") else ""
        yield (
            OK if is_good else OPTIONAL,
            version[0] + ("" if is_good else without) if version else "database: not told",
        )


def _problems(text: str) -> Iterator[str]:
    """Yield message and hint of each problem in one line."""
    for identity, message, hint in re.findall(r"^\S+: \((\S+)\) (.+)(?:\n\s+HINT: (.+))?", text, re.MULTILINE):
        yield "{}: {} {}".format(identity, message, hint).strip()


def _manage(command: str) -> str:
    told = subprocess.run(
        [str(PYTHON), str(ROOT / "manage.py"), command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return told.stdout.decode(errors="replace")


def _data_dir() -> Path:
    return ROOT / (os.environ.get("DATA_DIR") or ".data")


def _index() -> str:
    """Return where packages come from, without a password."""
    parts = urllib.parse.urlsplit(os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or _pip_index())
    host = parts.hostname or ""
    return "{}://{}{}{}".format(parts.scheme, host, ":{}".format(parts.port) if parts.port else "", parts.path)


def _pip_index() -> str:
    """Return the index that pip asks: that of its configuration, or else its own."""
    configured = _python("-m", "pip", "--disable-pip-version-check", "config", "get", "global.index-url")
    return configured or _python("-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)")


def _python(*arguments: str) -> str:
    told = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return told.stdout.decode().strip()


def _index_date() -> Optional[float]:
    """Return the clock of the package index in Unix time, None when it does not answer."""
    question = urllib.request.Request(_index(), method="HEAD")  # noqa: S310 - the operator's own address
    try:
        with urllib.request.urlopen(question, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return None
    date = email.utils.parsedate_to_datetime(headers["Date"]) if headers["Date"] else None
    return date.timestamp() if date else time.time()


def main() -> int:
    """Print a line for each part, and return the exit code."""
    parts = (python, account, packages, disk, memory, port, clock, java, chromium, go)
    found = [part() for part in parts] + list(settings())
    for state, words in found:
        print(state, words)
    return int(any(state == BAD for state, _ in found))


if __name__ == "__main__":
    sys.exit(main())
