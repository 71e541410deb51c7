from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.gateways.gorush.config_check.readings import Config, read_config, read_counters, read_version

# Recorded from gorush v1.22.0, with other values.
RECORDED = Path(__file__).with_name("gorush_config.yaml").read_bytes()


def test_reads_the_configuration_of_a_real_gorush() -> None:
    config = read_config(RECORDED)

    assert config is not None
    assert config.flag("core.sync") is True
    assert config.flag("grpc.enabled") is False
    assert config.number("core.queue_num") == 8192
    assert config.text("queue.engine") == "local"
    assert config.text("core.pid.path") == "gorush.pid"
    assert config.text("core.feedback_hook_url") == ""


def test_lists_do_not_shift_what_follows() -> None:
    config = read_config(b"core:\n  feedback_header:\n  - a\n  - {b: [c, {}]}\n  sync: true\n")

    assert config is not None
    assert config.flag("core.sync") is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe",
        b"404 page not found",
        b"<!DOCTYPE html><html><body>It works: core</body></html>",
        b'{"code": 400, "message": "core"}',
        b"core: true",
        b"- core.sync",
        b"[" * 100_000,
        b"core: " * 10,
        b"{core: " * 50_000,
        b"- " * 50_000,
        b"core: {sync: &a true, other: *a}",
        b"core: {? %s : {sync: true}}" % (b"k" * 101),
        b"core: {sync: !!python/object/apply:os.abort []}",
        b"core: {[a, b]: c}",
        b"core: {sync: true",
        b"core:\n  a: 1\n  b: &x [*x]\n",
    ],
)
def test_a_document_that_is_no_configuration_reads_as_none(body: bytes) -> None:
    assert read_config(body) is None


@given(st.binary() | st.text().map(str.encode) | st.integers(0, len(RECORDED)).map(lambda size: RECORDED[:size]))
def test_no_bytes_break_the_readers(body: bytes) -> None:
    read_config(body)
    read_version(body)
    read_counters(body)


@given(st.integers(0, len(RECORDED) - 1), st.integers(0, 255))
def test_a_configuration_with_a_wrong_byte_breaks_nothing(position: int, byte: int) -> None:
    config = read_config(RECORDED[:position] + bytes([byte]) + RECORDED[position + 1 :])
    if config:
        assert config.number("core.worker_num") in {*range(1000), None}


@pytest.mark.parametrize(
    ("text", "flag"),
    [("true", True), ("True", True), ("off", False), ("no", False), ("1", None), ("", None), ("maybe", None)],
)
def test_flags(text: str, flag: bool | None) -> None:
    assert Config({"a": text}).flag("a") is flag
    assert Config({}).flag("a") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-1", -1), ("128", 128), ("", None), ("--1", None), ("1e3", None), ("٣", None), ("9" * 5000, None)],
)
def test_numbers(text: str, number: int | None) -> None:
    assert Config({"a": text}).number("a") == number


def test_a_configuration_does_not_show_its_values() -> None:
    assert "secret" not in repr(read_config(b"core: {sync: true, key: secret}"))


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"source": "https://github.com/appleboy/gorush", "version": "1.22.0"}', (1, 22, 0)),
        (b'{"version": "v1.22.0-devserver"}', (1, 22, 0)),
        (b'{"version": "No Version Provided"}', None),
        (b'{"version": 1.22}', None),
        (b'{"version": "1.22.0000000000000000"}', None),
        (b'{"version": null}', None),
        (b"[]", None),
        (b"<html>", None),
    ],
)
def test_versions(body: bytes, version: tuple[int, ...] | None) -> None:
    assert read_version(body) == version


@pytest.mark.parametrize(
    ("body", "push_errors"),
    [
        (b'{"ios": {"push_error": 3}, "android": {"push_error": 0}}', {"ios": 3, "android": 0}),
        (b'{"ios": {"push_error": -3}, "android": {"push_error": 1}}', {"android": 1}),
        (b'{"ios": {"push_error": true}, "android": {"push_error": "1"}}', None),
        (b'{"ios": [], "android": 7}', None),
        (b"{}", None),
        (b"null", None),
        (b"[" * 100_000, None),
    ],
)
def test_counters(body: bytes, push_errors: dict[str, int] | None) -> None:
    assert read_counters(body) == push_errors
