"""Answers of gorush to requests like ours and to bad ones, and the pushes that followed.

The development gorush must not differ in a byte, as our tests would otherwise prove things about a server that does not
exist.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import yaml

from embedded.gorush.outcomes import APPLE_URL
from embedded.gorush.server import CONFIG
from embedded.servers.ports import free_port
from notifications.gateways.gorush.push_api import device_token
from notifications.messages import Outcome
from pushserver.console.checks.gorush import RULES, Reading, read_config, read_counters, read_version
from pushserver.console.checks.peers import complaints_of
from registrations.messages import TokenType
from tests.rig.peers import Server, Servers, new_push, send
from tests.rig.server import wait_until

IOS, ANDROID = TokenType.APN, TokenType.FIREBASE
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
    refused("no JSON", b"hello"),
    refused("a number for a token", body(one(5))),
    refused("a list for data", body(one("ok-1", data=[1]))),
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
    assert [complaint.id for complaint in complaints_of(RULES, reading)] == ["tokens_in_log"]


# Faults of a whole gorush, rather than of one push --------------------------------------------------------------------

BOTH = pytest.mark.parametrize("token_type", [IOS, ANDROID], ids=["iOS", "Android"])
MASKED = "*" * 10


@pytest.fixture(scope="module", params=["development", pytest.param("real", marks=pytest.mark.peers)])
def hiding(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A gorush that masks tokens in its log, as it does by default."""
    if request.param == "development":
        return servers.development("development-hiding", "--hide-token")
    request.getfixturevalue("real_gorush")
    return servers.real("gorush-hiding", LOG_HIDE_TOKEN="true")


@BOTH
def test_a_masked_token_is_dead_all_the_same(hiding: Server, token_type: TokenType) -> None:
    push = new_push(token_type, "dead-")
    assert send([hiding.url], push).outcome is Outcome.DEAD
    body = {"platform": token_type, "tokens": [device_token(push)]} | ({"topic": "t"} if token_type == IOS else {})
    (entry,) = hiding.ask("POST", "/api/push", orjson.dumps({"notifications": [body]})).body["logs"]
    assert entry["token"] == MASKED + device_token(push)[10:-10] + MASKED


def test_a_transport_error_contains_the_unmasked_token(hiding: Server) -> None:
    """No text of gorush may be stored or logged unredacted for this reason."""
    token = device_token(new_push(IOS, "lost-"))
    body = b'{"notifications":[{"platform":1,"tokens":["%s"],"topic":"t"}]}' % token.encode()
    (entry,) = hiding.ask("POST", "/api/push", body).body["logs"]
    assert MASKED in entry["token"]
    assert token in entry["error"]


def test_a_base_url_with_a_trailing_slash_is_a_matter_for_the_operator(server: Server) -> None:
    push = new_push(IOS)
    result = send([server.url + "/"], push)
    assert (result.outcome, result.code) == (Outcome.CONFIG, "http_404")
    assert server.pushes_to(device_token(push), at_least=0) == []


# Circumstances of the real gorush. ------------------------------------------------------------------------------------

SMALL = {"CORE_QUEUE_NUM": "1", "CORE_WORKER_NUM": "1"}


def overflow(server: Server) -> list[tuple[Outcome, str, int]]:
    """Send six pushes of a second each to a queue of one. Return outcome, code and number of pushes for each."""
    pushes = [new_push(IOS, "slow1000-") for _ in range(6)]
    with ThreadPoolExecutor(len(pushes)) as pool:
        results = list(pool.map(lambda push: send([server.url], push, timeout_seconds=4), pushes))
    counts = [len(server.pushes_to(device_token(push), at_least=0)) for push in pushes]
    return sorted((r.outcome, r.code, count) for r, count in zip(results, counts, strict=True))


@pytest.mark.peers
def test_a_full_queue_never_sends_and_never_answers_or_answers_500_without_sync(
    real_gorush: Server, servers: Servers
) -> None:
    found = overflow(servers.real("gorush-small", **SMALL))
    assert set(found) == {(Outcome.DELIVERED, "", 1), (Outcome.AMBIGUOUS, "timeout", 0)}
    found = overflow(servers.real("gorush-async", CORE_SYNC="false", **SMALL))
    assert (Outcome.TRANSIENT, "http_500", 0) in found
    # The others were accepted, and gorush reports nothing more. This is why the config check requires sync.
    assert {outcome for outcome, _, _ in found} == {Outcome.TRANSIENT, Outcome.DELIVERED}


NOBODY = "http://127.0.0.1:9"  # where nothing listens


@pytest.mark.peers
@pytest.mark.parametrize(
    ("token_type", "options", "outcome", "code"),
    [
        # without the authority of the certificates of Apple and Google, with a revoked account, and without a way out
        (IOS, {"authority": "/dev/null"}, Outcome.CONFIG, "tls"),
        (ANDROID, {"authority": "/dev/null"}, Outcome.CONFIG, "tls"),
        (ANDROID, {"ANDROID_KEY_PATH": "revoked.json"}, Outcome.CONFIG, "service_account"),
        (IOS, {"CORE_HTTP_PROXY": NOBODY}, Outcome.TRANSIENT, "provider_unreachable"),
        (ANDROID, {"CORE_HTTP_PROXY": NOBODY}, Outcome.TRANSIENT, "cannot_fetch_token"),
    ],
    ids=["iOS-authority", "Android-authority", "Android-revoked", "iOS-offline", "Android-offline"],
)
def test_a_gorush_that_reaches_nobody_needs_the_operator_or_is_tried_again(
    real_gorush: Server,
    servers: Servers,
    token_type: TokenType,
    options: dict[str, str],
    outcome: Outcome,
    code: str,
) -> None:
    if key := options.get("ANDROID_KEY_PATH"):
        options = {"ANDROID_KEY_PATH": str(servers.fleet.folder / key)}
    server = servers.real(f"gorush-{token_type}-{code}", **options)
    result = send([server.url], new_push(token_type))
    assert (result.outcome, result.code) == (outcome, code)


def is_connected(servers: Servers, name: str, port: int) -> bool:
    """Return whether a gorush has a connection to this port that it has not closed."""
    connections = psutil.Process(servers.fleet.running[name].pid).net_connections("tcp")
    return any(each.raddr and each.raddr.port == port for each in connections)


@pytest.mark.peers
@BOTH
def test_nothing_is_sent_and_all_is_retried_once_connections_to_apple_and_google_break(
    real_gorush: Server, servers: Servers, token_type: TokenType, tmp_path: Path
) -> None:
    """Connections are open and Google's access token is cached, so the error text differs from that after a start."""
    port = free_port()
    fakes = servers.fakes(port, tmp_path)
    server = servers.real(
        f"gorush-cut-off-{token_type}",
        authority=str(tmp_path / "ca.pem"),
        CORE_HTTP_PROXY=f"http://127.0.0.1:{port}",
        ANDROID_KEY_PATH=str(tmp_path / "google.json"),
    )
    assert send([server.url], new_push(token_type)).outcome is Outcome.DELIVERED
    servers.fleet.kill(fakes)
    wait_until(lambda: not is_connected(servers, f"gorush-cut-off-{token_type}", port), what="gorush notices")
    result = send([server.url], new_push(token_type))
    assert (result.outcome, result.code) == (Outcome.TRANSIENT, "provider_unreachable")


@pytest.mark.peers
def test_a_platform_that_gorush_has_disabled_is_a_matter_for_the_operator(
    real_gorush: Server, servers: Servers
) -> None:
    """The push is dropped, and the answer is that of a success except for the count."""
    server = servers.real("gorush-ios-only", ANDROID_ENABLED="false")
    push = new_push(ANDROID)
    body = b'{"notifications":[{"platform":2,"tokens":["%s"]}]}' % push.address
    assert server.ask("POST", "/api/push", body).body == {"counts": 0, "logs": [], "success": "ok"}
    result = send([server.url], push)
    assert (result.outcome, result.code) == (Outcome.CONFIG, "dropped")
    assert server.pushes_to(device_token(push), at_least=0) == []
    assert b"android:\n  enabled: false\n" in server.ask("GET", "/api/config").body
