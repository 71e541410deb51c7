"""Acceptance of pushes: `rules` decides about each push of a batch, and one transaction stores the batch.

No push is answered before the transaction commits. The workers deliver the stored pushes, also if this process dies.
A user's text is dropped here, unless the app passes texts on.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import time_ns
from uuid import UUID

from django.conf import settings
from django.db import transaction

from kit.db.base import fetch, write
from kit.telemetry import Role, count, step
from notifications.acceptance import storing
from notifications.acceptance.storing import Beyond, count_beyond
from notifications.messages import AppKey, Grade, app_key
from notifications.queues.capacity import own_admission
from notifications.queues.claim import Claim
from xmpp_bridge import rules, statements
from xmpp_bridge.identity import client_keys, verify_client, verify_node
from xmpp_bridge.limits import Limits
from xmpp_bridge.messages import BRIDGE, NOBODY, Dialect, Jid, PushNotification, parse_jid
from xmpp_bridge.metrics import FORWARDS_DROPPED, PUSHES
from xmpp_bridge.rules import Decision, Domains, KnownDevice, Verdict, time_to_live

# The local part of our address that a push was sent to is stored if it is no longer than this.
MAX_LOCAL_CHARACTERS = 64
# Limit of an encoded payload. A longer one fits into no push of Apple or Google, so it goes out as a wake-up at once.
MAX_CONTENT_BYTES = 5 * 1024
# A wake-up that expires within this time serves no later push, because a worker may close it before the merge.
STILL_WAITING = timedelta(minutes=1)


@dataclass(slots=True)
class Item:
    """One push of a batch, and the decision about it."""

    push: PushNotification
    sender: Jid
    decision: Decision
    device_id: UUID | None = None
    device: KnownDevice | None = None
    to_store: Claim | None = field(default=None, repr=False)


class Inbound:
    """Acceptance of pushes in the connected process, which keeps the limits from batch to batch."""

    def __init__(self, limits: Limits, domains: Domains) -> None:
        self._limits = limits
        self._domains = domains
        self._answered_from: datetime | None = None

    def connect(self) -> None:
        """Begin a connection. Answers to what was stored before may have been lost with the connection before it."""
        self._answered_from = None

    def accept(self, pushes: Sequence[PushNotification], *, now: datetime) -> list[Verdict]:
        """Store the pushes that are to be delivered, and return the verdict on each, in order.

        Raises the errors of the database. Nothing is stored or charged then.
        """
        began_ns = time_ns()
        self._answered_from = self._answered_from or now
        try:
            with transaction.atomic():
                items = self._decide_all(pushes, self._answered_from, now=now)
                _store(items, now=now)
        except BaseException:
            self._limits.take_back()
            self._answered_from = None  # a commit may have stored what its sender is told to repeat
            raise
        self._limits.keep()
        for key in (item.to_store.dedup_key for item in items if item.to_store):
            attributes = {"bridge": BRIDGE}
            step("accept", key, attributes, began_ns=began_ns, role=Role.CONSUMER, is_first=True)
        return [item.decision.verdict for item in items]

    def _decide_all(self, pushes: Sequence[PushNotification], answered_from: datetime, *, now: datetime) -> list[Item]:
        own_admission().refresh()
        items = [self._verify(push, now=now) for push in pushes]
        named = [(item, item.device_id, _key(item)) for item in items if item.device_id]
        ids = list({device_id for _, device_id, _ in named})
        times = {"today": now - timedelta(days=1), "still_at": now + STILL_WAITING}
        found = map(KnownDevice._make, fetch(statements.FIND_DEVICES, {"ids": ids, **times}) if ids else ())
        devices = {device.id: device for device in found}
        # What was stored since the first of these arrived may be one of them, if the answer to that commit was lost.
        answered = (answered_from, min((push.arrived_at or now for push in pushes), default=now))
        repeated = storing.find_repeated(BRIDGE, {key for _, _, key in named}, answered, now=now)
        for item, device_id, key in named:
            item.device = devices.get(device_id)
            item.decision = self._decide(item, is_repeated=key in repeated, now=now)
            if item.device and item.decision.due_at:
                item.to_store = _new_push(item, item.device, key, item.decision.due_at, now=now)
                repeated.add(key)
                own_admission().add(*_queue(item.device), is_proven=item.device.is_route_proven)
        return items

    def _verify(self, push: PushNotification, *, now: datetime) -> Item:
        sender = parse_jid(push.origin.sender) or NOBODY
        is_server = bool(sender.domain) and not sender.resource
        device_id = None
        if is_server and self._domains.serve(sender.domain):
            is_node = push.dialect is Dialect.XEP0357
            keys = client_keys()
            device_id = verify_node(push.node, push.secret, keys) if is_node else verify_client(push.client, keys)
        refusal = rules.verify(sender.domain, self._limits, is_server=is_server, is_ours=device_id is not None, now=now)
        return Item(push, sender, Decision(refusal or Verdict.UNKNOWN), None if refusal else device_id)

    def _decide(self, item: Item, *, is_repeated: bool, now: datetime) -> Decision:
        device = item.device
        is_full = device is not None and own_admission().is_full(*_queue(device), is_proven=device.is_route_proven)
        return rules.decide(
            item.push,
            item.sender.domain,
            device,
            self._limits,
            is_repeated=is_repeated,
            is_full=is_full,
            has_capacity=device is not None and device.waiting_count < settings.MAX_OPEN_PER_ROUTE,
            now=now,
        )


def _queue(device: KnownDevice) -> tuple[str, AppKey]:
    return device.gateway, app_key(device.token_type, device.app_topic)


def _key(item: Item) -> bytes:
    """Return the 32 bytes that identify a push when it is stored once more, because the answer to a commit was lost.

    A ciphertext has the same ones also when its sender repeats the stanza, because our answer was lost. Nothing else
    is doubled by that: a wake-up replaces the one before it, and no call is repeated in time.
    """
    push, origin = item.push, item.push.origin
    is_named = bool(push.payload and origin.id) and push.grade is not Grade.VOIP
    name = (origin.id, push.payload.text) if push.payload and is_named else (push.arrival,)
    parts = (origin.sender, origin.service, *name, str(item.device_id))
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(4) + part.encode() for part in parts)).digest()


def _new_push(item: Item, device: KnownDevice, key: bytes, due_at: datetime, *, now: datetime) -> Claim:
    push, has_payload = item.push, item.decision.has_payload
    grade = Grade.HIGH if push.grade is Grade.VOIP and device.is_apple and device.calls_as_alerts else push.grade
    content = rules.text_content(device, push.body)
    if push.payload:
        content = rules.payload_content(device, grade, push.payload)
    encoded = content.encode()
    return Claim(
        notification_id=0,
        attempt_number=1,
        app=app_key(device.token_type, device.app_topic),
        grade=grade.value,
        message=encoded if has_payload and len(encoded) <= MAX_CONTENT_BYTES else b"",
        wake=rules.wake_content(device, grade, is_truncated=has_payload).encode(),
        collapse_id="" if has_payload or grade is Grade.VOIP else _wake_id(device.tag, grade).hex(),
        created_at=now,
        expires_at=due_at + time_to_live(push.grade, has_payload=has_payload),
        due_at=due_at,
        unsent_since=due_at if due_at > now else push.arrived_at or now,
        route_id=device.route_id,
        route_generation=device.generation,
        gateway=device.gateway,
        installation_id=str(device.id),
        dedup_key=key,
        shortened_by=str(item.decision.beyond or ""),
    )


def _wake_id(tag: bytes, grade: Grade) -> bytes:
    """Return the collapse id of a device's wake-ups. Background wake-ups have one of their own."""
    return hashlib.sha256(tag + b"background").digest()[:8] if grade is Grade.LOW else tag


def _store(items: Sequence[Item], *, now: datetime) -> None:
    pushes = [(item.to_store, item.sender.domain.encode()) for item in items if item.to_store]
    storing.store_pushes(BRIDGE, pushes, now=now)
    served = {d.served_by: item.push.grade for item in items if (d := item.decision).served_by is not None}
    storing.prolong([(pk, now + time_to_live(grade, has_payload=False)) for pk, grade in served.items()])
    _note_use(items, now=now)
    count_beyond(_beyond(items), now=now)
    count(PUSHES, ((item.push.dialect.value, item.decision.verdict.value) for item in items))
    forwards = [item.device for item in items if item.push.is_forward and item.device]
    dropped = sum(not device.passes_texts for device in forwards)
    transaction.on_commit(lambda: FORWARDS_DROPPED.inc(dropped), robust=True)


def _beyond(items: Iterable[Item]) -> Iterator[Beyond]:
    """Yield the pushes beyond a limit. Their devices have no user key."""
    for item in items:
        if limit := item.decision.limit:
            yield Beyond(b"", str(item.device.id) if item.device else "", item.decision.effect, limit)


def _note_use(items: Iterable[Item], *, now: datetime) -> None:
    """Record that devices are pushed to, and the address from which their end is announced to the pushing server.

    Few rows lack either. A row that another session holds is skipped, and the next push records it.
    """
    newest: dict[UUID, str | None] = {}
    for device, address in ((item.device, _announced_from(item)) for item in items if item.to_store):
        if device and not (device.is_used_today and device.announced_from == address):
            newest[device.id] = address
    if newest:
        write(statements.NOTE_USE, {"now": now, "ids": list(newest), "froms": list(newest.values())})


def _announced_from(item: Item) -> str | None:
    """Return the local part of our address that a push was sent to, or None if its end cannot be announced."""
    service = parse_jid(item.push.origin.service)
    if item.push.dialect is Dialect.XEP0357 or item.sender.local or service is None or service.resource:
        return None
    return service.local if len(service.local) <= MAX_LOCAL_CHARACTERS else None
