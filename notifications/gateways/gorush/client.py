"""The HTTP client of gorush."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

import httpx
from django.conf import settings

from notifications.connections import HttpClient, is_tls_wrong, lasting_client, once, was_never_sent
from notifications.gateways.gorush.errors import UNKNOWN, ErrorRule
from notifications.gateways.gorush.request import Presentation, build_dry_run, build_request
from notifications.gateways.gorush.response import read_dry_run, read_response
from notifications.gateways.gorush.rules_file import shipped_rules
from notifications.gateways.gorush.rules_table import current_rules
from notifications.gateways.gorush.unknown_errors import unknown_errors
from notifications.messages import CUT_OFF, UNREACHABLE, Outcome, Push, Result
from notifications.peers import Peers

JSON_HEADERS = {"Content-Type": "application/json"}


class GorushGateway:
    """Sends pushes to the first gorush that can be reached: those that failed a moment ago are asked last.

    ``rules`` returns the rules of the moment; it is asked for every answer, and must not look further than the memory.
    A push to the device ``dry_run_token`` goes as far as gorush, which is told to drop it.
    """

    name = "gorush"

    def __init__(
        self,
        urls: Sequence[str],
        presentation: Presentation,
        client: HttpClient,
        rules: Callable[[], Sequence[ErrorRule]] = shipped_rules,
        dry_run_token: str = "",
    ) -> None:
        self._peers = Peers(urls)
        self._presentation = presentation
        self._client = client
        self._rules = rules
        self._dry_run_token = dry_run_token

    async def send(self, push: Push) -> Result:
        started = monotonic()
        if self._dry_run_token and push.device_token == self._dry_run_token:
            result = read_dry_run(await self._post(build_dry_run(push, self._presentation), push))
        else:
            result = await self._post(build_request(push, self._presentation), push)
        if result.code == UNKNOWN.code:
            unknown_errors().note(push.token_type, result.unknown_signature)
        return replace(result, latency_ms=round((monotonic() - started) * 1000))

    async def _post(self, body: bytes, push: Push) -> Result:
        unsent = []
        for url in self._peers.in_order(monotonic()):
            try:
                response = await self._client.request("POST", f"{url}/api/push", content=body, headers=JSON_HEADERS)
            except httpx.HTTPError as error:
                self._peers.failed(url, monotonic())
                if isinstance(error, httpx.TransportError) and was_never_sent(error):
                    unsent.append(error)
                    continue
                return Result(Outcome.AMBIGUOUS, _without_answer(error))
            self._peers.answered(url)
            retry_after = response.headers.get("Retry-After", "")
            rules = self._rules()
            return read_response(response.status_code, response.content, push, rules, retry_after=retry_after)
        return _not_sent(unsent)


def _not_sent(errors: Sequence[httpx.TransportError]) -> Result:
    """Who is not there may come back. What is wrong about a certificate, somebody has to put right."""
    if errors and all(map(is_tls_wrong, errors)):
        return Result(Outcome.CONFIG, "tls")
    return Result(Outcome.TRANSIENT, UNREACHABLE)


def _without_answer(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.RemoteProtocolError):
        return "not_http"  # or too large, or packed: an answer, and whoever gives it may give it every time
    return "timeout" if isinstance(error, httpx.TimeoutException) else CUT_OFF


def configured_gateway() -> GorushGateway:
    """The gorush of the settings, one per process, with error rules that are a few seconds old at most.

    Asked for once per batch, in a thread that may wait for the database: pushes themselves never do.
    """
    current_rules().refresh()
    return _gateway()


@once
def _gateway() -> GorushGateway:
    presentation = Presentation(
        settings.PUSH_TEXTS, settings.PUSH_DEEP_LINKS, settings.PUSH_SOUND, settings.PUSH_PRIORITY
    )
    client = lasting_client(timeout_seconds=settings.GORUSH_TIMEOUT_SECONDS)
    return GorushGateway(
        settings.GORUSH_URLS, presentation, client, lambda: current_rules().rules, settings.CANARY_DRY_RUN_TOKEN
    )
