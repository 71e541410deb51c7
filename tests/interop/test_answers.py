"""Answers of gorush to good and bad requests, recorded, and the pushes that followed. The development gorush must not
differ in a byte, as our tests would otherwise prove things about a server that does not exist.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import yaml

from embedded.gorush.config import CONFIG
from embedded.gorush.urls import APPLE_URL
from tests.interop.servers import Server

IOS, ANDROID, HUAWEI = 1, 2, 3
NOT_FOUND = b"404 page not found"
MISSING = {"code": 400, "message": "Missing notifications field."}
TOPIC = "im.status.ethereum"

CONFIG_KEYS = {section: sorted(values) for section, values in yaml.safe_load(CONFIG.format(hide_token="false")).items()}

SYS_STATS = [
    "average_metrics_timers", "average_response_size", "average_response_time", "average_response_time_sec", "count",
    "hostname", "pid", "status_code_count", "time", "total_count", "total_metrics_counts", "total_response_size",
    "total_response_time", "total_response_time_sec", "total_status_code_count", "unixtime", "uptime", "uptime_sec",
]  # fmt: skip

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


def dropped(name: str, counts: int, notification: object) -> Case:
    """Return the case of a notification that is answered like a success, and never sent."""
    return Case(name, body(notification), ok(counts), tasks=(0, 1))


def filled(size: int, around: Mapping[str, Any]) -> dict[str, str]:
    """Return data that make a payload of ``size`` bytes together with the fields around them."""
    return {"x": "a" * (size - len(orjson.dumps({**around, "x": ""})))}


SENT = (("ok-1", TOPIC, ""),)
DEAD = (("dead-1", TOPIC, "Unregistered"),)
APS = {"aps": {"alert": "m"}}
TOO_BIG = "Android message is too big"
GONE = "Requested entity was not found."
CASES = [
    Case("accepted", body(one("ok-1")), ok(2), SENT, (1, 0)),  # the topic counts, too
    Case("accepted, Android", body(one("ok-1", platform=ANDROID)), ok(1), (("ok-1", "", ""),), (1, 0)),
    Case("dead", body(one("dead-1")), ok(2, failed("dead-1", "Unregistered")), DEAD, (1, 0)),
    Case("markup", body(one("dead-1", message="<&>")), ok(2, failed("dead-1", "Unregistered", message="<&>")),
         DEAD, (1, 0)),
    Case("no topic", body(one("ok-1", topic="")), ok(1, failed("ok-1", "MissingTopic")),
         (("ok-1", "", "MissingTopic"),), (1, 0)),
    Case("no token", body(one("")), ok(2, failed("", "MissingDeviceToken")),
         (("", TOPIC, "MissingDeviceToken"),), (1, 0)),
    Case("collapse id too long", body(one("ok-1", collapse_id="c" * 65)), ok(2, failed("ok-1", "BadCollapseId")),
         (("ok-1", TOPIC, "BadCollapseId"),), (1, 0)),
    Case("unknown priority, iOS", body(one("ok-1", priority="urgent")), ok(2), SENT, (1, 0)),
    Case("unknown field", body(one("ok-1", colour=[1])), ok(2), SENT, (1, 0)),
    Case("names in another case", b'{"Notifications":[{"PLATFORM":1,"Tokens":["ok-1"]}]}',
         ok(1, {"type": "failed-push", "platform": "ios", "token": "ok-1", "message": "", "error": "MissingTopic"}),
         (("ok-1", "", "MissingTopic"),), (1, 0)),
    Case("something after the JSON", body(one("ok-1")) + b" x", ok(2), SENT, (1, 0)),
    Case("to, Android", body(one(platform=ANDROID, to="dead-1")), ok(0, failed("dead-1", GONE, "android")),
         (("dead-1", "", GONE),), (1, 0)),
    Case("largest payload", body(one("ok-1", data=filled(4096, APS))), ok(2), SENT, (1, 0)),
    Case("payload too large", body(one("ok-1", data=filled(4097, APS))), ok(2, failed("ok-1", "PayloadTooLarge")),
         (("ok-1", TOPIC, "PayloadTooLarge"),), (1, 0)),
    Case("payload too large, Android", body(one("ok-1", platform=ANDROID, data=filled(4097, {}))),
         ok(1, failed("ok-1", TOO_BIG, "android")), (("ok-1", "", TOO_BIG),), (1, 0)),
    # The broadcast that the reference warns of: every subscriber of the topic gets it.
    Case("topic, Android", body(one("dead-1", platform=ANDROID, topic="t")), ok(2, failed("dead-1", GONE, "android")),
         (("", "t", ""), ("dead-1", "", GONE)), (1, 0)),
    Case("topic only, Android", body(one(platform=ANDROID, topic="t")), ok(1), (("", "t", ""),), (1, 0)),
    # Silent drops. Platforms that are not enabled leave no trace even in the counters.
    Case("no platform", body({"tokens": ["ok-1"], "topic": TOPIC}), ok(0)),
    Case("unknown platform", body(one("ok-1", platform=9)), ok(0)),
    Case("disabled platform", body(one("ok-1", platform=HUAWEI)), ok(0)),
    Case("null notification", body(None), ok(0)),
    Case("nobody, iOS", body(one()), ok(1), tasks=(1, 0)),
    Case("only to, iOS", body(one(to="ok-1")), ok(1), tasks=(1, 0)),
    dropped("nobody, Android", 0, one(platform=ANDROID)),
    dropped("empty token, Android", 1, one("", platform=ANDROID)),
    dropped("null token, Android", 1, one(None, platform=ANDROID)),
    dropped("an empty token among good ones, Android", 2, one("", "ok-1", platform=ANDROID)),
    dropped("too many tokens, Android", 501, one(*["ok-1"] * 501, platform=ANDROID)),
    dropped("unknown priority, Android", 1, one("ok-1", platform=ANDROID, priority="urgent")),
    dropped("unknown android.priority", 1, one("ok-1", platform=ANDROID, android={"priority": "urgent"})),
    dropped("malformed topic, Android", 2, one("ok-1", platform=ANDROID, topic="not a topic")),
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
    refused("too many", body(*[{}] * 101), "Number of notifications(101) over limit(100)"),
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
    ("token", "error", "is_sent"),
    [
        ("lost-a b", "Post {url}lost-a%20b{quote}: unexpected EOF", True),
        ('lost-x509: "é', "Post {url}lost-x509:%20%22%C3%A9{quote}: unexpected EOF", True),
        ("lost-a%zz", "parse {url}lost-a%zz{quote}: invalid URL escape {quote}%zz{quote}", False),
        ("lost-a\nb", "parse {url}lost-a\\nb{quote}: net/url: invalid control character in URL", False),
    ],
)
def test_a_token_is_written_into_a_url(server: Server, token: str, error: str, is_sent: bool) -> None:
    """The token is escaped in the error text, and its redaction must match that. A token that makes no URL is never
    sent.
    """
    last = server.last_push()
    (entry,) = server.ask("POST", "/api/push", body(one(token))).body["logs"]
    assert (entry["token"], entry["error"]) == (token, error.format(url=f'"{APPLE_URL}', quote='"'))
    assert [push["token"] for push in server.pushes(since=last)] == [token] * is_sent


@pytest.mark.parametrize(
    ("method", "path", "status", "answer"),
    [
        ("GET", "/", 200, {"text": "Welcome to notification server."}),
        ("HEAD", "/", 404, b""),
        ("GET", "/healthz", 200, b""),
        ("HEAD", "/healthz", 200, b""),
        ("GET", "/api/push", 404, NOT_FOUND),
        ("PUT", "/api/push", 404, NOT_FOUND),
        ("POST", "//api/push", 404, NOT_FOUND),
        ("POST", "/API/PUSH", 404, NOT_FOUND),
        ("POST", "/api/push/", 307, b""),
        ("GET", "/nothing", 404, NOT_FOUND),
    ],
)
def test_other_paths(server: Server, method: str, path: str, status: int, answer: object) -> None:
    got = server.ask(method, path)
    assert (got.status, got.body) == (status, answer)
    # A redirect has no such header, as it happens before gorush's own code sees the request.
    assert ("x-gorush-version" in got.headers) is (status != 307)


def test_the_version_is_reported(server: Server) -> None:
    answer = server.ask("GET", "/version")
    assert answer.body["source"] == "https://github.com/appleboy/gorush"
    assert answer.body["version"] == answer.headers["x-gorush-version"]


def test_the_configuration_is_shown_with_the_same_keys(server: Server) -> None:
    """The format is the same, too, so one reader serves both."""
    answer = server.ask("GET", "/api/config")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/yaml; charset=utf-8")
    settings = yaml.safe_load(answer.body)
    assert {section: sorted(values) for section, values in settings.items()} == CONFIG_KEYS
    relied_on = {key: settings["core"][key] for key in ("sync", "queue_num", "max_notification")}
    assert relied_on == {"sync": True, "queue_num": 8192, "max_notification": 100}
    assert settings["ios"]["key_path"] == "[REDACTED]"


def test_metrics_equal_the_counters(server: Server) -> None:
    server.ask("POST", "/api/push", body(one("ok-1"), one("dead-1"), one("ok-1", platform=ANDROID)))
    counters, answer = server.counters(), server.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    ours = [line for line in answer.body.decode().splitlines() if "gorush_" in line]
    assert len(ours) == 3 * 11  # help, type and value
    values = {name: int(value) for name, value in (line.split() for line in ours if not line.startswith("#"))}
    assert values == {
        **{f"gorush_{name}": counters[name] for name in ("success_tasks", "failure_tasks", "submitted_tasks")},
        "gorush_total_push_count": counters["total_count"],
        "gorush_busy_workers": 0,
        "gorush_ios_success": counters["ios"]["push_success"],
        "gorush_ios_error": counters["ios"]["push_error"],
        **{f"gorush_{name}_success": counters[name]["push_success"] for name in ("android", "huawei")},
        **{f"gorush_{name}_fail": counters[name]["push_error"] for name in ("android", "huawei")},
    }
    assert ("# TYPE gorush_busy_workers gauge" in ours, ours.count("# TYPE gorush_ios_error counter")) == (True, 1)


def test_statistics_count_every_answer_as_200(server: Server) -> None:
    before = server.ask("GET", "/sys/stats").body
    for method, path in (("GET", "/healthz"), ("GET", "/nothing"), ("POST", "/api/push"), ("POST", "/api/push/")):
        server.ask(method, path)
    after = server.ask("GET", "/sys/stats").body
    counts = Counter(after["total_status_code_count"])
    counts.subtract(before["total_status_code_count"])
    assert +counts == {"200": 4}  # the first request, too, but not the redirect
    assert sorted(after) == SYS_STATS
    assert after["total_count"] - before["total_count"] == 4
