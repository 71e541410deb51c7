"""Tests of the client with one and several gorushes, on loopback, failing as real ones."""

import asyncio
import gzip
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from django.utils import timezone

from kit.http import Connections
from notifications.gateways.gorush.client import GorushGateway
from notifications.gateways.gorush.errors import ErrorRule
from notifications.gateways.gorush.models import UnknownGatewayError, unknown_errors
from notifications.gateways.gorush.push_api import device_token
from notifications.gateways.gorush.tests.test_request import APPLE
from notifications.messages import Content, Grade, Outcome
from tests.rig.peers import app_of
from tests.rig.providers.certificates import serve_as

OK = {"success": "ok", "counts": 1, "logs": []}
# As the XMPP bridge sends them.
GRADED = replace(APPLE, grade=Grade.NORMAL, message=b"", wake=Content("Canary", "default", {"k": "wake"}).encode())


def sent_all(handlers, *pushes, timeout_seconds=5.0, **options):
    """Send these pushes to gorushes with these handlers, one push after the other.

    None is a gorush that does not listen.
    """

    async def main():
        async with AsyncExitStack() as running:
            connections = await running.enter_async_context(Connections(silent_seconds=timeout_seconds))
            servers = [TestServer(app_of(handler)) for handler in handlers if handler]
            started = iter([await running.enter_async_context(server) for server in servers])
            ports = [next(started).port if handler else unused_port() for handler in handlers]
            gateway = GorushGateway([f"http://127.0.0.1:{port}" for port in ports], connections, **options)
            return [await gateway.send(push) for push in pushes]

    return asyncio.run(main())


def sent(*handlers):
    [result] = sent_all(handlers, APPLE)
    return result


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        (httpx.Response(200, json=OK | {"counts": 0}), Outcome.DELIVERED, "dry_run"),
        (httpx.Response(200, json=OK), Outcome.DELIVERED, "dry_run"),
        (httpx.Response(200, text="a proxy's page"), Outcome.AMBIGUOUS, "not_json"),
        (httpx.Response(401), Outcome.CONFIG, "http_401"),
    ],
)
@pytest.mark.parametrize("push", [APPLE, GRADED], ids=["status", "graded"])
def test_a_dry_run_succeeds_when_gorush_takes_it_for_no_platform(push, answer, outcome, code):
    bodies = []

    def handler(request):
        bodies.append(json.loads(request.content)["notifications"][0])
        return answer

    [result] = sent_all([handler], push, dry_run_tokens=["old-token", "device-token"])
    assert (result.outcome, result.code) == (outcome, code)
    assert [(body["platform"], "topic" in body) for body in bodies] == [(0, False)]


@pytest.mark.parametrize(
    ("error", "code", "asked"),
    [
        (None, "", ["two", "two", "two"]),
        (httpx.ReadTimeout("slow"), "timeout", ["one", "two", "two"]),
        (httpx.ReadError("cut off"), "cut_off", ["one", "two", "two"]),
    ],
)
def test_a_gorush_that_fails_is_avoided_and_no_other_gets_what_it_may_be_sending(error, code, asked):
    seen = []

    def broken(_request):
        seen.append("one")
        raise error

    def working(_request):
        seen.append("two")
        return httpx.Response(200, json=OK)

    first, *others = sent_all([error and broken, working], *[APPLE] * 3, timeout_seconds=0.5)
    assert (first.outcome, first.code) == (Outcome.AMBIGUOUS if code else Outcome.DELIVERED, code)
    assert ([result.outcome for result in others], seen) == ([Outcome.DELIVERED] * 2, asked)


def test_a_server_error_is_answered_by_the_first_and_not_tried_at_the_second():
    asked = []

    def handler(request):
        asked.append(request)
        return httpx.Response(503, headers={"Retry-After": "30"})

    result = sent(handler, handler)
    assert (result.outcome, result.retry_after_seconds, len(asked)) == (Outcome.TRANSIENT, 30, 1)


@pytest.mark.parametrize("handlers", [(), (None, None)])
def test_a_push_without_a_connection_to_gorush_is_tried_again_later(handlers):
    result = sent(*handlers)
    assert (result.outcome, result.code) == (Outcome.TRANSIENT, "unreachable")
    assert (result.is_unreached, result.is_untried) == (True, False)


def test_each_answer_is_read_by_the_present_rules():
    rules = [(), (ErrorRule("gone", Outcome.DEAD, "teapot"),)]

    def handler(_request):
        return httpx.Response(200, json=OK | {"logs": [{"error": "Teapot"}]})

    results = sent_all([handler], APPLE, APPLE, rules=lambda: rules.pop(0))
    assert [result.code for result in results] == ["unknown", "gone"]


@pytest.mark.django_db
def test_an_unknown_error_is_counted_without_the_device_token():
    unknown_errors().record(now=timezone.now())  # counts of earlier tests
    error = f"Teapot for {device_token(APPLE)} after 17 s"
    sent(lambda _request: httpx.Response(200, json=OK | {"logs": [{"error": error}]}))
    unknown_errors().record(now=timezone.now())
    row = UnknownGatewayError.objects.get(signature__startswith="teapot")
    assert (row.platform, row.signature, row.count) == ("ios", "teapot for <token> after <n> s", 1)


# Over real sockets ----------------------------------------------------------------------------------------------------


def sent_to(handler, timeout_seconds):
    """Send to an aiohttp server with the client of production. Return the result and the number of requests."""
    seen = []

    async def counted(request):
        seen.append(await request.read())
        return await handler(request)

    async def main():
        app = web.Application()
        app.router.add_post("/api/push", counted)
        async with TestServer(app) as server, Connections(silent_seconds=timeout_seconds) as client:
            return await GorushGateway([f"http://127.0.0.1:{server.port}"], client).send(APPLE)

    return asyncio.run(main()), len(seen)


@pytest.mark.parametrize(
    ("others", "outcome", "code"),
    [
        ((), Outcome.CONFIG, "tls"),
        (("http://127.0.0.1:{closed}",), Outcome.TRANSIENT, "unreachable"),
        (("http://127.0.0.1:{plain}",), Outcome.DELIVERED, ""),
        (("https://127.0.0.1:{plain}",), Outcome.CONFIG, "tls"),
    ],
)
def test_a_gorush_without_a_valid_certificate_gets_no_push(tmp_path, others, outcome, code):
    """An operator has to act, unless another server takes the push or may be back soon."""

    async def main():
        app = web.Application()
        app.router.add_post("/api/push", answer_ok)
        untrusted = TestServer(app, scheme="https")
        await untrusted.start_server(ssl=serve_as(["127.0.0.1"], tmp_path))
        async with TestServer(app) as plain, Connections(silent_seconds=5) as client:
            names = {"closed": unused_port(), "plain": plain.port}
            urls = [f"https://127.0.0.1:{untrusted.port}", *(url.format(**names) for url in others)]
            result = await GorushGateway(urls, client).send(APPLE)
        await untrusted.close()
        return result

    result = asyncio.run(main())
    assert (result.outcome, result.code) == (outcome, code)


async def answer_ok(_request):
    return web.json_response(OK)


async def close_after_reading(request):
    request.transport.close()
    return web.Response()


async def close_within_the_answer(request):
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"success":"ok"')
    request.transport.close()
    return response


async def answer_too_late(_request):
    await asyncio.sleep(1)
    return web.json_response(OK)


async def answer_nonsense(request):
    request.transport.write(b"this is no HTTP at all\r\n\r\n")
    request.transport.close()
    return web.Response()


async def answer_twenty_megabytes(_request):
    return web.Response(body=b'{"success":"ok","logs":[]' + b" " * 20_000_000 + b"}", content_type="application/json")


async def redirect(request):
    return web.Response(status=307, headers={"Location": str(request.url)})


async def answer_packed(_request):
    return web.Response(body=gzip.compress(json.dumps(OK).encode()), headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    ("handler", "timeout_seconds", "outcome", "code"),
    [
        (close_after_reading, 5.0, Outcome.AMBIGUOUS, "cut_off"),
        (close_within_the_answer, 5.0, Outcome.AMBIGUOUS, "cut_off"),
        (answer_nonsense, 5.0, Outcome.AMBIGUOUS, "not_http"),
        (answer_twenty_megabytes, 5.0, Outcome.AMBIGUOUS, "not_http"),
        (answer_packed, 5.0, Outcome.AMBIGUOUS, "not_http"),
        (answer_too_late, 0.2, Outcome.AMBIGUOUS, "timeout"),
        (redirect, 5.0, Outcome.CONFIG, "http_307"),
    ],
)
def test_a_push_is_sent_once_also_when_the_connection_breaks_after_sending(handler, timeout_seconds, outcome, code):
    result, seen = sent_to(handler, timeout_seconds)
    assert (result.outcome, result.code, seen) == (outcome, code, 1)
