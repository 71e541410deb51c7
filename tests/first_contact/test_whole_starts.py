"""First starts of `make up` where people try it: in root's closed home, in folders with awkward names, in a moved
checkout, as another user, and in a root file system of its own without user namespaces. Each start is ready, stops at
Ctrl-C, and finds its data again.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from tests.rig.folders import open_folder
from tests.rig.server import Up

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has a closed home and runs programs as other accounts"),
]
NOBODY = 65534
START_SECONDS = 240
UNSET = ["-uPYTHONPATH", "-uMAKEFLAGS", "-uMAKELEVEL", "-uMFLAGS", "-uPYTEST_XDIST_WORKER"]
# Capabilities that Docker leaves to root in a container. `chroot` alone would keep all of them.
OF_DOCKER = (
    "-all,+chown,+dac_override,+fsetid,+fowner,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,"
    "+kill,+audit_write"
)
CONTAINER = f"""
set -eu
mount --make-rprivate /
root=$1
shift
mount -t tmpfs -o mode=755 root "$root"
for part in usr bin sbin lib lib64 opt; do
    if [ -L "/$part" ]; then cp -P "/$part" "$root/$part"; continue; fi
    if [ -d "/$part" ]; then mkdir "$root/$part"; mount --rbind "/$part" "$root/$part"; fi
done
mkdir -m 700 "$root/root"
mkdir -p "$root/etc" "$root/proc" "$root/dev" "$root/tmp" "$root/var/cache" "$root/$PYTHON" "$root/root/push"
for file in hosts nsswitch.conf ld.so.cache; do cp "/etc/$file" "$root/etc"; done
printf 'root:x:0:0::/root:/bin/sh\\nnobody:x:65534:65534::/:/bin/sh\\n' >"$root/etc/passwd"
printf 'root:x:0:\\nnogroup:x:65534:\\n' >"$root/etc/group"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$PYTHON" "$root/$PYTHON"
mount --bind "$CHECKOUT" "$root/root/push"
exec chroot "$root" setpriv --bounding-set={OF_DOCKER} --no-new-privs env --chdir=/root/push "$@"
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A closed home in an open folder, as /root is in /."""
    with open_folder() as folder:
        (folder / "home").mkdir(mode=0o700)
        yield folder / "home"


@pytest.fixture(scope="module")
def checkout(home: Path) -> Path:
    """Copy the files of this checkout that git tracks, and the installed packages."""
    copy_tracked(folder := home / "push")
    for name in (".uv", ".venv"):
        shutil.copytree(PROJECT / name, folder / name, symlinks=True, copy_function=link_or_copy)
    return folder


def copy_tracked(folder: Path) -> None:
    known = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout  # noqa: S607
    for name in known.rstrip("\0").split("\0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, folder / name)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def start(folder: Path, *before: str, environment: Mapping[str, str] | None = None, user: int = 0) -> Up:
    """Begin `make up` in a terminal of its own."""
    account = {"user": user, "group": user, "extra_groups": []}
    log, command = folder.with_name(f"{folder.name}.log"), ["env", *UNSET, *before, "make", "up"]
    return Up(
        folder / ".data", free_port(), log,
        environment=environment, folder=folder, command=command, start_new_session=True, **account,
    )  # fmt: skip


def key_once_ready(up: Up) -> str:
    """Return the server's key once it is ready: it is made at the first start, and is part of the data."""
    return up.shows(r"Server public key: (\w+)", START_SECONDS)[1]


def press_ctrl_c(up: Up) -> None:
    os.killpg(up.process.pid, signal.SIGINT)
    up.process.wait(timeout=START_SECONDS)
    assert "Stopped." in up.output()
    assert "Traceback" not in up.output()


def key_of(folder: Path, *before: str, environment: Mapping[str, str] | None = None, user: int = 0) -> str:
    up = start(folder, *before, environment=environment, user=user)
    try:
        return key_once_ready(up)
    finally:
        press_ctrl_c(up)


def test_root_starts_in_its_closed_home_and_again_after_the_checkout_was_moved(home: Path, checkout: Path) -> None:
    first = start(checkout, environment={"HOME": str(home)})
    key = key_once_ready(first)
    press_ctrl_c(first)
    assert first.output().count("(shown only now") == 1
    moved = home / "Träger & 'Söhne' 100 %"
    checkout.rename(moved)
    try:
        # A second start works without a network: the only interface is loopback.
        again = start(
            moved, sys.executable, str(PROJECT / "tests" / "interop" / "offline.py"), environment={"LANG": "C"}
        )
        assert key_once_ready(again) == key
        press_ctrl_c(again)
        assert again.output().count("(shown only now") == 0  # the users of the first start are there
        celery = subprocess.run([moved / ".venv" / "bin" / "celery", "--version"], check=False, capture_output=True)
        assert celery.returncode == 0
    finally:
        moved.rename(checkout)
    assert home.stat().st_mode & 0o777 == 0o700


def test_root_starts_in_a_container_which_has_no_user_namespaces(
    checkout: Path, tmp_path: Path, require_or_skip: Callable[[bool, str], None]
) -> None:
    """The root file system is like Docker's: root's default capabilities, no account for servers and no /etc of
    useradd.

    The kernel refuses user namespaces after a chroot.
    """
    (tmp_path / "root").mkdir()
    surroundings = {"PYTHON": sys.base_prefix, "CHECKOUT": str(checkout), "HOME": "/root", "DATA_DIR": "data"}
    entering = ["unshare", "--mount", "sh", "-c", CONTAINER, "sh", str(tmp_path / "root")]
    environment = {**os.environ, **surroundings}
    refused = subprocess.run(
        [*entering, "unshare", "--user", "true"], check=False, env=environment, capture_output=True
    )
    require_or_skip(b"unshare failed" in refused.stderr, f"no such root folder can be made: {refused.stderr.decode()}")
    keys = {key_of(checkout, *entering, environment=surroundings) for _ in range(2)}
    assert len(keys) == 1


def test_an_ordinary_user_starts_and_finds_its_data_again(
    require_or_skip: Callable[[bool, str], None],
) -> None:
    system_path = "/usr/local/bin:/usr/bin:/bin"
    usable = subprocess.run(
        ["python3", "-c", "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"],  # noqa: S607
        env={"PATH": system_path}, user=NOBODY, cwd="/", check=False, capture_output=True,
    )  # fmt: skip
    require_or_skip(usable.returncode == 0, "no python3 >= 3.11 with venv that every account may run")
    with open_folder() as folder:
        copy_tracked(folder / "push")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        of_user = {"PATH": system_path, "HOME": str(folder), "USER": "nobody"}
        keys = {key_of(folder / "push", environment=of_user, user=NOBODY) for _ in range(2)}
        assert len(keys) == 1
