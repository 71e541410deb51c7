"""Faults of a whole gorush, rather than of one push."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embedded.servers.ports import free_port
from notifications.gateways.gorush.sending.push_api import device_token
from notifications.messages import Outcome
from registrations.messages import TokenType
from tests.rig.peers import Server, Servers, new_push, send

IOS, ANDROID = TokenType.APN, TokenType.FIREBASE
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
    (entry,) = hiding.ask("POST", "/api/push", json.dumps({"notifications": [body]}).encode()).body["logs"]
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
def test_a_full_queue_never_answers_and_never_sends(real_gorush: Server, servers: Servers) -> None:
    found = overflow(servers.real("gorush-small", **SMALL))
    assert set(found) == {(Outcome.DELIVERED, "", 1), (Outcome.AMBIGUOUS, "timeout", 0)}


@pytest.mark.peers
def test_a_full_queue_without_sync_answers_500_and_never_sends(real_gorush: Server, servers: Servers) -> None:
    found = overflow(servers.real("gorush-async", CORE_SYNC="false", **SMALL))
    assert (Outcome.TRANSIENT, "http_500", 0) in found
    # The others were accepted, and without sync gorush reports nothing more. This is why the config check requires
    # sync.
    assert {outcome for outcome, _, _ in found} == {Outcome.TRANSIENT, Outcome.DELIVERED}


@pytest.mark.peers
@BOTH
def test_without_the_authority_of_their_certificates_the_operator_is_asked(
    real_gorush: Server, servers: Servers, token_type: TokenType
) -> None:
    server = servers.real(f"gorush-distrustful-{token_type}", authority="/dev/null")
    result = send([server.url], new_push(token_type))
    assert (result.outcome, result.code) == (Outcome.CONFIG, "tls")


@pytest.mark.peers
def test_a_revoked_service_account_is_a_matter_for_the_operator(real_gorush: Server, servers: Servers) -> None:
    server = servers.real("gorush-revoked", ANDROID_KEY_PATH=str(servers.fleet.folder / "revoked.json"))
    result = send([server.url], new_push(ANDROID))
    assert (result.outcome, result.code) == (Outcome.CONFIG, "service_account")


@pytest.mark.peers
@BOTH
def test_nothing_is_sent_and_all_is_retried_while_apple_and_google_are_unreachable(
    real_gorush: Server, servers: Servers, token_type: TokenType
) -> None:
    server = servers.real(f"gorush-offline-{token_type}", CORE_HTTP_PROXY=f"http://127.0.0.1:{free_port()}")
    assert send([server.url], new_push(token_type)).outcome is Outcome.TRANSIENT


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
