"""The links of the canary: register, query, notify and unregister, each with its duration."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from pushserver.console.canary.engine import (
    ANSWER_SECONDS,
    POLL_SECONDS,
    Canary,
    ChainBroken,
    Diagnosis,
    Links,
    milliseconds,
    wait_for,
)
from pushserver.console.canary.push import find_push
from pushserver.console.canary.waku import traces
from pushserver.console.canary.waku.diagnosis import Cause, Link, diagnose, diagnose_push
from pushserver.console.canary.waku.line import TIMEOUT_SECONDS, Line
from pushserver.console.waku.models import CanaryRun
from registrations.messages import TokenType
from waku_bridge.client.core import Core, new_identity
from waku_bridge.client.events import Refused
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import RegistrationRefused
from waku_bridge.client.state import Address, Standing, new_state
from waku_bridge.dialect import NodeError
from waku_bridge.messages import WakuMessage
from waku_bridge.query_topics import canary_identity, server_identities

EXCHANGES = 4
# The pause between two polls for an answer, once it has taken longer than `LONG_AFTER_SECONDS`.
LONG_POLL_SECONDS = 0.25
LONG_AFTER_SECONDS = 2.0


class WakuCanary(Canary[CanaryRun]):
    name = "canary"

    def rows(self) -> QuerySet[CanaryRun]:
        return CanaryRun.objects.all()

    def links(self, run: CanaryRun) -> Links:
        with Line(
            settings.WAKU_NODES,
            settings.WAKU_STORE_NODES,
            settings.WAKU_PUBSUB_TOPICS[0],
            lambda envelope_hash: traces.mark(envelope_hash, now=timezone.now()),
        ) as line:
            yield from walk(Talk(line, ANSWER_SECONDS), run)

    def remove_traces(self) -> None:
        traces.remove_traces(now=timezone.now())

    def longest(self) -> timedelta:
        peers = len(settings.WAKU_NODES) + len(settings.WAKU_STORE_NODES)
        seconds = (EXCHANGES + 1) * (ANSWER_SECONDS + 2 * peers * TIMEOUT_SECONDS) + 60
        return timedelta(seconds=seconds)

    def is_expected(self) -> bool:
        return bool(settings.CANARY_PERIOD_SECONDS)

    def begin(self) -> dict[str, Any]:
        return {"is_dry_run": not settings.CANARY_DEVICE_TOKEN}


@dataclass(slots=True)
class Talk:
    """Exchange of messages with the server. Each method returns its duration in milliseconds or raises ChainBroken."""

    line: Line
    timeout_seconds: float

    def publish(self, core: Core, question: Link) -> int:
        """Publish the messages of the core."""
        began = monotonic()
        try:
            for message in core.tick(time.time_ns()).messages:
                self.line.publish(_ephemeral(message))
        except NodeError as error:
            raise ChainBroken(Diagnosis(question, Cause.NODE, str(error))) from error
        return milliseconds(monotonic() - began)

    def wait_for_answer(self, core: Core, answer: Link, is_answered: Callable[[], bool]) -> int:
        """Wait for the answer. Messages of the core meanwhile are not sent, as the canary attempts nothing twice."""
        began = monotonic()
        refused: list[Refused] = []
        while not is_answered():
            waited = monotonic() - began
            if refused or waited > self.timeout_seconds:
                raise ChainBroken(self._why(answer, refused))
            time.sleep(POLL_SECONDS if waited < LONG_AFTER_SECONDS else LONG_POLL_SECONDS)
            events = [event for m in self.line.receive(core) for event in core.receive(m, time.time_ns()).events]
            refused = [event for event in events if isinstance(event, Refused)]
        return milliseconds(monotonic() - began)

    def _why(self, answer: Link, refused: list[Refused]) -> Diagnosis:
        if refused:
            return Diagnosis(answer, Cause.WORKER, f"refused: {RegistrationRefused(refused[0].error, b'')}")
        found = diagnose(answer, traces.find(self.line.published[-1]))
        is_unread = found.cause == Cause.REPLY and self.line.store_error
        return replace(found, detail=f"no store answers: {self.line.store_error}") if is_unread else found

    def wait_for_gateway(self) -> int:
        """Wait for the answer of the gateway, because the sender may be answered before that."""
        push = wait_for(lambda: find_push(traces.attempts()), lambda found: found.outcome, seconds=self.timeout_seconds)
        if trouble := diagnose_push(push):
            raise ChainBroken(trouble)
        return push.latency_ms or 0


def walk(talk: Talk, run: CanaryRun) -> Links:
    """Walk the chain. The sender has no information about the phone but the server's answers."""
    client, server, message_id = canary_identity().pub33, _next_server(run), os.urandom(32)
    phone, sender = _phone(server), _sender(talk.timeout_seconds)

    yield Link.REGISTER, talk.publish(phone, Link.REGISTER)
    yield Link.REGISTER_ANSWER, talk.wait_for_answer(phone, Link.REGISTER_ANSWER, lambda: _is_accepted(phone, server))
    traces.note_pseudonym(run)

    sender.look_up(client)
    yield Link.QUERY, talk.publish(sender, Link.QUERY)
    yield Link.QUERY_ANSWER, talk.wait_for_answer(sender, Link.QUERY_ANSWER, lambda: bool(sender.destinations(client)))

    sender.notify(client, sender.one_to_one(), message_id)
    yield Link.REQUEST, talk.publish(sender, Link.REQUEST)
    is_answered = lambda: sender.result(client, message_id) is not None  # noqa: E731
    yield Link.REQUEST_ANSWER, talk.wait_for_answer(sender, Link.REQUEST_ANSWER, is_answered)
    yield Link.GATEWAY, talk.wait_for_gateway()
    notified = sender.result(client, message_id)
    if notified is None or not notified.is_notified:
        raise ChainBroken(Diagnosis(Link.REQUEST_ANSWER, Cause.WORKER, "the server reported a failure to the sender"))

    phone.unregister()
    yield Link.UNREGISTER, talk.publish(phone, Link.UNREGISTER)
    yield (
        Link.UNREGISTER_ANSWER,
        talk.wait_for_answer(phone, Link.UNREGISTER_ANSWER, lambda: _is_accepted(phone, server)),
    )


def _phone(server: bytes) -> RegisteringClient:
    # An earlier run may have left a registration, so the version is above that of any earlier run.
    state = new_state(server, random_bytes=os.urandom, version=int(time.time() * 1000))
    phone = RegisteringClient(canary_identity(), state, os.urandom)
    phone.change(_address())
    return phone


def _sender(timeout_seconds: float) -> SendingClient:
    identity = new_identity(os.urandom)
    return SendingClient(identity, os.urandom, answer_seconds=timeout_seconds, gather_seconds=0, fail_over=False)


def _is_accepted(phone: RegisteringClient, server: bytes) -> bool:
    slot = phone.standing(server)
    return slot is not None and slot.standing is Standing.ACCEPTED


def _next_server(run: CanaryRun) -> bytes:
    """Return the identity that this run addresses. While the server's key is changed, runs alternate between both."""
    identities = server_identities()
    return identities[run.pk % len(identities)].pub33


def _address() -> Address:
    if not settings.CANARY_DEVICE_TOKEN:
        return Address(TokenType.APN, settings.CANARY_DRY_RUN_TOKENS[0], settings.CANARY_DRY_RUN_TOPIC)
    kind = TokenType.APN if settings.CANARY_APP_TOPIC else TokenType.FIREBASE
    return Address(kind, settings.CANARY_DEVICE_TOKEN, settings.CANARY_APP_TOPIC)


def _ephemeral(message: WakuMessage) -> WakuMessage:
    """Return the message as ephemeral, so that no store keeps it.

    Read from a store after its traces are removed, it would count as new.
    """
    return replace(message, ephemeral=True)
