"""First starts of `make up` where people try it: in root's closed home, in folders with awkward names, in a moved
checkout, as another user, and in a root file system of its own without user namespaces. Each start is ready, stops at
Ctrl-C, and finds its data again.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from embedded.supervisor.processes import PROJECT
from tests.folders import open_folder
from tests.rig.server import CONFIGURED

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has a closed home and runs programs as other accounts"),
]
NOBODY = 65534
START_SECONDS = 240
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
    return copy_of_this(home / "push")


def copy_of_this(folder: Path) -> Path:
    """Copy the files of this checkout that git tracks, and the installed packages."""
    copy_tracked(folder)
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


class Start:
    """`make up`, begun in a terminal of its own."""

    def __init__(self, folder: Path, *before: str, environment: Mapping[str, str] | None = None, user: int = 0) -> None:
        unset = {*CONFIGURED, "DATA_DIR", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTEST_XDIST_WORKER"}
        clean = {name: value for name, value in os.environ.items() if name not in unset}
        self.log = folder.with_name(f"{folder.name}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*before, "make", "up"],
                cwd=folder,
                env={**clean, "PORT": str(free_port()), **(environment or {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[],
            )

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def is_ready(self) -> str:
        """Return the server's key once it is ready: it is made at the first start, and is part of the data."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"Server public key: (\w+)", self.output())):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.2)
        return found[1]

    def ends(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(timeout=60)
        assert "Stopped." in self.output()
        assert "Traceback" not in self.output()


def key_of(folder: Path, *before: str, environment: Mapping[str, str] | None = None, user: int = 0) -> str:
    start = Start(folder, *before, environment=environment, user=user)
    try:
        return start.is_ready()
    finally:
        start.ends()


def admins_made(log: str) -> int:
    return log.count("(shown only now")


def test_root_starts_in_its_closed_home_and_again_after_the_checkout_was_moved(home: Path, checkout: Path) -> None:
    first = Start(checkout, environment={"HOME": str(home)})
    key = first.is_ready()
    first.ends()
    assert admins_made(first.output()) == 1
    moved = home / "Träger & 'Söhne' 100 %"
    checkout.rename(moved)
    try:
        # A second start works without a network: the only interface is loopback.
        again = Start(
            moved, sys.executable, str(PROJECT / "tests" / "interop" / "offline.py"), environment={"LANG": "C"}
        )
        assert again.is_ready() == key
        again.ends()
        assert admins_made(again.output()) == 0  # the users of the first start are there
        celery = subprocess.run([moved / ".venv" / "bin" / "celery", "--version"], check=False, capture_output=True)
        assert celery.returncode == 0
    finally:
        moved.rename(checkout)
    assert home.stat().st_mode & 0o777 == 0o700


def test_two_checkouts_run_side_by_side(home: Path, checkout: Path) -> None:
    other = copy_of_this(home / "other")
    starts = [Start(checkout), Start(other)]
    try:
        keys = [start.is_ready() for start in starts]
    finally:
        for start in starts:
            start.ends()
    assert len(set(keys)) == len(keys)


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


def test_an_ordinary_user_starts_and_root_leaves_the_data_alone(
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
        key = key_of(folder / "push", environment=of_user, user=NOBODY)
        refused = Start(folder / "push", environment={"PATH": system_path})
        assert refused.process.wait(timeout=START_SECONDS) != 0
        assert f"{folder}/push/.data holds data of nobody: start as nobody" in refused.output()
        assert key_of(folder / "push", environment=of_user, user=NOBODY) == key
