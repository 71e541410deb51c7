import asyncio
import time

import aiohttp
import pytest

from embedded.gorush.gateway import Settings

IOS, ANDROID = 1, 2


def body(*tokens: str, platform: int = IOS, **fields: object) -> dict[str, object]:
    notification = {"platform": platform, "tokens": list(tokens), "message": "m", **fields}
    return {"notifications": [notification if platform == ANDROID else {"topic": "im.status", **notification}]}


async def push(client, *tokens: str, **fields: object) -> dict:
    reply = await client.post("/api/push", json=body(*tokens, **fields))
    assert reply.status == 200
    return await reply.json()


async def pushed(client) -> list[str]:
    return [each["token"] for each in (await (await client.get("/dev/pushes")).json())["pushes"]]


def test_a_delivered_push_is_ok_with_empty_logs(run):
    async def scenario(client):
        assert await push(client, "ok-1") == {"success": "ok", "counts": 2, "logs": []}
        assert await pushed(client) == ["ok-1"]

    run(scenario)


def test_a_refused_push_is_ok_with_an_entry(run):
    async def scenario(client):
        entry = {"type": "failed-push", "platform": "ios", "token": "dead-1", "message": "m", "error": "Unregistered"}
        assert (await push(client, "dead-1"))["logs"] == [entry]
        assert (await push(client, "dead-1", notif_id="7"))["logs"] == [entry | {"notif_id": "7"}]

    run(scenario)


def test_an_android_refusal_is_googles_human_text(run):
    async def scenario(client):
        (entry,) = (await push(client, "dead-1", platform=ANDROID))["logs"]
        assert (entry["platform"], entry["error"]) == ("android", "Requested entity was not found.")

    run(scenario)


def test_every_failed_token_of_a_request_has_its_entry(run):
    async def scenario(client):
        request = {
            "notifications": [
                *body("dead-1", "ok-1", "bad-1")["notifications"],
                *body("busy-1", platform=ANDROID)["notifications"],
            ]
        }
        reply = await (await client.post("/api/push", json=request)).json()
        assert ([each["token"] for each in reply["logs"]], reply["counts"]) == (["dead-1", "bad-1", "busy-1"], 5)
        assert sorted(await pushed(client)) == ["bad-1", "busy-1", "dead-1", "ok-1"]

    run(scenario)


@pytest.mark.parametrize(
    "request_body",
    [
        body("ok-1", platform=ANDROID, priority="urgent"),
        body("ok-1", platform=ANDROID, android={"priority": "urgent"}),
        body("ok-1", platform=ANDROID, topic="not a topic"),
        body("", platform=ANDROID),
        body(*["ok-1"] * 501, platform=ANDROID),
        body(platform=ANDROID),
    ],
)
def test_a_silently_dropped_notification_is_a_failed_task_and_never_sent(run, request_body):
    async def scenario(client):
        reply = await client.post("/api/push", json=request_body)
        assert (reply.status, (await reply.json())["logs"], await pushed(client)) == (200, [], [])
        statistics = await (await client.get("/api/stat/app")).json()
        assert (statistics["submitted_tasks"], statistics["failure_tasks"]) == (1, 1)

    run(scenario)


@pytest.mark.parametrize("platform", [0, 3, 9])
def test_a_platform_that_is_not_enabled_leaves_no_trace_at_all(run, platform):
    async def scenario(client):
        reply = await client.post("/api/push", json=body("ok-1", platform=platform))
        assert await reply.json() == {"success": "ok", "counts": 0, "logs": []}
        statistics = await (await client.get("/api/stat/app")).json()
        assert (statistics["submitted_tasks"], await pushed(client)) == (0, [])

    run(scenario)


@pytest.mark.parametrize("request_body", [body(), body(to="ok-1")])
def test_an_ios_notification_to_nobody_succeeds(run, request_body):
    async def scenario(client):
        reply = await client.post("/api/push", json=request_body)
        assert (reply.status, (await reply.json())["logs"], await pushed(client)) == (200, [], [])
        statistics = await (await client.get("/api/stat/app")).json()
        assert statistics["success_tasks"] == 1

    run(scenario)


def test_a_firebase_push_with_a_topic_is_broadcast_too(run):
    async def scenario(client):
        await push(client, "ok-1", platform=ANDROID, topic="im.status")
        listed = (await (await client.get("/dev/pushes")).json())["pushes"]
        assert [(each["token"], each["topic"]) for each in listed] == [("", "im.status"), ("ok-1", "")]

    run(scenario)


def test_a_payload_over_4096_bytes_is_refused_upstream(run):
    async def scenario(client):
        reply = await push(client, "ok-1", data={"encryptedMessage": "a" * 5000})
        assert [each["error"] for each in reply["logs"]] == ["PayloadTooLarge"]

    run(scenario)


@pytest.mark.parametrize(
    ("token", "fields", "error"),
    [
        ("", {}, "MissingDeviceToken"),
        ("ok-1", {"topic": ""}, "MissingTopic"),
        ("ok-1", {"collapse_id": "c" * 65}, "BadCollapseId"),
    ],
)
def test_apple_refuses_a_faulty_request(run, token, fields, error):
    async def scenario(client):
        assert [each["error"] for each in (await push(client, token, **fields))["logs"]] == [error]

    run(scenario)


@pytest.mark.parametrize("collapse", [{"collapse_id": "c"}, {"platform": ANDROID, "android": {"collapse_key": "c"}}])
def test_a_flaky_token_fails_per_notification_and_is_delivered_then(run, collapse):
    async def scenario(client):
        failures = [len((await push(client, "flaky2-x", notif_id=str(n), **collapse))["logs"]) for n in range(4)]
        assert failures == [1, 1, 0, 0]

    run(scenario)


def test_a_flaky_token_starts_over_for_another_notification(run):
    async def scenario(client):
        failures = [len((await push(client, "flaky1-x", collapse_id=name))["logs"]) for name in "abab"]
        assert failures == [1, 1, 0, 0]

    run(scenario)


def test_a_slow_token_takes_its_time(run):
    async def scenario(client):
        started = time.monotonic()
        assert len((await push(client, "slow60-dead-1"))["logs"]) == 1
        assert time.monotonic() - started >= 0.06

    run(scenario)


def test_a_slow_push_is_delivered_although_the_caller_hung_up(run):
    async def scenario(client):
        with pytest.raises(asyncio.TimeoutError):
            await client.post("/api/push", json=body("slow500-x"), timeout=aiohttp.ClientTimeout(total=0.2))
        assert await pushed(client) == []
        async with asyncio.timeout(5):
            while not await pushed(client):  # noqa: ASYNC110 -- the server has no event for it
                await asyncio.sleep(0.02)

    run(scenario)


def test_a_hanging_token_is_never_answered_and_never_sent(run):
    async def scenario(client):
        with pytest.raises(asyncio.TimeoutError):
            await client.post("/api/push", json=body("hang-1"), timeout=aiohttp.ClientTimeout(total=0.1))
        assert await pushed(client) == []

    run(scenario)


def test_a_cut_token_is_sent_without_an_answer(run):
    async def scenario(client):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.post("/api/push", json=body("cut-1"))
        assert await pushed(client) == ["cut-1"]

    run(scenario)


def test_a_500_token_gets_an_empty_500_and_is_never_sent(run):
    async def scenario(client):
        reply = await client.post("/api/push", json=body("500-1"))
        assert (reply.status, await reply.read(), await pushed(client)) == (500, b"", [])

    run(scenario)


def test_a_garbage_token_gets_something_that_is_not_json(run):
    async def scenario(client):
        reply = await client.post("/api/push", json=body("garbage-1"))
        assert (reply.status, (await reply.text())[:1], await pushed(client)) == (200, "<", [])

    run(scenario)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ({}, "Missing notifications field."),
        (body("ok-1", platform="1"), "Missing notifications field."),
        ({"notifications": []}, "Notifications field is empty."),
        ({"notifications": [{}] * 101}, "Number of notifications(101) over limit(100)"),
    ],
)
def test_a_bad_request_gets_400_and_gorushs_text(run, request_body, message):
    async def scenario(client):
        reply = await client.post("/api/push", json=request_body)
        assert (reply.status, await reply.json()) == (400, {"code": 400, "message": message})

    run(scenario)


def test_the_content_type_of_a_request_does_not_matter(run):
    async def scenario(client):
        data = b'{"notifications": [{"platform": 1, "tokens": ["ok-1"], "topic": "im.status"}]}'
        assert (await client.post("/api/push", data=data)).status == 200

    run(scenario)


@pytest.mark.parametrize(
    ("hide_token", "shown"), [(False, "dead-0123456789abcdefgh"), (True, "*" * 10 + "567" + "*" * 10)]
)
def test_tokens_are_masked_by_the_setting(run, hide_token, shown):
    async def scenario(client):
        (entry,) = (await push(client, "dead-0123456789abcdefgh"))["logs"]
        assert entry["token"] == shown

    run(scenario, Settings(hide_token=hide_token))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "//api/push", 404),
        ("GET", "/api/push", 404),
        ("GET", "/nothing", 404),
        ("GET", "/", 200),
        ("HEAD", "/", 404),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/version", 200),
        ("GET", "/api/stat/app", 200),
        ("GET", "/api/config", 200),
    ],
)
def test_every_answer_carries_the_version(run, method, path, status):
    async def scenario(client):
        url = f"http://{client.host}:{client.port}{path}"
        async with client.session.request(method, url, allow_redirects=False) as reply:
            assert reply.status == status
            assert reply.headers["X-GORUSH-VERSION"].startswith("v1.22.0")

    run(scenario)


def test_a_redirected_push_arrives(run):
    async def scenario(client):
        redirect = await client.post("/api/push/", allow_redirects=False)
        assert (redirect.status, redirect.headers["Location"]) == (307, "/api/push")
        assert "X-GORUSH-VERSION" not in redirect.headers
        reply = await client.post("/api/push/", json=body("ok-1"))
        assert (reply.status, await pushed(client)) == (200, ["ok-1"])

    run(scenario)


def test_statistics_count_successes_and_errors_per_platform(run):
    async def scenario(client):
        for token in ("ok-1", "dead-1", "dead-2"):
            await push(client, token)
        await push(client, "ok-1", platform=ANDROID)
        statistics = await (await client.get("/api/stat/app")).json()
        assert statistics["ios"] == {"push_success": 1, "push_error": 2}
        assert statistics["android"] == {"push_success": 1, "push_error": 0}
        assert statistics["total_count"] == 7  # the topics of iOS count, too

    run(scenario)


@pytest.mark.parametrize("hide_token", [True, False])
def test_the_configuration_is_shown_without_secrets(run, hide_token):
    async def scenario(client):
        text = await (await client.get("/api/config")).text()
        assert f"hide_token: {str(hide_token).lower()}" in text
        assert "[REDACTED]" in text

    run(scenario, Settings(hide_token=hide_token))
