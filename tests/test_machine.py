"""Machines that lack something: `make run` prints one clear line, `make doctor` a line for each part, and
`requirements/system.sh` the packages to install, by the names of the distribution.
"""

import ast
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import time
from typing import Any

import pytest

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from tests.rig.folders import open_folder
from tests.rig.peers import serve

NOBODY = 65534
Run = Callable[..., subprocess.CompletedProcess[str]]
Doctor = Callable[..., tuple[bool, list[str]]]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A bare checkout with the files that `make run` and `make doctor` read before anything is installed."""
    folder = tmp_path / "checkout"
    shutil.copytree(PROJECT / "requirements", folder / "requirements", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "Makefile", folder)
    return folder


def ended(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.fixture
def make(checkout: Path, tmp_path: Path) -> Run:
    unset = {"DATABASE_URL", "DATA_DIR", "PORT", "HOST", "UV_DEFAULT_INDEX", "PYTHONPATH"}
    unset |= {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # set by the `make test` that runs this
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    python = Path(sys.base_prefix) / "bin"  # a virtual environment's Python does not always have ensurepip
    clean |= {"HOME": str(tmp_path), "PATH": f"{python}:{clean['PATH']}"}
    program = str(shutil.which("make"))
    return lambda target, **given: ended([program, "--silent", target], env=clean | given, cwd=checkout)


def shown(failed: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the error lines of a failed run, without the lines that make itself adds."""
    assert failed.returncode != 0
    return [line for line in failed.stderr.splitlines() if not line.startswith("make: ***")]


def fake(folder: Path, name: str, script: str) -> str:
    """Put a program in front of all others. Return the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


# Unsuited machines: fake programs that describe each, and the beginning of the line that names the machine.
OTHER_MACHINES = {
    "macOS": ({"uname": "echo Darwin"}, "macOS is not supported: use a container of Debian ("),
    "Windows": ({"uname": "echo MINGW64_NT-10.0"}, "Windows is not supported: use Debian in WSL 2, or a container of"),
    "another Unix": ({"uname": "echo FreeBSD"}, "FreeBSD is not supported: use a container of Debian ("),
    "another processor": (
        {"uname": "if [ $1 = -m ]; then echo riscv64; else echo Linux; fi"},
        "riscv64 processors are not supported: use a machine with x86-64 or ARM64.",
    ),
    "Alpine": (
        {"getconf": "exit 1", "ldd": "echo 'musl libc (x86_64)' >&2; exit 1"},
        "This Linux has no glibc (Alpine's musl is not supported): use a container of Debian (",
    ),
    "an old glibc": (
        {"getconf": "exit 1", "ldd": "echo 'ldd (GNU libc) 2.17'"},
        "glibc 2.17 is too old, 2.28 or newer is needed: use a newer Linux, or a container of Debian (",
    ),
    "a Python that crashes": (
        {"python3": "exit 127"},
        "python3 is a program that does not start, but CPython 3.11, 3.12 or 3.13 is needed: ",
    ),
    "a full disk": (
        {"df": "printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\\n/dev/sda 9 9 734003 99%% /\\n'"},
        "0.6 GiB disk free for packages and data: at least 1 are needed.",
    ),
}


@pytest.mark.parametrize(("programs", "beginning"), OTHER_MACHINES.values(), ids=OTHER_MACHINES)
def test_run_on_an_unsuited_machine_prints_one_line_and_writes_nothing(
    make: Run, checkout: Path, tmp_path: Path, programs: dict[str, str], beginning: str
) -> None:
    before = sorted(checkout.rglob("*"))
    path = fake_python_of_each_version(tmp_path / "bin", "exit 1")
    for name, script in programs.items():
        fake(tmp_path / "bin", name, script)
    [line] = shown(make("run", PATH=path))
    assert line.startswith(beginning)
    assert sorted(checkout.rglob("*")) == before


def fake_python_of_each_version(folder: Path, script: str) -> str:
    for name in ("python3.11", "python3.12"):
        fake(folder, name, script)
    return fake(folder, "python3.13", script)


# Pythons without wheels, and the statements that make this interpreter look like each.
UNSUITED_PYTHONS = {
    "PyPy": "platform.python_implementation = lambda: 'PyPy'",
    "free-threaded Python": "sysconfig.get_config_var = lambda _: 1",
    "32-bit Python": "sys.maxsize = 2**31 - 1",
    "Python 3.14.0": "sys.version_info, platform.python_version = (3, 14, 0, 'final', 0), lambda: '3.14.0'",
    "Python 3.10.2": "sys.version_info, platform.python_version = (3, 10, 2, 'final', 0), lambda: '3.10.2'",
}


@pytest.mark.parametrize(("name", "trait"), UNSUITED_PYTHONS.items(), ids=UNSUITED_PYTHONS)
def test_a_python_without_wheels_is_named_or_passed_over_for_one_that_has_them(
    tmp_path: Path, name: str, trait: str
) -> None:
    program = f'exec {sys.executable} -c "import platform, sys, sysconfig; {trait}; exec(sys.argv[1])" "$2"'
    path = fake_python_of_each_version(tmp_path / "bin", program)
    fake(tmp_path / "bin", "python3", program)
    command = [str(PROJECT / "requirements" / "machine.sh"), "python"]
    assert ended(command, env={"PATH": path}).stdout.startswith(f"!! python3 is {name}")
    fake(tmp_path / "bin", "python3.12", f'exec {sys.executable} "$@"')
    assert ended(command, env={"PATH": path}).stdout == f"ok Python {platform.python_version()} (python3.12)\n"


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    script = (PROJECT / "requirements" / "machine.sh").read_text(encoding="utf-8")
    oldest, newest = map(int, re.findall(r"OLDEST=(\d+) NEWEST=(\d+)", script)[0])
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">=3.{oldest},<3.{newest + 1}"
    assert f"CPython 3.{oldest} to 3.{newest}" in (PROJECT / "README.md").read_text(encoding="utf-8")


def test_every_python_and_processor_gets_the_same_versions_of_packages() -> None:
    """Atheris alone has no wheel for ARM64. `make check` compares the index for all packages."""
    lock = (PROJECT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    assert len(names) == len(set(names)) > 100
    assert set(re.findall(r"^([\w-]+)==.*platform_machine", lock, re.MULTILINE)) == {"atheris"}


def test_run_without_a_network_prints_one_line(make: Run, checkout: Path) -> None:
    index = f"http://somebody:5ecret@127.0.0.1:{free_port()}/simple"
    [line] = shown(make("run", PIP_INDEX_URL=index))
    assert line.startswith("uv cannot be fetched from http://127.0.0.1:")
    assert "connect to a network" in line
    assert "5ecret" not in line + (checkout / ".uv" / "log").read_text()


def test_run_without_venv_and_without_root_names_the_package(make: Run, tmp_path: Path) -> None:
    """Debian's python3 has no python3-venv here, and nothing can be installed without root."""
    lacks = 'case "$*" in *ensurepip*) exit 1;; esac; exec ' + sys.executable + ' "$@"'
    path = fake(tmp_path / "bin", "python3", lacks)
    fake(tmp_path / "bin", "id", "echo 1000")
    [line] = shown(make("run", PATH=path))
    assert line == "python3 lacks its venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)."


def test_run_in_a_checkout_of_another_account_prints_one_line(require_or_skip: Callable[[bool, str], None]) -> None:
    require_or_skip(os.geteuid() == 0, "only root can run a program as another account")
    with open_folder() as folder:
        shutil.copytree(PROJECT / "requirements", folder / "requirements")
        folder.chmod(0o755)
        command = ["sh", str(folder / "requirements" / "install.sh"), "run"]
        path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/"}
        [line] = shown(ended(command, user=NOBODY, env=path, cwd="/"))
    assert line.startswith(f"{folder} cannot be written by nobody: ")


class Index(BaseHTTPRequestHandler):
    off_seconds = 0.0

    def do_HEAD(self) -> None:
        self.send_response_only(200)
        self.send_header("Date", formatdate(time() + self.off_seconds, usegmt=True))
        self.end_headers()


@pytest.fixture
def index() -> Iterator[str]:
    """A package index that holds no packages and sends a Date header."""
    with serve(Index) as server:
        yield f"http://127.0.0.1:{server.server_port}/simple"


@pytest.fixture
def doctor(make: Run, index: str) -> Doctor:
    def run(**environment: str) -> tuple[bool, list[str]]:
        done = make("doctor", **{"PIP_INDEX_URL": index, "PORT": str(free_port()), **environment})
        assert "Traceback" not in done.stderr
        return done.returncode != 0, done.stdout.splitlines()

    return run


def test_the_doctor_finds_no_fault_on_a_bare_machine(doctor: Doctor, index: str) -> None:
    is_bad, lines = doctor()
    assert not is_bad, lines
    assert {line[:3] for line in lines} <= {"ok ", "-- "}
    assert f"ok Python packages can be fetched from {index}" in lines
    assert "ok the clock is right" in lines
    assert "-- settings: not checked until the packages are installed (make install)" in lines
    assert len(lines) == 15


def test_the_doctor_reads_the_configuration_of_pip_and_does_without_pip(
    doctor: Doctor, index: str, tmp_path: Path
) -> None:
    """Debian's python3 has no pip before python3-venv is installed."""
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index}\n", encoding="utf-8")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "pip.py").write_text("raise ImportError", encoding="ascii")
    _, lines = doctor(PIP_INDEX_URL="", PIP_CONFIG_FILE=str(tmp_path / "pip.conf"))
    is_bad, without = doctor(PIP_INDEX_URL="", PYTHONPATH=str(tmp_path / "none"))
    assert f"ok Python packages can be fetched from {index}" in lines
    assert not is_bad, without
    assert "-- Python packages: their index is unknown until pip is installed" in without
    assert "-- clock: not checked, because the package index does not answer" in without


@pytest.mark.parametrize(("off", "state"), [(-3600, "!!"), (3600, "!!"), (8, "--")])
def test_the_doctor_compares_the_clock(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, off: int, state: str) -> None:
    monkeypatch.setattr(Index, "off_seconds", off)
    is_bad, lines = doctor()
    [line] = [line for line in lines if "clock" in line]
    assert (line[:2], is_bad) == (state, state == "!!")


def test_the_doctor_names_a_port_in_use_an_unreachable_package_index_and_a_data_folder_that_cannot_be_made(
    doctor: Doctor,
) -> None:
    index = f"http://a:5ecret@127.0.0.1:{free_port()}/simple"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        is_bad, lines = doctor(PORT=str(number), PIP_INDEX_URL=index, DATA_DIR="/dev/null/data")
    assert is_bad
    folder, packages, port = (line for line in lines if line.startswith("!!"))
    assert folder == "!! /dev/null cannot be written: set DATA_DIR to a folder that you can write."
    assert packages.startswith("!! No answer from the package index http://127.0.0.1:")
    assert port == f"!! port {number} on 127.0.0.1 is in use: set PORT to another one."
    assert "5ecret" not in "".join(lines)


def test_the_doctor_names_data_of_another_account(
    doctor: Doctor, tmp_path: Path, require_or_skip: Callable[[bool, str], None]
) -> None:
    require_or_skip(os.geteuid() == 0, "not root: files cannot be given to another account")
    (tmp_path / "up.lock").touch()
    os.chown(tmp_path / "up.lock", NOBODY, NOBODY)
    is_bad, lines = doctor(DATA_DIR=str(tmp_path))
    assert is_bad
    assert f"!! {tmp_path} has data of another account: use that account, or set DATA_DIR to another folder." in lines


def test_an_old_python_can_parse_the_doctor() -> None:
    """The doctor must run on a Python that is too old in order to report it, so its syntax is that of Python 3.6."""
    ast.parse((PROJECT / "requirements" / "doctor.py").read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_doctor_prints_failed_checks_of_the_settings(tmp_path: Path) -> None:
    """Runs in this checkout, where the packages are installed."""
    wrong = {"WAKU_NODES": "ftp://node", "PIP_INDEX_URL": "http://127.0.0.1:1", "DATA_DIR": str(tmp_path)}
    done = ended([sys.executable, str(PROJECT / "requirements" / "doctor.py")], env=os.environ | wrong)
    [line] = [line for line in done.stdout.splitlines() if "WAKU_NODES" in line]
    assert line.startswith("!! pushserver.bad_urls: ")
    assert done.returncode == 1


# System parts ---------------------------------------------------------------------------------------------------------
# All but ejabberd, which is found in /usr/sbin independently of PATH.
PARTS = ("buildah", "chromium", "compiler", "go", "java", "maven", "prometheus", "prosody", "systemd")
TOOLS = ("cat", "grep", "readlink", "sed", "sh", "timeout", "tr")
DISTRIBUTIONS = {
    "debian": ("ID=debian", "on Debian: apt-get install "),
    "ubuntu": ("ID=ubuntu\nID_LIKE=debian", "on Ubuntu: apt-get install "),
    "fedora": ("ID=fedora", "on Fedora: dnf install "),
    "arch": ("ID=arch", "on Arch: pacman -S "),
    "mint": ('ID=linuxmint\nID_LIKE="ubuntu debian"', "on Ubuntu: apt-get install "),
    "rocky": ('ID="rocky"\nID_LIKE="rhel centos fedora"', "on Fedora: dnf install "),
    "unknown": ("ID=nixos", "on Debian: apt-get install "),
}
SNAP = """
if ! [ -x /snap/bin/chromium ]; then
    echo "Command '$0' requires the chromium snap to be installed." >&2
    exit 1
fi
exec /snap/bin/chromium "$@"
"""
REAL = 'echo "Chromium 156.0.8078.79 built on Debian GNU/Linux 12 (bookworm)"'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Folder with all programs of a machine whose user is not root."""
    fake(folder := tmp_path / "bin", "id", "echo 1000")
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return folder


@pytest.fixture
def ask(programs: Path, tmp_path: Path) -> Run:
    def ask(*arguments: str, release: str = "ID=debian") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "os-release"
        file.write_text(f'NAME="A Linux"\n{release}\nVERSION_ID="1"\n', encoding="utf-8")
        environment = {"PATH": str(programs), "SYSTEMD_OS_RELEASE": str(file)}
        return ended([str(PROJECT / "requirements" / "system.sh"), *arguments], env=environment)

    return ask


@pytest.mark.parametrize(("release", "command"), DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_names_the_packages_of_the_distribution(ask: Run, release: str, command: str) -> None:
    named = ask(*PARTS, release=release)
    lines = named.stderr.splitlines()
    assert (named.returncode, named.stdout, len(lines)) == (0, "", len(PARTS))
    without_package = [line for line in lines if command not in line]
    assert len(without_package) == (1 if "Ubuntu" in command else 0)
    assert all("a container of Debian" in line for line in without_package)


def test_names_a_package_only_where_it_is_of_use(ask: Run, programs: Path) -> None:
    """Debian 12 has a Go that is too old, and Debian 13 has no Java 17."""
    fake(programs, "apt-cache", "case $2 in *-17-*) exit 100;; golang-go) echo Version: 2:1.19~1;; esac")
    go, java = ask("go", "java").stderr.splitlines()
    assert "(from go.dev/dl, as golang-go is too old here)" in go
    assert "apt-get install openjdk-21-jre-headless)" in java


def test_a_chromium_is_recognised_by_any_name_and_a_snap_is_none(ask: Run, programs: Path, tmp_path: Path) -> None:
    """Ubuntu's package `chromium-browser` is a script, with and without the snap. The snap itself links to `snap`."""
    fake(programs, "chromium-browser", SNAP)
    fake(tmp_path, "snap", REAL)
    (programs / "chromium").symlink_to(tmp_path / "snap")
    fake(programs, "google-chrome", 'echo "Chromium 156.0.8078.79 snap"')
    assert (ask("--chromium").returncode, ask("--chromium").stdout) == (1, "")
    assert "tests cannot control a snap): no browser tests." in ask("chromium", release="ID=ubuntu").stderr
    (programs / "chromium").unlink()
    for name in ("google-chrome", "chromium-browser", "chromium"):
        fake(programs, name, REAL)
        assert ask("--chromium").stdout == f"{programs / name}\n"
        assert ask("chromium").stderr == ""
