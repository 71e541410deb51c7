"""The HTTP client of gorush."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import monotonic
from typing import Any

import aiohttp
from django.conf import settings

from kit.db.clock import clock
from kit.http import ERRORS, NEVER_SENT, BadAnswer, Connections, Peers, lasting_connections
from notifications.gateways.gorush.errors import UNKNOWN, ErrorRule, shipped_rules
from notifications.gateways.gorush.models import PAYLOADS_LEFT_OUT, current_rules, unknown_errors
from notifications.gateways.gorush.push_api import (
    as_dry_run,
    build_request,
    device_token,
    find_fault,
    fit,
    read_dry_run,
    read_response,
    rings,
)
from notifications.messages import CUT_OFF, TIMEOUT, UNREACHABLE, Outcome, Push, Result
from registrations.messages import platform_of, read_address

# Code of a result: the device's token for calls is dead.
DEAD_CALL_TOKEN = "dead_call_token"  # noqa: S105 - a label
JSON_HEADERS = {"Content-Type": "application/json"}


class GorushGateway:
    """A client that sends each push to the first gorush that can be reached. Servers that just failed are tried last.

    ``rules`` returns the present rules. It is called for every answer, and must read from memory only. A push to a
    device of ``dry_run_tokens`` goes as far as gorush, with the request to drop it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        connections: Connections,
        rules: Callable[[], Sequence[ErrorRule]] = shipped_rules,
        dry_run_tokens: Collection[str] = (),
    ) -> None:
        self._peers = Peers(urls)
        self._connections = connections
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
        notification, is_truncated = fit(push)
        if is_truncated:
            PAYLOADS_LEFT_OUT.labels(platform_of(push.app.token_type)).inc()
        if self._dry_run_tokens and device_token(push) in self._dry_run_tokens:
            result = read_dry_run(await self._post(as_dry_run(notification), push))
        else:
            result = await self._post(notification, push)
        if result.outcome is Outcome.DEAD and rings(push, read_address(push.address)):
            # Only the token for calls is dead. The next attempt goes to the usual token, as an alert.
            result = replace(result, outcome=Outcome.PAYLOAD, code=DEAD_CALL_TOKEN)
        if result.code == UNKNOWN.code:
            unknown_errors().note(push.app.token_type, result.error)
        return replace(result, latency_ms=round((monotonic() - started) * 1000))

    async def _post(self, notification: Mapping[str, Any], push: Push) -> Result:
        body = build_request(notification)
        unsent: list[Exception] = []
        for url in self._peers.in_order(monotonic()):
            began_at = clock.now()
            try:
                answer = await self._connections.request("POST", f"{url}/api/push", body=body, headers=JSON_HEADERS)
            except NEVER_SENT as error:
                self._peers.failed(url, monotonic())
                unsent.append(error)
                continue
            except ERRORS as error:
                self._peers.failed(url, monotonic())
                return Result(Outcome.AMBIGUOUS, _without_answer(error), began_at=began_at)
            self._peers.answered(url)
            retry_after = answer.headers.get("Retry-After", "")
            result = read_response(answer.status, answer.body, push, self._rules(), retry_after=retry_after)
            return replace(result, began_at=began_at)
        return _not_sent(unsent)


def _not_sent(errors: Sequence[Exception]) -> Result:
    """Return the result of a push that left no connection.

    A gorush that cannot be reached may come back, but an operator has to correct a wrong certificate.
    """
    if errors and all(isinstance(error, aiohttp.ClientSSLError) for error in errors):
        return Result(Outcome.CONFIG, "tls")
    return Result(Outcome.TRANSIENT, UNREACHABLE, is_unreached=True)


def _without_answer(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError | BadAnswer):  # the peer may give it every time
        return "not_http"
    return TIMEOUT if isinstance(error, TimeoutError) else CUT_OFF


def open_gateway() -> GorushGateway:
    """Return a client of the gorush servers of the settings."""
    connections = lasting_connections(silent_seconds=settings.GORUSH_TIMEOUT_SECONDS)
    rules, dry_run_tokens = (lambda: current_rules().rules), settings.CANARY_DRY_RUN_TOKENS
    return GorushGateway(settings.GORUSH_URLS, connections, rules, dry_run_tokens)
