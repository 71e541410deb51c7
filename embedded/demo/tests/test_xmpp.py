"""Tests of the demonstration's XMPP server: where it listens, and where its secrets are."""

import stat
from pathlib import Path

import pytest

from embedded.demo.addresses import SERVICE, USER_SERVER, arguments_of, choose, component_of, part_of
from embedded.servers.ports import Ports


def test_the_component_is_configured_and_its_secret_is_on_no_command_line(tmp_path: Path) -> None:
    server = choose(tmp_path, Ports(tmp_path / "ports.json"))
    settings, secrets = component_of(server), server.components
    assert settings["XMPP_COMPONENT_JID"] == SERVICE
    assert settings["XMPP_COMPONENT_SECRET"] == secrets[SERVICE]
    assert not [secret for secret in secrets.values() if secret in " ".join(arguments_of(server)) + repr(server)]


def test_its_files_are_private_and_it_listens_on_loopback_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing a server needs no Prosody, only a program of its name that could be started."""
    program, folder = tmp_path / "bin" / "prosody", tmp_path / "data"
    for made in (program.parent, folder):
        made.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    server = choose(folder, Ports(folder / "ports.json"))
    assert not list(folder.iterdir())
    part_of(server).spec.prepare()
    files = [file for file in (folder / "prosody").iterdir() if file.is_file()]
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    configuration = (folder / "prosody" / "prosody.cfg.lua").read_text()
    assert 'interfaces = { "127.0.0.1" }\nc2s_ports' in configuration
    assert 'component_interfaces = { "127.0.0.1" }' in configuration
    assert f'Component "{USER_SERVER}"' in configuration


def test_ports_stay_and_secrets_change(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "ports.json")
    first, second = choose(tmp_path, ports), choose(tmp_path, ports)
    assert first.component_port == second.component_port
    assert first.components != second.components
