"""The HTTP client of gorush."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from time import monotonic

import httpx
import orjson
from django.conf import settings

from kit.db.clock import clock
from kit.http.connections import HttpClient, is_tls_wrong, lasting_client, was_never_sent
from kit.http.failover import Peers
from notifications.gateways.gorush.answers.errors import UNKNOWN, ErrorRule
from notifications.gateways.gorush.metrics import PAYLOADS_LEFT_OUT
from notifications.gateways.gorush.rules.file import shipped_rules
from notifications.gateways.gorush.rules.table import current_rules, unknown_errors
from notifications.gateways.gorush.sending.graded import fit, rings
from notifications.gateways.gorush.sending.push_api import (
    build_dry_run,
    build_request,
    device_token,
    find_fault,
    read_dry_run,
    read_response,
)
from notifications.messages import CUT_OFF, TIMEOUT, UNREACHABLE, Outcome, Push, Result
from registrations.routes.addresses import read_address
from registrations.token_types import platform_of

# Code of a result: the device's token for calls is dead.
DEAD_CALL_TOKEN = "dead_call_token"  # noqa: S105 - a label
# The connections of this process are all in use. That says nothing about gorush.
NO_CONNECTION = Result(Outcome.TRANSIENT, "no_connection", is_untried=True)
JSON_HEADERS = {"Content-Type": "application/json"}


class GorushGateway:
    """A client that sends each push to the first gorush that can be reached. Servers that just failed are tried last.

    ``rules`` returns the present rules. It is called for every answer, and must read from memory only. A push to a
    device of ``dry_run_tokens`` goes as far as gorush, with the request to drop it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        client: HttpClient,
        rules: Callable[[], Sequence[ErrorRule]] = shipped_rules,
        dry_run_tokens: Collection[str] = (),
    ) -> None:
        self._peers = Peers(urls)
        self._client = client
        self._rules = rules
        self._dry_run_tokens = dry_run_tokens

    def refresh(self, *, now: datetime) -> None:
        """Keep the error rules a few seconds old at most, and store the counts of unknown errors."""
        current_rules().refresh()
        unknown_errors().record(now=now)

    def find_fault(self, push: Push) -> Result | None:
        return find_fault(push)

    async def send(self, push: Push) -> Result:
        started = monotonic()
        if self._dry_run_tokens and device_token(push) in self._dry_run_tokens:
            result = read_dry_run(await self._post(build_dry_run(push), push))
        elif push.grade:
            result = await self._send_graded(push)
        else:
            result = await self._post(build_request(push), push)
        if result.code == UNKNOWN.code:
            unknown_errors().note(push.channel.token_type, result.error)
        return replace(result, latency_ms=round((monotonic() - started) * 1000))

    async def _send_graded(self, push: Push) -> Result:
        notification, is_truncated = fit(push)
        if is_truncated:
            PAYLOADS_LEFT_OUT.labels(platform_of(push.channel.token_type)).inc()
        result = await self._post(orjson.dumps({"notifications": [notification]}), push)
        if result.outcome is Outcome.DEAD and rings(push, read_address(push.address)):
            # Only the token for calls is dead. The next attempt goes to the usual token, as an alert.
            return replace(result, outcome=Outcome.PAYLOAD, code=DEAD_CALL_TOKEN)
        return result

    async def _post(self, body: bytes, push: Push) -> Result:
        unsent = []
        for url in self._peers.in_order(monotonic()):
            began_at = clock.now()
            try:
                response = await self._client.request("POST", f"{url}/api/push", content=body, headers=JSON_HEADERS)
            except httpx.PoolTimeout:
                return NO_CONNECTION
            except httpx.HTTPError as error:
                self._peers.failed(url, monotonic())
                if isinstance(error, httpx.TransportError) and was_never_sent(error):
                    unsent.append(error)
                    continue
                return Result(Outcome.AMBIGUOUS, _without_answer(error), began_at=began_at)
            self._peers.answered(url)
            retry_after = response.headers.get("Retry-After", "")
            rules = self._rules()
            result = read_response(response.status_code, response.content, push, rules, retry_after=retry_after)
            return replace(result, began_at=began_at)
        return _not_sent(unsent)


def _not_sent(errors: Sequence[httpx.TransportError]) -> Result:
    """Return the result of a push that left no connection.

    A gorush that cannot be reached may come back, but an operator has to correct a wrong certificate.
    """
    if errors and all(map(is_tls_wrong, errors)):
        return Result(Outcome.CONFIG, "tls")
    return Result(Outcome.TRANSIENT, UNREACHABLE, is_unreached=True)


def _without_answer(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.RemoteProtocolError):
        # Also for an answer that is too large or compressed: the peer may give it every time.
        return "not_http"
    return TIMEOUT if isinstance(error, httpx.TimeoutException) else CUT_OFF


def open_gateway() -> GorushGateway:
    """Return a client of the gorush servers of the settings."""
    client = lasting_client(timeout_seconds=settings.GORUSH_TIMEOUT_SECONDS)
    return GorushGateway(settings.GORUSH_URLS, client, lambda: current_rules().rules, settings.CANARY_DRY_RUN_TOKENS)
