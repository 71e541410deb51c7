"""Process of `manage.py up`, started, observed and stopped as an operator does it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from django.conf import settings

START_SECONDS = 90
CONFIGURED = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "FIELD_ENCRYPTION_KEYS", "SERVER_PRIVATE_KEY"}


class Up:
    """`manage.py up` of the code in ``folder``, with its output. Only ``environment`` configures it."""

    def __init__(
        self,
        data_dir: Path,
        port: int,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path = settings.BASE_DIR,
    ) -> None:
        unconfigured = {name: value for name, value in os.environ.items() if name not in CONFIGURED}
        own = {"DATA_DIR": str(data_dir), "PORT": str(port)}
        self.environment = {**unconfigured, **own, **(environment or {})}
        self.manage_py = [sys.executable, str(folder / "manage.py")]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("w") as out:
            command = [*self.manage_py, "up"]
            self.process = psutil.Popen(command, env=self.environment, cwd=folder, stdout=out, stderr=out)

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def shows(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.output())):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return found

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*self.manage_py, *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)

    def ends(self, number: int, seconds: float = 60) -> int:
        family = self.process.children(recursive=True)
        self.process.send_signal(number)
        code = int(self.process.wait(timeout=seconds))
        deadline = time.monotonic() + 20
        while alive := [process for process in family if is_alive(process)]:
            assert time.monotonic() < deadline, (alive, self.output())
            time.sleep(0.1)
        return code


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not: when init reaps it depends on the machine."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
