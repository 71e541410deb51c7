"""Notice: one message that a client is to be notified about, with the state of each of its installations. Pure.

The rule that matters most: for an installation there is a request to one server at a time, and none after a server has
reported success. A request to another server follows only after a failure, or after three seconds without an answer.

A server that did not answer may still have notified. The device shows one notification even then: servers derive the id
by which a push replaces another from message, key and installation. A sender that must not rely on that sets
``fail_over=False``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256

from notifications.messages import NotificationType, PushNotification, PushRequest, ReportError
from waku_bridge.client.core import RESENDING
from waku_bridge.client.events import Destination, Notified, Outcome, Settled
from waku_bridge.codec.envelope import Encoded, encode
from waku_bridge.codec.keys import Identity, RandomBytes, author_hash

MAX_DEVICES = 3
# Outcomes in which no server has notified or will, so that another request cannot notify twice.
REPEATABLE = frozenset(
    {Outcome.WRONG_TOKEN, Outcome.INTERNAL_ERROR, Outcome.NOT_REGISTERED, Outcome.REFUSED, Outcome.NOT_FOUND}
)


def one_to_one(author: bytes, message: bytes = b"") -> PushNotification:
    """Return the content of a message from ``author`` (33-byte chat key) to the recipient alone.

    The id of a one-to-one chat is the chat key of the other side.
    """
    return content_of(NotificationType.MESSAGE, author, chat_id=author_hash(author), message=message)


def content_of(type_: int, author: bytes, *, chat_id: bytes, message: bytes) -> PushNotification:
    """Return the content of a notification, which is for no installation yet.

    ``chat_id`` is a hash (64 bytes). A notification with an unknown type is delivered with a general text.
    """
    return PushNotification(b"", "", "", type_, chat_id, author_hash(author), message)


def ask_to_push(
    destinations: Sequence[Destination],
    content: PushNotification,
    message_id: bytes,
    *,
    signer: Identity,
    timestamp_ns: int,
    random_bytes: RandomBytes,
) -> Encoded:
    """Return a request to the server of these destinations to push the same content to several installations.

    ``message_id`` is the id of the Status message. Its sender chooses it, and the answer repeats it. The same arguments
    give the same signed message in another envelope, and servers answer it as before. An ephemeral ``signer`` signs
    message and frame, so that neither the network nor a server learns the sender's identity. status-go signs the frame
    with its identity.
    """
    notifications = tuple(
        replace(
            content,
            public_key_hash=destination.public_key_hash,
            installation_id=destination.installation_id,
            access_token=destination.access_token,
        )
        for destination in destinations
    )
    return encode(
        PushRequest(message_id, notifications),
        signer=signer,
        recipient=destinations[0].server,
        timestamp_ns=timestamp_ns,
        random_bytes=random_bytes,
    )


class Phase(StrEnum):
    """The phase of an installation."""

    READY = "ready"  # a request may be sent, once no query about the client is open
    ASKED = "asked"  # a request was sent: waits for the answer, or until `until_ns`
    WAITING = "waiting"  # backs off until `until_ns`
    SETTLED = "settled"


@dataclass(slots=True)
class Device:
    """One installation. ``asked`` is the destination of its last request, and ``request_key`` (33 bytes) its key.

    ``spent`` holds server and access token of requests that must not be repeated. ``silent`` holds the keys of requests
    without an answer. ``tries`` is the number of requests by server, and ``failure`` the last failure.
    """

    installation_id: str
    phase: Phase = Phase.READY
    until_ns: int = 0
    asked: Destination | None = None
    request_key: bytes = b""
    resends: int = 0
    spent: set[tuple[bytes, str]] = field(default_factory=set)
    silent: set[bytes] = field(default_factory=set)
    tries: Counter[bytes] = field(default_factory=Counter)
    failure: Outcome = Outcome.NOT_FOUND
    is_notified: bool = False

    @property
    def outcome(self) -> Outcome:
        """Return the outcome. While one server has not answered, it may have notified, whatever others reported."""
        if self.is_notified:
            return Outcome.NOTIFIED
        return Outcome.NO_ANSWER if self.silent else self.failure

    @property
    def is_settled(self) -> bool:
        return self.phase is Phase.SETTLED

    def wake(self, now_ns: int, *, fail_over: bool) -> None:
        """Move to the next phase, if the time of this one is over."""
        if self.phase is Phase.WAITING and now_ns >= self.until_ns:
            self.phase = Phase.READY
        elif self.phase is Phase.ASKED and now_ns >= self.until_ns:
            self._spend()
            self.silent.add(self.request_key)
            self.phase = Phase.READY if fail_over else Phase.SETTLED

    def note_asked(self, destination: Destination, request_key: bytes, until_ns: int) -> None:
        """Note that a request for this device was sent to a server."""
        self.phase, self.until_ns = Phase.ASKED, until_ns
        self.asked, self.request_key = destination, request_key
        self.tries[destination.server] += 1

    def note_success(self) -> None:
        """Note that a server reported success."""
        self.phase, self.is_notified = Phase.SETTLED, True

    def note_failure(self, error: int, now_ns: int) -> None:
        """Note that the server of the last request reported a failure. Each error has its next phase."""
        match error:
            case ReportError.WRONG_TOKEN:
                self._spend()
                self._back_off(Outcome.WRONG_TOKEN, now_ns + RESENDING.delay_ns(self.resends))
            case ReportError.INTERNAL_ERROR | ReportError.NONE:
                self._back_off(Outcome.INTERNAL_ERROR, now_ns + RESENDING.delay_ns(self.resends + 1))
            case ReportError.NOT_REGISTERED:
                self._spend()
                self.phase, self.failure = Phase.READY, Outcome.NOT_REGISTERED
            case _:
                self.phase, self.failure = Phase.SETTLED, Outcome.REFUSED

    def _back_off(self, failure: Outcome, until_ns: int) -> None:
        """Wait for a resend, of which there is a limited number."""
        self.resends += 1
        self.failure, self.until_ns = failure, until_ns
        self.phase = Phase.WAITING if self.resends <= RESENDING.max_attempts else Phase.SETTLED

    def _spend(self) -> None:
        """Note that the last request must not be repeated to the same destination."""
        if self.asked:
            self.spent.add((self.asked.server, self.asked.access_token))


@dataclass(slots=True)
class Notice:
    """One message that a client is to be notified about.

    ``wanted`` has the installations that the message was encrypted for, or None for all. ``has_queried`` becomes false
    again when a server reports a wrong token.
    """

    message_id: bytes
    client: bytes
    content: PushNotification
    wanted: tuple[str, ...] | None
    devices: dict[str, Device] = field(default_factory=dict)
    is_started: bool = False
    has_queried: bool = False
    is_over: bool = False

    def reopen(self, wanted: tuple[str, ...] | None) -> None:
        """Start again at the user's request. Only installations that certainly failed are attempted once more."""
        if not self.is_over:
            return
        self.devices = {i: device for i, device in self.devices.items() if device.outcome not in REPEATABLE}
        self.wanted = wanted
        self.is_started = self.is_over = self.has_queried = False

    def unsettled(self) -> list[Device]:
        return [device for device in self.devices.values() if not device.is_settled]

    def choose(self, ordered: Iterable[str]) -> None:
        """Start with installations in this order, up to MAX_DEVICES."""
        self.is_started = True
        for installation_id in ordered:
            if len(self.devices) < MAX_DEVICES:
                self.devices.setdefault(installation_id, Device(installation_id))

    def pick(self, device: Device, known: Iterable[Destination]) -> Destination | None:
        """Return the next destination for a device: fewest requests first, then the newest version.

        The rest is chance, which is the same for all devices so that one request has all of them.
        """
        open_to_us = (
            destination
            for destination in known
            if destination.installation_id == device.installation_id
            and (destination.server, destination.access_token) not in device.spent
        )
        order = lambda d: (device.tries[d.server], -d.version, sha256(self.message_id + d.server).digest())  # noqa: E731
        return min(open_to_us, key=order, default=None)

    def deadline_ns(self) -> int:
        """Return the earliest time at which a device has work, or zero before the devices are chosen."""
        return min((device.until_ns for device in self.unsettled()), default=0)

    def settled(self, device: Device) -> Settled:
        """Return the outcome of one device."""
        server = device.asked.server if device.asked else b""
        count = device.tries.total()
        return Settled(self.message_id, self.client, device.installation_id, device.outcome, server, count)

    def result(self) -> Notified:
        """Return the outcomes of all devices."""
        return Notified(self.message_id, self.client, tuple(map(self.settled, self.devices.values())))
