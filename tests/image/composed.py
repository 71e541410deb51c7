"""Services of compose.yaml, run from the images that Buildah has built. `make check-deploy` reads the file by the
specification of Compose; this module knows the forms that it uses.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder

ENTER = Path(__file__).with_name("enter.sh")
VARIABLE = re.compile(r"\$\{(\w+):-([^{}]*)\}")
# Docker's default options for a tmpfs.
TMPFS = "noexec,nosuid,nodev,mode=1777"


def output_of(*command: str) -> str:
    """Return the output of a command, and check that it succeeded."""
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read_compose(**dot_env: str) -> dict[str, Any]:
    """Return the services, as with a .env of these variables."""
    text = (PROJECT / "compose.yaml").read_text(encoding="utf-8")
    services = dict(yaml.safe_load(VARIABLE.sub(lambda found: dot_env.get(found[1]) or found[2], text))["services"])
    for service in services.values():
        if "env_file" in service:
            service["environment"] = dot_env | service["environment"]
    return services


@dataclass(frozen=True)
class Image:
    """An image that Buildah has built, with its files in ``root``."""

    name: str

    @cached_property
    def container(self) -> str:
        return output_of("buildah", "from", "--pull-never", f"localhost/{self.name}").strip()

    @cached_property
    def root(self) -> Path:
        return Path(output_of("buildah", "mount", self.container).strip())

    @cached_property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(output_of("buildah", "inspect", self.container))["OCIv1"]["config"])

    def close(self) -> None:
        output_of("buildah", "rm", self.container)


@dataclass(frozen=True, slots=True)
class Composed:
    """A host with the services. ``folder`` holds the files of the operator and of Docker: secrets, hosts, volumes."""

    services: Mapping[str, Any]
    folder: Path
    images: dict[str, Image] = field(default_factory=dict)

    def image(self, service: str) -> Image:
        name = self.services[service]["image"]
        return self.images.setdefault(name, Image(name))

    def spec(self, service: str, command: str = "", **environment: str) -> ProcessSpec:
        """Return the process of a service, or of another command in its container, as `docker compose exec` runs it."""
        image, settings = self.image(service), self.services[service]
        words = shlex.split(command or settings.get("command") or "") or image.config["Cmd"]
        variables = [*image.config["Env"], "HOME=/home/pushserver", f"HOSTNAME={service}"]
        variables += [f"{name}={value}" for name, value in {**settings["environment"], **environment}.items()]
        [mounted] = settings["tmpfs"]
        tmpfs = f"{TMPFS},{mounted.partition(':')[2]}".rstrip(",")
        paths = [str(image.root), str(self.folder / "secrets"), str(self.folder / "hosts"), tmpfs]
        inside = [image.config["User"], image.config["WorkingDir"], " ".join(self._volumes(service))]
        enter = ["unshare", "--mount", str(ENTER), *paths, *inside]
        return ProcessSpec(
            name=service, command=[*enter, "--ignore-environment", *variables, *words], stop_order=StopOrder.WORKER
        )

    def _volumes(self, service: str) -> list[str]:
        """Make a folder for each volume of the image, with the name from compose.yaml and the owner from the image."""
        image = self.image(service)
        named = {path: name for name, _, path in (v.partition(":") for v in self.services[service].get("volumes", []))}
        pairs = [
            (path, self.folder / named.get(path, f"{service}-{Path(path).name}")) for path in image.config["Volumes"]
        ]
        for path, folder in pairs:
            owner = (image.root / path.lstrip("/")).stat()
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, owner.st_uid, owner.st_gid)
        return [f"{folder}:{path}" for path, folder in pairs]
