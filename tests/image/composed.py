"""The services of compose.yaml, as the Compose specification reads it, run from the images that Buildah has built."""

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

from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder

ENTER = Path(__file__).with_name("enter.sh")
VARIABLE = re.compile(r"\$\{(\w+):-([^{}]*)\}")
# What Docker mounts without being told more.
TMPFS = "noexec,nosuid,nodev,mode=1777"


def reported(*command: str) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read_compose(**variables: str) -> dict[str, Any]:
    """The services with every default of the specification, as with a .env of these variables. They are put in here, as
    the tool knows none.
    """
    text = reported(".tools/compose", "-format", "json", "-no-interpolation", "compose.yaml")
    put_in = VARIABLE.sub(lambda found: variables.get(found[1]) or found[2], text)
    assert "${" not in put_in, "another form of variable"
    services = dict(json.loads(put_in)["services"])
    for service in services.values():
        if "env_file" in service:
            service["environment"] = variables | service["environment"]
    return services


@dataclass(frozen=True)
class Image:
    """One that Buildah has, with its files in ``root``."""

    name: str

    @cached_property
    def container(self) -> str:
        return reported("buildah", "from", "--pull-never", f"localhost/{self.name}").strip()

    @cached_property
    def root(self) -> Path:
        return Path(reported("buildah", "mount", self.container).strip())

    @cached_property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(reported("buildah", "inspect", self.container))["OCIv1"]["config"])

    def close(self) -> None:
        reported("buildah", "rm", self.container)


@dataclass(frozen=True, slots=True)
class Composed:
    """One host with the services. ``folder`` holds what the operator and Docker would: secrets, hosts, volumes."""

    services: Mapping[str, Any]
    folder: Path
    images: dict[str, Image] = field(default_factory=dict)

    def image(self, service: str) -> Image:
        name = self.services[service]["image"]
        return self.images.setdefault(name, Image(name))

    def spec(self, service: str, command: str = "", **environment: str) -> ProcessSpec:
        """The service, or another command in its place, as `docker compose exec` runs it."""
        image, settings = self.image(service), self.services[service]
        words = shlex.split(command or settings.get("command") or "") or image.config["Cmd"]
        variables = [*image.config["Env"], "HOME=/home/pushserver", f"HOSTNAME={service}"]
        variables += [f"{name}={value}" for name, value in {**settings["environment"], **environment}.items()]
        place = [str(image.root), str(self.folder / "secrets"), str(self.folder / "hosts"), tmpfs(settings)]
        inside = [image.config["User"], image.config["WorkingDir"], " ".join(self._volumes(service))]
        enter = ["unshare", "--mount", str(ENTER), *place, *inside]
        return ProcessSpec(
            name=service, command=[*enter, "--ignore-environment", *variables, *words], stop_order=StopOrder.WORKER
        )

    def _volumes(self, service: str) -> list[str]:
        """A folder for each volume of the image, named where compose.yaml names it, with the owner of the image's."""
        image = self.image(service)
        named = {volume["target"]: volume["source"] for volume in self.services[service].get("volumes", [])}
        pairs = [
            (path, self.folder / named.get(path, f"{service}-{Path(path).name}")) for path in image.config["Volumes"]
        ]
        for path, folder in pairs:
            owner = (image.root / path.lstrip("/")).stat()
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, owner.st_uid, owner.st_gid)
        return [f"{folder}:{path}" for path, folder in pairs]


def tmpfs(settings: Mapping[str, Any]) -> str:
    """The options of /tmp: Docker's, and after them those of compose.yaml, which win."""
    (mounted,) = settings["tmpfs"]
    path, _, options = mounted.partition(":")
    assert path == "/tmp"  # noqa: S108 - that of the container
    return ",".join(filter(None, [TMPFS, options]))
