"""The stages that ``bench.path`` measures, on the real use cases. Imported once Django is set up."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

from coincurve import PrivateKey
from django.conf import settings
from django.utils import timezone

from notifications import delivery
from notifications.connections import lasting_client
from notifications.gateways.gorush.client import configured_gateway
from notifications.messages import NotificationType, PushNotification, PushRequest
from registrations.messages import RegistrationMessage, TokenType
from waku_bridge import inbound, inbox, outbound
from waku_bridge.codec.envelope import Identity, encode_registration, encode_request
from waku_bridge.codec.grants import sign_grant
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.identity import server_identity
from waku_bridge.inbox import Envelope
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

T = TypeVar("T")
LEASE = timedelta(seconds=120)


class Stages:
    """A server with registered clients, and requests to them, at each step of their way."""

    def __init__(self, *, clients: int, requests: int, batch: int, topic: str) -> None:
        self._batch = batch
        self._topic = topic
        self._sender = Identity(PrivateKey(os.urandom(32)))
        self._notifications = [self._register() for _ in range(clients)]
        envelopes = (self._request(number) for number in range(requests))
        self._incoming = [Envelope(message_hash(topic, message), topic, message) for message in envelopes]
        self._hashes: list[bytes] = []
        self._processed: list[inbound.Processed] = []
        self._tried: list[set[int]] = []
        self._reply_ids: list[int] = []
        self._nodes = outbound.Nodes([WakuNode(settings.WAKU_NODES[0], lasting_client(timeout_seconds=10))])

    def all(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "inbox", self._store
        yield "decode and decide", self._process
        yield "gorush", self._deliver
        yield "encode replies", self._answer
        yield "publish", self._publish

    def _register(self) -> PushNotification:
        """Store one registration, and return what a sender would ask for it."""
        client, server = Identity(PrivateKey(os.urandom(32))), server_identity().pub33
        installation_id, access_token = str(uuid4()), str(uuid4())
        registration = RegistrationMessage(
            installation_id,
            1,
            TokenType.FIREBASE,
            "t" * 163,
            access_token=access_token,
            grant=sign_grant(client.private_key, server, access_token),
            enabled=True,
        )
        message = encode_registration(
            registration, identity=client, server=server, timestamp_ns=time.time_ns(), random_bytes=os.urandom
        ).message
        self._say(message)
        return PushNotification(client.key_hash, installation_id, access_token, NotificationType.MESSAGE)

    def _say(self, message: WakuMessage) -> None:
        envelope = Envelope(message_hash(self._topic, message), self._topic, message)
        inbound.process(inbox.store([envelope], source="bench", now=timezone.now()), now=timezone.now())

    def _request(self, number: int) -> WakuMessage:
        notification = self._notifications[number % len(self._notifications)]
        return encode_request(
            PushRequest(os.urandom(32), (notification,)),
            signer=self._sender,
            server=server_identity().pub33,
            timestamp_ns=time.time_ns(),
            random_bytes=os.urandom,
        ).message

    def _store(self) -> None:
        for batch in _batches(self._incoming, self._batch):
            self._hashes += inbox.store(batch, source="bench", now=timezone.now())

    def _process(self) -> None:
        for batch in _batches(self._hashes, self._batch):
            self._processed.append(inbound.process(batch, now=timezone.now()))

    def _deliver(self) -> None:
        notification_ids = [pk for processed in self._processed for pk in processed.notification_ids]
        for batch in _batches(notification_ids, delivery.BATCH_SIZE):
            self._tried += delivery.deliver(batch, configured_gateway(), lease=LEASE)

    def _answer(self) -> None:
        for request_ids in self._tried:
            self._reply_ids += outbound.answer_requests(request_ids, now=timezone.now())

    def _publish(self) -> None:
        for batch in _batches(self._reply_ids, outbound.BATCH_SIZE):
            outbound.publish(batch, self._nodes, now=timezone.now())


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
