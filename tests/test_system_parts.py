"""Script `requirements/system.sh`, which lists the packages that a machine lacks, by the names of its distribution."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from embedded.supervisor.processes import PROJECT

SYSTEM = PROJECT / "requirements" / "system.sh"
# All but ejabberd, which is found in /usr/sbin independently of PATH.
PARTS = ("buildah", "chromium", "compiler", "go", "java", "maven", "prosody", "systemd")
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
Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Folder with all programs of a machine whose user is not root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    add(folder, "id", "echo 1000")
    return folder


def add(folder: Path, name: str, script: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture
def ask(programs: Path, tmp_path: Path) -> Ask:
    def ask(*arguments: str, release: str = "ID=debian") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "os-release"
        file.write_text(f'NAME="A Linux"\n{release}\nVERSION_ID="1"\n', encoding="utf-8")
        environment = {"PATH": str(programs), "SYSTEMD_OS_RELEASE": str(file)}
        return subprocess.run([SYSTEM, *arguments], env=environment, capture_output=True, text=True, check=False)

    return ask


@pytest.mark.parametrize(("release", "command"), DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_names_the_packages_of_the_distribution(ask: Ask, release: str, command: str) -> None:
    ended = ask(*PARTS, release=release)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout, len(lines)) == (0, "", len(PARTS))
    without_package = [line for line in lines if command not in line]
    assert len(without_package) == (1 if "Ubuntu" in command else 0)
    assert all("a container of Debian" in line for line in without_package)


def test_names_a_package_only_where_it_is_of_use(ask: Ask, programs: Path) -> None:
    """Debian 12 has a Go that is too old, and Debian 13 has no Java 17."""
    add(programs, "apt-cache", "case $2 in *-17-*) exit 100;; golang-go) echo Version: 2:1.19~1;; esac")
    go, java = ask("go", "java").stderr.splitlines()
    assert "(from go.dev/dl, as golang-go is too old here)" in go
    assert "apt-get install openjdk-21-jre-headless)" in java


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_chromium_is_recognised_by_any_name(ask: Ask, programs: Path, name: str) -> None:
    program = add(programs, name, REAL)
    assert ask("--chromium").stdout == f"{program}\n"
    assert ask("chromium").stderr == ""


def test_a_snap_is_no_chromium(ask: Ask, programs: Path, tmp_path: Path) -> None:
    """Ubuntu's package `chromium-browser` is a script, with and without the snap. The snap itself links to `snap`."""
    add(programs, "chromium-browser", SNAP)
    (programs / "chromium").symlink_to(add(tmp_path, "snap", REAL))
    add(programs, "google-chrome", 'echo "Chromium 156.0.8078.79 snap"')
    assert (ask("--chromium").returncode, ask("--chromium").stdout) == (1, "")
    assert "tests cannot control a snap): no browser tests." in ask("chromium", release="ID=ubuntu").stderr


def test_an_unknown_part_is_a_mistake(ask: Ask) -> None:
    ended = ask("coffee")
    assert (ended.returncode, ended.stderr) == (2, "unknown system part: coffee\n")
