"""Tests of the config check: gorush's reports, the rules about them, saved complaints, the documented configuration."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import LazySettings
from django.core.cache import cache
from hypothesis import given
from hypothesis import strategies as st

from embedded.servers.ports import free_port
from notifications.messages import Outcome
from pushserver.console.checks.gorush import (
    ESSENTIAL,
    NOTICES,
    RULES,
    Reading,
    check_all,
    read_config,
    read_counters,
    read_version,
)
from pushserver.console.checks.peers import complaints_of
from pushserver.console.gorush.feedback import SECRET_HEADER
from registrations.messages import TokenType
from tests.rig import rows
from tests.rig.logs import capture_logs
from tests.rig.peers import serve as serve_answers

# Recorded from gorush v1.22.0, with other values.
RECORDED = Path(__file__).with_name("gorush_config.yaml").read_bytes()
RECOMMENDED = read_config(RECORDED)
COUNTERS = {"ios": 10, "android": 10}
ANSWERED = Reading(is_reachable=True, values=RECOMMENDED, version=(1, 22, 0), counters=COUNTERS)

# What gorush reports --------------------------------------------------------------------------------------------------


def test_reads_the_configuration_of_a_real_gorush_and_no_list_shifts_what_follows() -> None:
    assert (ANSWERED.flag("core.sync"), ANSWERED.flag("grpc.enabled")) == (True, False)
    assert (ANSWERED.number("core.queue_num"), RECOMMENDED["core.mode"]) == (8192, "release")
    with_lists = read_config(b"core:\n  feedback_header:\n  - a\n  - {b: [c, {}]}\n  sync: true\n")
    assert with_lists == {"core.sync": "true"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe",
        b"<!DOCTYPE html><html><body>It works: core</body></html>",
        b"core: true",
        b"- core.sync",
        b"[" * 100_000,
        b"{core: " * 50_000,
        b"core: {sync: &a true, other: *a}",
        b"core: {? %s : {sync: true}}" % (b"k" * 101),
        b"core: {sync: !!python/object/apply:os.abort []}",
        b"core: {[a, b]: c}",
        b"core: {sync: true",
    ],
)
def test_a_document_that_is_no_configuration_has_no_values(body: bytes) -> None:
    assert read_config(body) == {}


@given(st.integers(0, len(RECORDED) - 1), st.integers(0, 255), st.binary())
def test_no_bytes_break_the_readers(position: int, byte: int, other: bytes) -> None:
    read_version(other)
    read_counters(other)
    read_config(other)
    values = read_config(RECORDED[:position] + bytes([byte]) + RECORDED[position + 1 :])
    assert Reading(is_reachable=True, values=values).number("core.worker_num") in {*range(1000), None}


def test_a_value_is_read_as_a_flag_or_a_number_or_not_at_all() -> None:
    flags = {"true": True, "True": True, "off": False, "no": False, "1": None, "": None, "maybe": None}
    assert {text: saying(a=text).flag("a") for text in flags} == flags
    numbers = {"0": 0, "-1": -1, "128": 128, "": None, "--1": None, "1e3": None, "٣": None, "9" * 5000: None}
    assert {text: saying(a=text).number("a") for text in numbers} == numbers
    assert (ANSWERED.flag("a"), ANSWERED.number("a")) == (None, None)


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"source": "https://github.com/appleboy/gorush", "version": "1.22.0"}', (1, 22, 0)),
        (b'{"version": "v1.22.0-devserver"}', (1, 22, 0)),
        (b'{"version": "No Version Provided"}', None),
        (b'{"version": 1.22}', None),
        (b'{"version": "1.22.0000000000000000"}', None),
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
        (b"{}", None),
        (b"[" * 100_000, None),
    ],
)
def test_counters(body: bytes, push_errors: dict[str, int] | None) -> None:
    assert read_counters(body) == push_errors


# What is wrong with it ------------------------------------------------------------------------------------------------


def judged(reading: Reading = ANSWERED) -> list[str]:
    return [complaint.id for complaint in complaints_of(RULES, reading)]


def saying(**values: str | None) -> Reading:
    """Return the good configuration, changed in ``section__name``. A value of None removes it."""
    changed = {name.replace("__", ".", 1): value for name, value in values.items()}
    merged = {**RECOMMENDED, **changed}
    return replace(ANSWERED, values={name: value for name, value in merged.items() if value is not None})


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"core__sync": "false"}, "not_sync"),
        ({"queue__engine": "redis"}, "queue_engine"),
        ({"queue__engine": ""}, "queue_engine"),
        ({"ios__max_retry": "1"}, "max_retry_ios"),
        ({"android__max_retry": "2"}, "max_retry_android"),
        ({"ios__enabled": "false"}, "platform_off_ios"),
        ({"android__enabled": "false"}, "platform_off_android"),
        ({"core__worker_num": "255"}, "worker_num"),
        ({"core__worker_num": "0"}, "worker_num"),
        ({"ios__max_concurrent_pushes": "100"}, "max_concurrent_pushes"),
        ({"core__queue_num": "255"}, "queue_num"),
        ({"core__max_notification": "0"}, "max_notification"),
        ({"core__max_notification": "-1"}, "max_notification"),
        ({"log__hide_token": "false"}, "tokens_in_log"),
        ({"core__address": ""}, "open_address"),
        ({"core__address": "0.0.0.0"}, "open_address"),  # noqa: S104
        ({"core__address": "::"}, "open_address"),
        ({"grpc__enabled": "true"}, "grpc_open"),
        ({"core__feedback_hook_url": "http://push:8000/hooks/gorush"}, "hook_not_ours"),
        *[({name.replace(".", "__"): None}, "incomplete") for name in ESSENTIAL],
    ],
)
def test_each_wrong_setting_is_a_complaint_of_its_own(values: dict[str, str | None], complaint: str) -> None:
    assert judged(saying(**values)) == [complaint]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"core__queue_num": "0"},
        {"core__worker_num": "10000"},
        {"core__worker_num": None},
        {"ios__max_concurrent_pushes": None},
        {"core__worker_num": "many"},
        {"core__queue_num": None},
        {"core__max_notification": None},
        {"core__address": "10.1.2.3"},
        {"core__address": None},
        {"log__hide_token": None},
        {"log__hide_messages": "true"},
        {"core__feedback_hook_url": None},
        {"huawei__enabled": "false"},
    ],
)
def test_a_right_or_missing_setting_is_no_complaint(values: dict[str, str | None]) -> None:
    assert judged(saying(**values)) == []


@pytest.mark.parametrize(
    ("values", "ours", "ids"),
    [
        ({"ios__enabled": "false"}, {"platforms": frozenset({"android"})}, []),
        ({"core__address": ""}, {"is_shielded": True}, []),
        ({}, {"is_hook_open": True}, ["hook_unused"]),
        ({"core__feedback_hook_url": "http://push:8000/hooks/gorush"}, {"is_hook_open": True}, []),
    ],
)
def test_what_is_expected_depends_on_our_own_settings_and_phones(
    values: dict[str, str | None], ours: dict[str, Any], ids: list[str]
) -> None:
    assert judged(replace(saying(**values), **ours)) == ids


def test_an_answer_that_is_missing_is_named() -> None:
    assert judged(Reading(is_reachable=False)) == ["unreachable"]
    assert [judged(replace(ANSWERED, **{part: {}})) for part in ("values", "counters")] == [["unreadable"]] * 2


@pytest.mark.parametrize(
    ("version", "ids"),
    [((1, 21, 9), ["old_version"]), ((1, 22, 0), []), ((1, 100, 0), []), ((2, 0, 0), []), (None, [])],
)
def test_an_older_version_than_the_tested_one_is_named(version: tuple[int, ...] | None, ids: list[str]) -> None:
    assert judged(replace(ANSWERED, version=version)) == ids


@pytest.mark.parametrize(
    ("previous", "failures", "ids"),
    [
        (None, {}, []),
        ({"ios": 10, "android": 10}, {}, []),
        ({"ios": 8, "android": 10}, {"ios": 2}, []),
        ({"ios": 8, "android": 10}, {"ios": 1, "android": 5}, ["hidden_failures_ios"]),
        ({"ios": 10, "android": 0}, {}, ["hidden_failures_android"]),
        ({"ios": 5000, "android": 5000}, {}, []),  # restarted
        ({"android": 10}, {}, []),
    ],
)
def test_failures_that_gorush_counted_and_did_not_report_are_a_complaint(
    previous: dict[str, int] | None, failures: dict[str, int], ids: list[str]
) -> None:
    assert judged(replace(ANSWERED, previous=previous, failures=failures)) == ids


# Saved complaints -----------------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD = b"""core: {sync: true, worker_num: 256}
queue: {engine: local}
ios: {enabled: true, max_retry: 0}
android: {enabled: true, max_retry: 0}
"""
NO_ERRORS = b'{"ios": {"push_error": 0}, "android": {"push_error": 0}}'


@pytest.fixture
def empty_cache(db: None, settings: LazySettings) -> Iterator[None]:
    settings.GORUSH_HOOK_SECRET = ""
    settings.GORUSH_SHIELDED = False
    cache.clear()
    yield
    cache.clear()


class Gorush(BaseHTTPRequestHandler):
    """A server that answers ``answers[path]``: status and body."""

    answers: dict[str, tuple[int, bytes]]
    headers_also: dict[str, str]

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, b"404 page not found"))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **self.headers_also}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


Serve = Callable[..., tuple[str, dict[str, tuple[int, bytes]]]]


@pytest.fixture
def serve(empty_cache: None) -> Iterator[Serve]:
    """Return a function that starts a gorush of these answers, and returns its URL and the answers."""
    with ExitStack() as running:

        def start(config: bytes = GOOD, status: int = 200, counters: bytes = NO_ERRORS, **headers: str):
            answers = {"/api/config": (status, config), "/api/stat/app": (200, counters)}
            handler = type("Handler", (Gorush,), {"answers": answers, "headers_also": headers})
            server = running.enter_context(serve_answers(handler))
            return f"http://127.0.0.1:{server.server_port}", answers

        yield start


def found(url: str, now: datetime = NOW) -> list[str]:
    check_all([url], now=now)
    return [complaint.id for complaint in NOTICES.read([url])[url].complaints]


@pytest.mark.parametrize(
    ("config", "status", "headers", "ids"),
    [
        (GOOD, 201, {}, []),  # as older versions answer
        (b"<html><body>It works!</body></html>", 200, {}, ["unreadable"]),
        (GOOD, 500, {}, ["unreadable"]),
        (GOOD, 302, {"Location": "http://127.0.0.1:1/"}, ["unreadable"]),
        (GOOD, 200, {"Content-Encoding": "gzip"}, ["unreadable"]),
        (GOOD + b"#" * 1024 * 1024, 200, {}, ["unreadable"]),
    ],
    ids=["201", "html", "error", "redirect", "not gzip", "over 1 MiB"],
)
def test_an_answer_that_is_no_configuration_is_named(
    serve: Serve, config: bytes, status: int, headers: dict[str, str], ids: list[str]
) -> None:
    assert found(serve(config, status, **headers)[0]) == ids


@pytest.mark.usefixtures("empty_cache")
def test_a_gorush_that_does_not_listen_is_unreachable() -> None:
    assert found(f"http://127.0.0.1:{free_port()}") == ["unreachable"]


def test_only_platforms_with_active_routes_are_needed(serve: Serve) -> None:
    url = serve(GOOD.replace(b"ios: {enabled: true", b"ios: {enabled: false"))[0]
    assert found(url) == []
    rows.make_route(token_type=TokenType.APN)
    assert found(url) == ["platform_off_ios"]


def test_a_complaint_keeps_its_first_time_and_is_logged_when_it_comes_and_when_it_ends(serve: Serve) -> None:
    url, answers = serve(GOOD.replace(b"sync: true", b"sync: false"))
    other, later = serve()[0], NOW + timedelta(minutes=5)
    with capture_logs() as logs:
        check_all([url, other], now=NOW)
        check_all([url, other], now=later)
        notices = NOTICES.read([url, other])
        answers["/api/config"] = (200, GOOD)
        assert [found(url, later) for _ in range(2)] == [[], []]
    assert (notices[url].looked_at, notices[url].since, notices[other].since) == (later, {"not_sync": NOW}, {})
    events = [(entry["log_level"], entry["event"], entry["complaint"]) for entry in logs]
    assert events == [("warning", "gorush_deviates", "not_sync"), ("info", "gorush_deviates_no_more", "not_sync")]


def test_failures_that_gorush_does_not_report_are_noticed(serve: Serve) -> None:
    url, answers = serve()
    assert found(url) == []
    answers["/api/stat/app"] = (200, b'{"ios": {"push_error": 2}, "android": {"push_error": 1}}')
    attempt = {"token_type": TokenType.APN, "started_at": NOW + timedelta(minutes=1)}
    rows.make_attempt(outcome=Outcome.DELIVERED, **attempt)
    rows.make_attempt(outcome=Outcome.DEAD, **attempt)
    rows.make_attempt(outcome=None, **attempt)
    assert found(url, NOW + timedelta(minutes=5)) == ["hidden_failures_android"]


def test_no_text_of_gorush_is_repeated_kept_or_logged(serve: Serve) -> None:
    """A configuration contains secrets, and `/readyz` is public."""
    sections: dict[str, dict[str, str]] = {}
    for name in RECOMMENDED:
        section, _, setting = name.partition(".")
        sections.setdefault(section, {})[setting] = "secret-word"
    url = serve(yaml.safe_dump(sections).encode())[0]
    with capture_logs() as logs:
        assert "queue_engine" in found(url)
    complained = NOTICES.read([url])[url].complaints
    assert all(complaint.problem and complaint.why and complaint.action.endswith(".") for complaint in complained)
    assert "secret" not in repr(logs) + repr(cache.get(NOTICES.cache.key(url))) + repr(complained) + repr(ANSWERED)


# The documented configuration: docs/gorush.md, compose.yaml and the unit of systemd -----------------------------------

ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "gorush.md").read_text(encoding="utf-8")
[YAML] = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["gorush"]["environment"]
UNIT = (ROOT / "deploy" / "systemd" / "gorush.service").read_text(encoding="utf-8")
# Containers reach each other on other interfaces. All other settings are the same everywhere.
OF_CONTAINERS = {"GORUSH_CORE_ADDRESS"}
OF_OPERATORS = {"GORUSH_IOS_KEY_ID", "GORUSH_IOS_TEAM_ID"}


def as_environment(values: Any, path: str = "GORUSH") -> dict[str, str]:
    if not isinstance(values, dict):
        return {path: str(values).lower() if isinstance(values, bool) else str(values)}
    found = {}
    for name, value in values.items():
        found |= as_environment(value, f"{path}_{name.upper()}")
    return found


DOCUMENTED = as_environment(yaml.safe_load(YAML))


def test_compose_has_the_documented_settings() -> None:
    of_document = {name: value for name, value in DOCUMENTED.items() if value and name not in OF_CONTAINERS}
    assert COMPOSE.keys() == of_document.keys()
    assert {n: v for n, v in COMPOSE.items() if n not in OF_OPERATORS} == {
        n: v for n, v in of_document.items() if n not in OF_OPERATORS
    }


def test_the_unit_has_the_documented_settings() -> None:
    """Its keys are credentials of the unit. The operator's own file names their owners."""
    of_document = {n: v for n, v in DOCUMENTED.items() if v and n not in OF_OPERATORS}
    of_unit = dict(re.findall(r"(GORUSH_\w+)=(\S+)", UNIT))
    assert {n: v.replace("%d/", "/run/secrets/") for n, v in of_unit.items()} == of_document


def test_the_documented_configuration_has_no_complaint() -> None:
    reading = Reading(is_reachable=True, values=read_config(YAML.encode()), counters={"ios": 0})
    assert complaints_of(RULES, reading) == []


@pytest.mark.parametrize("name", [rule.id for rule in RULES if not rule.id.endswith("_android")])
def test_every_warning_is_explained(name: str) -> None:
    assert f"| `{name}`" in DOCUMENT


def test_the_documented_header_is_the_one_that_the_hook_checks() -> None:
    assert f"GORUSH_CORE_FEEDBACK_HEADER={SECRET_HEADER}:" in DOCUMENT
