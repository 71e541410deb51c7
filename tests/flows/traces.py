"""Traces that clients leave with the server, and a search for their secrets in texts."""

import json
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from urllib.parse import quote

from tests.rig.network import Network, android, iphone, new_identity, new_sender
from tests.rig.server import wait_until
from waku_bridge.client import Destination, Preferences
from waku_bridge.codec.keys import chat_key
from waku_bridge.messages import WakuMessage

# Prefixes of device tokens by which the development gorush chooses the outcome of pushes.
APPLE = ("dead-", "lost-", "naming-")
GOOGLE = ("flaky1-", "naming-")
BEGINNING = 6  # characters
UNKNOWN_ERRORS = "SELECT count(*) FROM notifications_unknowngatewayerror"
DEAD_LETTERS = "SELECT count(*) FROM waku_bridge_deadletter"


class Traces:
    """Clients that do everything once: register, query, notify, cause every kind of failure, and send an unreadable
    message.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.contact, self.message = new_identity(), os.urandom(48)
        self.sender = new_sender(self.contact)
        self.addresses = [*map(iphone, APPLE), *map(android, GOOGLE)]
        only_contacts = Preferences(contacts_only=True, contacts=(self.contact.pub33,))
        self.phones = [
            network.phone(address, only_contacts if "flaky" in address.device_token else None)
            for address in self.addresses
        ]
        for phone in self.phones:
            destinations = network.query(self.sender, phone)
            network.notify(self.sender, destinations, self.sender.one_to_one(self.message))
        network.publish(self._from_the_future(destinations))
        network.wait_until_answered()
        wait_until(lambda: network.rows(UNKNOWN_ERRORS) >= [(2,)], what="both unknown errors are counted")
        wait_until(lambda: network.rows(DEAD_LETTERS) >= [(1,)], what="the dead letter is kept")

    def _from_the_future(self, destinations: Sequence[Destination]) -> WakuMessage:
        """Return a request in a version of Waku that does not exist yet, which becomes a dead letter."""
        content = self.sender.one_to_one(self.message)
        request = self.sender.request(destinations, content, os.urandom(32), timestamp_ns=time.time_ns())
        return replace(request.message, version=2)

    def leave(self) -> None:
        """Unregister all phones, so that no notification waits for its next attempt."""
        for phone in self.phones:
            phone.unregister()
            self.network.register(phone)
        self.network.wait_until_delivered()

    def secrets(self) -> dict[str, bytes]:
        """Return the secrets by name, without keys of the server, which its operator has."""
        identities = [self.contact, self.sender.ephemeral, *(phone.identity for phone in self.phones)]
        return {
            "message": self.message,
            **{f"device token {number}": a.device_token.encode() for number, a in enumerate(self.addresses)},
            **{f"access token {number}": phone.access_token.encode() for number, phone in enumerate(self.phones)},
            **{f"private key {number}": identity.private_key.secret for number, identity in enumerate(identities)},
            **{f"public key {number}": identity.pub33[1:] for number, identity in enumerate(identities)},
            **{f"chat key {number}": chat_key(i.pub33).encode() for number, i in enumerate(identities)},
        }


def found(secrets: Mapping[str, bytes], texts: Mapping[str, str]) -> list[str]:
    """Return the secrets in the texts, each with its spelling and its text. Only spellings whose beginning occurs in a
    text are searched for.
    """
    by_beginning: dict[str, list[tuple[str, str]]] = {}
    for name, secret in secrets.items():
        for form, spelling in spellings(secret):
            by_beginning.setdefault(spelling[:BEGINNING], []).append((f"{name} as {form}", spelling))
    return [
        f"{name} in {place}"
        for place, text in texts.items()
        for beginning in by_beginning.keys() & pieces(text)
        for name, spelling in by_beginning[beginning]
        if spelling in text
    ]


def pieces(text: str) -> set[str]:
    return {text[start : start + BEGINNING] for start in range(len(text) - BEGINNING + 1)}


def spellings(secret: bytes) -> Iterator[tuple[str, str]]:
    text = secret.decode("latin-1")
    yield "text", text
    yield "markup", escape(text)
    yield "JSON", json.dumps(text)[1:-1]
    yield "Python", repr(secret)[2:-1]
    yield "part of a URL", quote(secret)
    yield "hex", secret.hex()
    yield "hex", secret.hex().upper()
    # Base64 of a longer text depends on the offset of the secret in it. The characters at both ends are left out.
    for offset in range(3):
        whole = b64encode(bytes(offset) + secret).decode()
        inner = whole[4 if offset else 0 : -4]
        yield "base64", inner
        yield "base64", inner.replace("+", "-").replace("/", "_")
