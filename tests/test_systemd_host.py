"""Host with the server's systemd units, as far as it goes without systemd. Checkout, settings and secrets are where the
units expect them, in a mount namespace of their own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedded.supervisor.processes import PROJECT
from pushserver.tests.test_deploy import GIVEN

# The account push-server is root under another name, because this machine's interpreter may be readable by root only.
HOST = """
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /opt && mkdir /opt/push-server && mount --bind "$CHECKOUT" /opt/push-server
mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/push-server
rm -rf "$FOLDER/etc" && cp -a /etc "$FOLDER/etc" && mount --bind "$FOLDER/etc" /etc
echo push-server:x:0:0::/var/lib/push-server:/bin/sh >>/etc/passwd
echo push-server:x:0: >>/etc/group
cp -r "$FOLDER/push-server" /etc/push-server
cd /opt/push-server
exec "$@"
"""
EXAMPLE = (PROJECT / "deploy/systemd/environment.example").read_text(encoding="utf-8")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def host(tmp_path: Path, require_or_skip: Callable[[bool, str], None]) -> Run:
    """Return ``host(settings, *command)``, which runs a command on the host. ``settings`` are lines of the environment
    file.
    """
    require_or_skip(os.geteuid() == 0, "only root makes mount namespaces")
    (tmp_path / "push-server" / "secrets").mkdir(parents=True)
    for name, value in GIVEN.items():
        (tmp_path / "push-server" / "secrets" / name).write_text(value + "\n", encoding="ascii")

    def run(settings: str, *command: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "push-server" / "environment").write_text(settings, encoding="utf-8")
        environment = {"PATH": os.environ["PATH"], "CHECKOUT": str(PROJECT), "FOLDER": str(tmp_path)}
        environment |= {"PIP_INDEX_URL": "http://127.0.0.1:1"}
        entering = ["unshare", "--mount", "sh", "-c", HOST, "sh", *command]
        return subprocess.run(entering, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


def test_the_doctor_reads_the_settings_and_secrets_of_the_units(host: Run) -> None:
    doctor = (sys.executable, "requirements/doctor.py")
    good = host(EXAMPLE, *doctor).stdout.splitlines()
    assert "ok systemd runs the server: its settings and secrets are in /etc/push-server" in good, good
    assert "ok settings: manage.py check finds no fault" in good
    bad = host(EXAMPLE.replace("WAKU_NODES=http:", "WAKU_NODES=ftp:"), *doctor)
    assert [line.split(": ")[1][:10] for line in bad.stdout.splitlines() if "bad_urls" in line] == ["WAKU_NODES"]
    assert bad.returncode == 1
    assert "!! manage.py check failed: " in host("NOT A VARIABLE=1\n", *doctor).stdout


def test_manage_reads_settings_as_systemd_does(tmp_path: Path, host: Run) -> None:
    settings = r"""
        ; a comment
        PLAIN=http://a.test?x=1 # and more
        DOUBLE="two words, \"\`\$\\"
        SINGLE='"raw" \ $HOME'
        ESCAPED=a\\b
        INSIDE=it's "5" o'clock
        EMPTY=
        OPTIONS=postgresql://u:p@db.test/push?options='x'
        QUOTED_URL="postgresql://u:p@db.test/push"
    """
    (tmp_path / "manage.py").write_text("import os; print(*(f'{n}={v}' for n, v in os.environ.items()), sep='\\n')")
    script = f"mount --bind {tmp_path}/manage.py manage.py && deploy/systemd/push-server-manage show"
    done = host(settings, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    shown = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: shown.get(name) for name in re.findall(r"([A-Z_]+)=", settings)} == {
        "PLAIN": "http://a.test?x=1 # and more",
        "DOUBLE": 'two words, "`$\\',
        "SINGLE": '"raw" \\ $HOME',
        "ESCAPED": "a\\b",
        "INSIDE": "it's \"5\" o'clock",
        "EMPTY": "",
        "OPTIONS": "postgresql://u:p@db.test/push?options='x'",
        "QUOTED_URL": "postgresql://u:p@db.test/push",
    }


def test_an_installation_brings_units_and_command_of_this_version_and_makes_systemd_reload_them(
    tmp_path: Path, host: Run
) -> None:
    """Fake systemd programs record their calls in a file."""
    units, install = tmp_path / "etc/systemd/system", PROJECT / "deploy/systemd/install.sh"
    old = ("push-server-web.service", "push-server-.service.d/common.conf", "push-server.target")
    for name in old:
        (units / name).parent.mkdir(parents=True, exist_ok=True)
        (units / name).write_text("of the version before", encoding="ascii")
    subprocess.run([install], env={"PATH": os.environ["PATH"], "DESTDIR": str(tmp_path)}, check=True)
    assert all((units / name).read_bytes() == (PROJECT / "deploy/systemd" / name).read_bytes() for name in old)
    assert os.access(tmp_path / "usr/local/sbin/push-server-manage", os.X_OK)
    assert (tmp_path / "etc/sysusers.d/push-server.conf").exists()
    for name in ("systemctl", "systemd-sysusers"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n', encoding="ascii")
        (tmp_path / name).chmod(0o755)
    script = f"mount -t tmpfs tmpfs /usr/local/sbin && PATH={tmp_path}:$PATH deploy/systemd/install.sh"
    done = host(EXAMPLE, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text(encoding="ascii").split("\n")[:2] == [
        "systemd-sysusers ",
        "systemctl daemon-reload",
    ]
