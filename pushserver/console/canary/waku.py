"""The canary of Waku: a client of our own that registers, queries, notifies itself and unregisters every minute.

See docs/canary.md.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from kit.http import Connections
from notifications.models import Attempt, NotificationRequest
from pushserver.console.canary import engine
from pushserver.console.canary.engine import Canary, Chain, Diagnosis, Link, diagnose_push, milliseconds, wait_for
from pushserver.console.models import CanaryRun, WakuCause, WakuLink
from pushserver.console.notifications.removal import forget_keys, remove_requests
from pushserver.console.waku.erasure import lock_all_about
from registrations.messages import TokenType
from registrations.models import Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.client.core import Core, new_identity
from waku_bridge.client.events import Refused
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import CLOCK_SKEW_NS, RegistrationRefused, StoreReader
from waku_bridge.client.state import Address, Standing, new_state
from waku_bridge.codec import wire
from waku_bridge.dialect import NodeError
from waku_bridge.messages import BRIDGE
from waku_bridge.models import (
    CanaryEnvelope,
    EndedEnvelope,
    EndedReply,
    EnvelopeHash,
    InboundEnvelope,
    OpenEnvelope,
    OpenReply,
    OutboundReply,
)
from waku_bridge.node import WakuNode
from waku_bridge.query_topics import canary_identities, canary_identity, server_identities

EXCHANGES = 4
TIMEOUT_SECONDS = 5.0
WAITS_FOR = {
    InboundEnvelope.State.RECEIVED: "queue batches: it waits in the inbox",
    InboundEnvelope.State.POSTPONED: "queue batches: more comes than can be decided, and it is about no proven address",
    InboundEnvelope.State.PENDING_KEY: "queue keys: it waits for the key of its topic",
}
# Messages stay marked for this long, because a copy may come late from another node or from its relay cache.
MARKED_FOR = timedelta(hours=1)
NO_NODE = "WAKU_NODES is not set, and no embedded node is running. Start `manage.py up`."
T = TypeVar("T")
P = TypeVar("P")


# The chain ------------------------------------------------------------------------------------------------------------
def chain(run: CanaryRun) -> Chain:
    """Yield the links. The sender has no information about the phone but the server's answers."""
    client, server, message_id = canary_identity().pub33, next_server(run), os.urandom(32)
    phone, sender = _phone(server), _sender()
    with Line() as line:
        yield from line.exchange(phone, WakuLink.REGISTER, lambda: _is_accepted(phone, server))
        _note_pseudonym(run)

        sender.look_up(client)
        yield from line.exchange(sender, WakuLink.QUERY, lambda: sender.destinations(client))

        sender.notify(client, sender.one_to_one(), message_id)
        yield from line.exchange(sender, WakuLink.REQUEST, lambda: sender.result(client, message_id))
        # The sender may be answered before the gateway, so the answer is judged when the push is known to be fine.
        yield engine.gateway(attempts)
        yield Link(
            WakuLink.REQUEST_ANSWER,
            lambda: run.times[WakuLink.REQUEST_ANSWER],
            lambda: _why_not_notified(sender, client, message_id),
        )

        phone.unregister()
        yield from line.exchange(phone, WakuLink.UNREGISTER, lambda: _is_accepted(phone, server))


def next_server(run: CanaryRun) -> bytes:
    """Return the identity that this run addresses. While the server's key is changed, runs alternate between both."""
    identities, earlier = server_identities(), CanaryRun.objects.filter(network=run.network, pk__lt=run.pk)
    return identities[earlier.count() % len(identities)].pub33


def _phone(server: bytes) -> RegisteringClient:
    # An earlier run may have left a registration, so the version is above that of any earlier run.
    state = new_state(server, random_bytes=os.urandom, version=int(time.time() * 1000))
    phone = RegisteringClient(canary_identity(), state, os.urandom)
    phone.change(_address())
    return phone


def _address() -> Address:
    if not settings.CANARY_DEVICE_TOKEN:
        return Address(TokenType.APN, settings.CANARY_DRY_RUN_TOKENS[0], settings.CANARY_DRY_RUN_TOPIC)
    kind = TokenType.APN if settings.CANARY_APP_TOPIC else TokenType.FIREBASE
    return Address(kind, settings.CANARY_DEVICE_TOKEN, settings.CANARY_APP_TOPIC)


def _sender() -> SendingClient:
    identity, seconds = new_identity(os.urandom), engine.ANSWER_SECONDS
    return SendingClient(identity, os.urandom, answer_seconds=seconds, gather_seconds=0, fail_over=False)


def _is_accepted(phone: RegisteringClient, server: bytes) -> bool:
    slot = phone.standing(server)
    return slot is not None and slot.standing is Standing.ACCEPTED


def _why_not_notified(sender: SendingClient, client: bytes, message_id: bytes) -> Diagnosis | None:
    result = sender.result(client, message_id)
    failure = Diagnosis(WakuLink.REQUEST_ANSWER, WakuCause.WORKER, "the server reported a failure to the sender")
    return None if result and result.is_notified else failure


# Its messages ---------------------------------------------------------------------------------------------------------
class Line:
    """A connection to nodes and stores, which are used in order. It is synchronous, so the caller may read the database
    between two messages.

    ``error`` is the reason why no node or store answered the last time, or empty, and ``refusal`` the server's reason.
    """

    def __init__(self) -> None:
        self.published = b""  # the hash of the last message
        self.error = self.refusal = ""
        self._pubsub_topic = settings.WAKU_PUBSUB_TOPICS[0]
        self._runner = asyncio.Runner()
        self._connections = Connections(silent_seconds=TIMEOUT_SECONDS)
        self._nodes = [WakuNode(url, self._connections) for url in settings.WAKU_NODES]
        stores = [WakuNode(url, self._connections) for url in settings.WAKU_STORE_NODES]
        since_ns = time.time_ns() - CLOCK_SKEW_NS
        self._readers = [StoreReader(store, self._pubsub_topic, since_ns=since_ns) for store in stores]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._runner.run(self._connections.close())
        self._runner.close()

    def exchange(self, core: Core, question: WakuLink, is_answered: Callable[[], object]) -> Chain:
        """Yield the links of a question of the core and of its answer."""
        answer = WakuLink(f"{question}_answer")
        yield Link(question, lambda: self._publish(core), lambda: self._why_not_taken(question))
        yield Link(answer, lambda: self._receive(core, is_answered), lambda: self._why_not(answer, is_answered))

    def _publish(self, core: Core) -> int:
        began = time.monotonic()
        for message in core.tick(time.time_ns()).messages:
            # No store keeps an ephemeral message. Read from a store after its traces are removed, it would be new.
            own = replace(message, ephemeral=True)
            self.published = wire.message_hash(self._pubsub_topic, own)
            mark(self.published, now=timezone.now())
            self._ask(self._nodes, partial(WakuNode.publish, pubsub_topic=self._pubsub_topic, message=own))
            if self.error:
                break
        return milliseconds(time.monotonic() - began)

    def _why_not_taken(self, question: WakuLink) -> Diagnosis | None:
        return Diagnosis(question, WakuCause.NODE, self.error) if self.error else None

    def _receive(self, core: Core, is_answered: Callable[[], object]) -> int:
        """Wait for the answer. Messages of the core meanwhile are not sent, as the canary attempts nothing twice."""
        began, self.refusal = time.monotonic(), ""
        wait_for(lambda: self._read(core), lambda _: self.refusal or is_answered())
        return milliseconds(time.monotonic() - began)

    def _read(self, core: Core) -> None:
        topics_now = core.subscriptions()
        messages = self._ask(self._readers, lambda reader: reader.new(topics_now, now_ns=time.time_ns())) or []
        events = [event for message in messages for event in core.receive(message, time.time_ns()).events]
        for refused in (event for event in events if isinstance(event, Refused)):
            self.refusal = str(RegistrationRefused(refused.error, b""))

    def _why_not(self, answer: WakuLink, is_answered: Callable[[], object]) -> Diagnosis | None:
        if is_answered():
            return None
        if self.refusal:
            return Diagnosis(answer, WakuCause.WORKER, f"refused: {self.refusal}")
        found = diagnose(answer, self.published)
        is_unread = found.cause == WakuCause.REPLY and self.error
        return found._replace(detail=f"no store answers: {self.error}") if is_unread else found

    def _ask(self, peers: Iterable[P], question: Callable[[P], Coroutine[Any, Any, T]]) -> T | None:
        """Return the answer of the first peer that gives one."""
        refusals = []
        for peer in peers:
            try:
                answer = self._runner.run(question(peer))
            except NodeError as error:
                refusals.append(str(error))
            else:
                self.error = ""
                return answer
        self.error = "; ".join(refusals) or "no node is configured"
        return None


# Why an answer is missing ---------------------------------------------------------------------------------------------
# The facts are judged in the order of the chain, so that the diagnosis names the first fault and not its consequences.
def diagnose(answer: WakuLink, envelope_hash: bytes) -> Diagnosis:
    """Return why the question in this envelope has no answer, from how far it got in the tables."""
    envelope = InboundEnvelope.objects.filter(hash=envelope_hash).values_list("state", "reason").first()
    if envelope is None:
        return Diagnosis(answer, WakuCause.BRIDGE)
    state, reason = envelope
    if state in WAITS_FOR:
        return Diagnosis(answer, WakuCause.WORKER, WAITS_FOR[InboundEnvelope.State(state)])
    if reason or state != InboundEnvelope.State.PROCESSED:
        return Diagnosis(answer, WakuCause.WORKER, f"the envelope was {state}: {reason or 'no reason given'}")
    fault = diagnose_push(attempts()) if answer == WakuLink.REQUEST_ANSWER else None
    return fault or _diagnose_reply(answer, envelope_hash)


def _diagnose_reply(answer: WakuLink, envelope_hash: bytes) -> Diagnosis:
    state = OutboundReply.objects.filter(envelope_hash=envelope_hash).values_list("state", flat=True).first()
    if state is None:
        return Diagnosis(answer, WakuCause.WORKER, "no answer was written")
    if state == OutboundReply.State.PENDING:
        return Diagnosis(answer, WakuCause.REPLY, "no node takes it: it waits in the outbox")
    return Diagnosis(answer, WakuCause.REPLY, f"the answer is {state}, and no store has it")


# Its rows in the tables of real traffic -------------------------------------------------------------------------------
# They are found also after a process died: by the key hash of the canary's identity, which is always the same, and by
# the hashes of its messages, which are stored before the messages are published.
def mark(envelope_hash: bytes, *, now: datetime) -> None:
    """Store that this message is the canary's, before it is published."""
    CanaryEnvelope.objects.bulk_create([CanaryEnvelope(hash=envelope_hash, marked_at=now)], ignore_conflicts=True)


def attempts() -> QuerySet[Attempt]:
    """Return the attempts to push to the canary."""
    return Attempt.objects.filter(notification__public_key_hash=canary_identity().key_hash)


def _note_pseudonym(run: CanaryRun) -> None:
    """Keep the pseudonym of the registration's events with the run, because unregistering removes it."""
    rows = Registration.objects.filter(public_key_hash=canary_identity().key_hash, pseudonym__isnull=False)
    run.pseudonym = rows.values_list("pseudonym", flat=True).first()
    run.save(update_fields=["pseudonym"])


@transaction.atomic
def remove_traces(*, now: datetime) -> None:
    """Remove all traces of all runs. While a run is under way, only that run may call it.

    It first waits for workers that process one of the canary's envelopes: see `locks`.
    """
    marked = list(CanaryEnvelope.objects.values_list("hash", flat=True))
    OpenEnvelope.objects.filter(hash__in=marked).delete()
    envelopes = EndedEnvelope.objects.filter(hash__in=marked)
    asked = list(envelopes.filter(message_id__isnull=False).values_list("message_id", flat=True))
    envelopes.delete()
    EnvelopeHash.objects.filter(hash__in=marked).delete()
    for replies in (OpenReply, EndedReply):
        replies.objects.filter(envelope_hash__in=marked).delete()
    for key_hash in sorted({identity.key_hash for identity in canary_identities()}):
        lock_all_about(key_hash)
        _remove_registrations(key_hash)
        _remove_requests(NotificationRequest.objects.filter(notifications__public_key_hash=key_hash))
    # A request that was refused has no notification.
    _remove_requests(NotificationRequest.objects.filter(request_key__in=asked))
    forget_keys((BRIDGE, bytes(request_key)) for request_key in asked if request_key)
    CanaryEnvelope.objects.filter(marked_at__lt=now - MARKED_FOR).delete()


def _remove_requests(requests: QuerySet[NotificationRequest]) -> None:
    remove_requests(set(requests.values_list("pk", flat=True)))


def _remove_registrations(key_hash: bytes) -> None:
    """Remove the registrations with their routes and grants, and the events with their pseudonyms."""
    registrations = Registration.objects.filter(public_key_hash=key_hash)
    rows = list(registrations.values_list("route", "pseudonym"))
    runs = canary.rows().filter(pseudonym__isnull=False)
    own_pseudonyms = {pseudonym for _, pseudonym in rows} | set(runs.values_list("pseudonym", flat=True))
    pseudonyms = [pseudonym for pseudonym in own_pseudonyms if pseudonym]
    registrations.delete()
    Route.objects.filter(pk__in=[route for route, _ in rows if route]).delete()
    RegistrationEvent.objects.filter(pseudonym__in=pseudonyms).delete()
    runs.update(pseudonym=None)
    # Bridges get no notice: the topic is back within a minute, and each time they would backfill it as a new one.
    TopicKey.objects.filter(name=wire.query_name(key_hash)).delete()


def _longest() -> timedelta:
    peers = len(settings.WAKU_NODES) + len(settings.WAKU_STORE_NODES)
    return timedelta(seconds=(EXCHANGES + 1) * (engine.ANSWER_SECONDS + 2 * peers * TIMEOUT_SECONDS) + 60)


canary = Canary(
    network=CanaryRun.Network.WAKU,
    name="canary",
    chain=chain,
    remove_traces=lambda: remove_traces(now=timezone.now()),
    longest=_longest,
    is_expected=lambda: bool(settings.CANARY_PERIOD_SECONDS),
    missing=lambda: "" if settings.WAKU_NODES else NO_NODE,
    is_dry_run=lambda: not settings.CANARY_DEVICE_TOKEN,
)
