"""Answers of gorush to requests like ours and to bad ones, and the pushes that followed.

The development gorush must not differ in a byte, as our tests would otherwise prove things about a server that does not
exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import yaml

from embedded.gorush.outcomes import APPLE_URL
from embedded.gorush.server import CONFIG
from notifications.gateways.gorush.config_check.readings import Reading, read_config, read_counters, read_version
from notifications.gateways.gorush.config_check.rules import Expectations, complaints
from tests.rig.peers import Server

IOS, ANDROID = 1, 2
NOT_FOUND = b"404 page not found"
MISSING = {"code": 400, "message": "Missing notifications field."}
TOPIC = "im.status.ethereum"

Pushed = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A request to `/api/push` and its consequences. ``pushed`` has token, topic and error of each push to Apple or
    Google.

    ``tasks`` is how many notifications succeeded and failed by gorush's own count.
    """

    name: str
    body: bytes
    answer: Mapping[str, Any]
    pushed: Pushed = ()
    tasks: tuple[int, int] = (0, 0)
    status: int = field(default=200)

    def __str__(self) -> str:
        return self.name


def one(*tokens: str | None, platform: int = IOS, **fields: object) -> dict[str, object]:
    topic = {"topic": TOPIC} if platform == IOS else {}
    return {"platform": platform, "tokens": list(tokens), "message": "m", "notif_id": "7", **topic, **fields}


def body(*notifications: object) -> bytes:
    return orjson.dumps({"notifications": notifications})


def ok(counts: int, *logs: Mapping[str, str]) -> dict[str, Any]:
    return {"counts": counts, "logs": list(logs), "success": "ok"}


def failed(token: str, error: str, platform: str = "ios", **fields: str) -> dict[str, str]:
    entry = {"notif_id": "7", "type": "failed-push", "platform": platform, "token": token, "message": "m"}
    return {**entry, "error": error, **fields}


def refused(name: str, sent: bytes, message: str = MISSING["message"]) -> Case:
    return Case(name, sent, {"code": 400, "message": message}, status=400)


def filled(size: int, around: Mapping[str, Any]) -> dict[str, str]:
    """Return data that make a payload of ``size`` bytes together with the fields around them."""
    return {"x": "a" * (size - len(orjson.dumps({**around, "x": ""})))}


SENT = (("ok-1", TOPIC, ""),)
DEAD = (("dead-1", TOPIC, "Unregistered"),)
APS = {"aps": {"alert": "m"}}
TOO_BIG = "Android message is too big"
LOST = f'Post "{APPLE_URL}lost-x509:%20%22%C3%A9": unexpected EOF'
GONE = "Requested entity was not found."
CASES = [
    Case("accepted", body(one("ok-1")), ok(2), SENT, (1, 0)),  # the topic counts, too
    Case("accepted, Android", body(one("ok-1", platform=ANDROID)), ok(1), (("ok-1", "", ""),), (1, 0)),
    Case("dead", body(one("dead-1")), ok(2, failed("dead-1", "Unregistered")), DEAD, (1, 0)),
    Case("dead, Android", body(one("dead-1", platform=ANDROID)), ok(1, failed("dead-1", GONE, "android")),
         (("dead-1", "", GONE),), (1, 0)),
    Case("markup", body(one("dead-1", message="<&>")), ok(2, failed("dead-1", "Unregistered", message="<&>")),
         DEAD, (1, 0)),
    Case("no topic", body(one("ok-1", topic="")), ok(1, failed("ok-1", "MissingTopic")),
         (("ok-1", "", "MissingTopic"),), (1, 0)),
    Case("no token", body(one("")), ok(2, failed("", "MissingDeviceToken")),
         (("", TOPIC, "MissingDeviceToken"),), (1, 0)),
    Case("collapse id too long", body(one("ok-1", collapse_id="c" * 65)), ok(2, failed("ok-1", "BadCollapseId")),
         (("ok-1", TOPIC, "BadCollapseId"),), (1, 0)),
    Case("unknown field and null", body(one("ok-1", colour=[1], data=None)), ok(2), SENT, (1, 0)),
    Case("largest payload", body(one("ok-1", data=filled(4096, APS))), ok(2), SENT, (1, 0)),
    Case("payload too large", body(one("ok-1", data=filled(4097, APS))), ok(2, failed("ok-1", "PayloadTooLarge")),
         (("ok-1", TOPIC, "PayloadTooLarge"),), (1, 0)),
    Case("payload too large, Android", body(one("ok-1", platform=ANDROID, data=filled(4097, {}))),
         ok(1, failed("ok-1", TOO_BIG, "android")), (("ok-1", "", TOO_BIG),), (1, 0)),
    # The token is escaped in the text, and its redaction must match that.
    Case("a transport error", body(one('lost-x509: "é')), ok(2, failed('lost-x509: "é', LOST)),
         (('lost-x509: "é', TOPIC, ""),), (1, 0)),
    # Silent drops of platforms that are not enabled, which leave no trace even in the counters. A dry run is the first.
    Case("no platform", body({"tokens": ["ok-1"]}), ok(0)),
    Case("unknown platform", body(one("ok-1", platform=9)), ok(0)),
    refused("nothing", b""),
    refused("no JSON", b"hello"),
    refused("an array", b"[]"),
    refused("no list", b"{}"),
    refused("null for the list", b'{"notifications":null}'),
    refused("an object for the list", b'{"notifications":{}}'),
    refused("a number for a notification", b'{"notifications":[5]}'),
    refused("platform as text", body(one("ok-1") | {"platform": "1"})),
    refused("platform as fraction", body(one("ok-1") | {"platform": 1.5})),
    refused("a number for a token", body(one(5))),
    refused("a list for data", body(one("ok-1", data=[1]))),
    refused("a number for the collapse key", body(one("ok-1", platform=ANDROID, android={"collapse_key": 5}))),
    refused("an empty list", b'{"notifications":[]}', "Notifications field is empty."),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_push_is_answered_and_done(server: Server, case: Case) -> None:
    last, before = server.last_push(), server.counters()
    answer = server.ask("POST", "/api/push", case.body)
    assert (answer.status, answer.body) == (case.status, case.answer)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    pushes = server.pushes(since=last)
    # Sorted, as gorush sends the messages of a notification at the same time.
    assert sorted((push["token"], push["topic"], push["error"]) for push in pushes) == sorted(case.pushed)
    after = server.counters()
    assert tuple(after[name] - before[name] for name in ("success_tasks", "failure_tasks")) == case.tasks


@pytest.mark.parametrize(
    ("method", "path", "status", "answer"),
    [
        ("GET", "/healthz", 200, b""),
        ("HEAD", "/healthz", 200, b""),
        ("GET", "/api/push", 404, NOT_FOUND),
        ("PUT", "/api/push", 404, NOT_FOUND),
        ("POST", "//api/push", 404, NOT_FOUND),
        ("POST", "/API/PUSH", 404, NOT_FOUND),
        ("GET", "/nothing", 404, NOT_FOUND),
    ],
)
def test_other_paths(server: Server, method: str, path: str, status: int, answer: object) -> None:
    got = server.ask(method, path)
    assert (got.status, got.body) == (status, answer)


def test_the_version_and_the_settings_that_the_config_check_reads_are_shown(server: Server) -> None:
    """The development gorush writes what it shows in the same format, so one reader serves both."""
    version, answer = server.ask("GET", "/version"), server.ask("GET", "/api/config")
    assert version.body["source"] == "https://github.com/appleboy/gorush"
    assert (answer.status, answer.headers["content-type"]) == (200, "application/yaml; charset=utf-8")
    settings, ours = (yaml.safe_load(text) for text in (answer.body, CONFIG.format(hide_token="false")))
    missing = {section: known.keys() - settings[section].keys() for section, known in ours.items()}
    assert not any(missing.values()), missing
    assert settings["ios"]["key_path"] == "[REDACTED]"
    counters = read_counters(orjson.dumps(server.ask("GET", "/api/stat/app").body))
    reading = Reading(True, read_config(answer.body), read_version(orjson.dumps(version.body)), counters)
    assert reading.version
    assert [complaint.id for complaint in complaints(reading, Expectations(concurrency=64))] == ["tokens_in_log"]
