"""Phones that are registered and notified, for benchmarks. Everything is sealed before a clock starts."""

import os
import time
from typing import Any
from uuid import uuid4

from coincurve import PrivateKey

from bench.running.servers import SERVER_KEY
from notifications.messages import NotificationType, PushNotification, PushRequest
from registrations.messages import RegistrationMessage, TokenType
from waku_bridge.codec.envelope import encode
from waku_bridge.codec.keys import Identity, sign_grant
from waku_bridge.messages import WakuMessage

SERVER = PrivateKey(bytes.fromhex(SERVER_KEY)).public_key.format()


class Phones:
    """Android phones, each of another user, and one sender that notifies them in turn."""

    def __init__(self, count: int) -> None:
        self._sender = Identity(PrivateKey(os.urandom(32)))
        self._registered: list[PushNotification] = []
        self._tokens: list[str] = []
        self.registrations = [self._register() for _ in range(count)]

    def token(self, number: int) -> str:
        """Return the device token that request ``number`` notifies."""
        return self._tokens[number % len(self._tokens)]

    def requests(self, count: int) -> list[WakuMessage]:
        """Return ``count`` requests, to one phone after the other."""
        return [self.request(number) for number in range(count)]

    def request(self, number: int) -> WakuMessage:
        """Return a request to notify one phone about a message of its own."""
        asked = PushRequest(os.urandom(32), (self._registered[number % len(self._registered)],))
        return encode(asked, signer=self._sender, **_sealed()).message

    def _register(self) -> WakuMessage:
        client, installation_id, access_token = Identity(PrivateKey(os.urandom(32))), str(uuid4()), str(uuid4())
        push = PushNotification(client.key_hash, installation_id, access_token, NotificationType.MESSAGE)
        self._registered.append(push)
        self._tokens.append(installation_id.ljust(163, "t"))
        allowed: dict[str, Any] = {
            "access_token": access_token,
            "grant": sign_grant(client.private_key, SERVER, access_token),
        }
        address = (installation_id, 1, TokenType.FIREBASE, self._tokens[-1])
        registration = RegistrationMessage(*address, **allowed, enabled=True)
        return encode(registration, signer=client, **_sealed()).message


def _sealed() -> dict[str, Any]:
    return {"recipient": SERVER, "timestamp_ns": time.time_ns(), "random_bytes": os.urandom}
