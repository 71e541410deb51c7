"""Notice: one message that a client is to be notified about, with the state of each of its installations. Pure.

The rule that matters most: for an installation there is a request to one server at a time, and none after a server has
reported success. A request to another server follows only after a failure, or after three seconds without an answer.

A server that did not answer may still have notified. The device shows one notification even then: servers derive the id
by which a push replaces another from message, key and installation. A sender that must not rely on that sets
``fail_over=False``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from notifications.messages import Report, ReportError
from waku_bridge.client.events import Destination, Notified, Outcome, Settled
from waku_bridge.client.notification.asking import Content
from waku_bridge.client.registration.schedules import Schedule

# Outcomes in which no server has notified or will, so that another request cannot notify twice.
REPEATABLE = frozenset(
    {Outcome.WRONG_TOKEN, Outcome.INTERNAL_ERROR, Outcome.NOT_REGISTERED, Outcome.REFUSED, Outcome.NOT_FOUND}
)


class Phase(StrEnum):
    """The phase of an installation."""

    READY = "ready"  # a request may be sent now
    ASKED = "asked"  # a request was sent: waits for the answer, or until `until_ns`
    WAITING = "waiting"  # backs off until `until_ns`
    QUERYING = "looking"  # waits for the end of a query about the client
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
    needs_query: bool = False
    spent: set[tuple[bytes, str]] = field(default_factory=set)
    silent: set[bytes] = field(default_factory=set)
    tries: dict[bytes, int] = field(default_factory=dict)
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

    def spend(self) -> None:
        """Note that the last request must not be repeated to the same destination."""
        if self.asked:
            self.spent.add((self.asked.server, self.asked.access_token))


@dataclass(slots=True)
class Notice:
    """One message that a client is to be notified about.

    ``wanted`` has the installations that the message was encrypted for, or None for all. ``luck`` has a random number
    for each server, which orders equal ones.
    """

    message_id: bytes
    client: bytes
    content: Content
    wanted: tuple[str, ...] | None
    devices: dict[str, Device] = field(default_factory=dict)
    luck: dict[bytes, int] = field(default_factory=dict)
    is_started: bool = False
    has_queried: bool = False
    is_over: bool = False
    answer_count: int = 0

    def reopen(self, wanted: tuple[str, ...] | None) -> None:
        """Start again at the user's request. Only installations that certainly failed are attempted once more."""
        if not self.is_over:
            return
        self.devices = {i: device for i, device in self.devices.items() if device.outcome not in REPEATABLE}
        self.wanted = wanted
        self.is_started = self.is_over = self.has_queried = False

    def unsettled(self) -> list[Device]:
        return [device for device in self.devices.values() if not device.is_settled]

    def choose(self, ordered: Iterable[str], max_devices: int) -> None:
        """Add installations in this order, up to ``max_devices``."""
        for installation_id in ordered:
            if len(self.devices) >= max_devices:
                return
            self.devices.setdefault(installation_id, Device(installation_id))

    def pick(self, device: Device, known: Iterable[Destination], draw: Callable[[], int]) -> Destination | None:
        """Return the next destination for a device: fewest requests first, then the newest version, then at random."""
        open_to_us = [
            destination
            for destination in known
            if destination.installation_id == device.installation_id
            and (destination.server, destination.access_token) not in device.spent
        ]
        for destination in open_to_us:
            if destination.server not in self.luck:
                self.luck[destination.server] = draw()
        return min(
            open_to_us, key=lambda d: (device.tries.get(d.server, 0), -d.version, self.luck[d.server]), default=None
        )

    def wake(self, device: Device, now_ns: int, *, is_querying: bool, fail_over: bool) -> None:
        """Move one device to its next phase, if its time or its query is over."""
        match device.phase:
            case Phase.ASKED if now_ns >= device.until_ns:
                device.spend()
                device.silent.add(device.request_key)
                device.phase = Phase.READY if fail_over else Phase.SETTLED
            case Phase.WAITING if now_ns >= device.until_ns:
                device.phase = Phase.READY
            case Phase.QUERYING if not is_querying:
                device.phase = Phase.READY

    def note_asked(self, device: Device, destination: Destination, request_key: bytes, until_ns: int) -> None:
        """Note that a request for this device was sent to a server."""
        device.phase = Phase.ASKED
        device.until_ns = until_ns
        device.asked = destination
        device.request_key = request_key
        device.tries[destination.server] = device.tries.get(destination.server, 0) + 1

    def note_success(self, device: Device) -> None:
        """Note that a server reported success."""
        device.phase = Phase.SETTLED
        device.is_notified = True

    def note_failure(self, device: Device, report: Report, now_ns: int, schedule: Schedule) -> None:
        """Note that the server of the last request reported a failure. Each error has its next phase.

        The number of resends is limited.
        """
        match report.error:
            case ReportError.WRONG_TOKEN:
                device.spend()
                device.needs_query = True
                self._back_off(device, Outcome.WRONG_TOKEN, now_ns, lambda n: schedule.delay_ns(n - 1), schedule)
            case ReportError.INTERNAL_ERROR | ReportError.NONE:
                self._back_off(device, Outcome.INTERNAL_ERROR, now_ns, schedule.delay_ns, schedule)
            case ReportError.NOT_REGISTERED:
                device.spend()
                device.phase = Phase.READY
                device.failure = Outcome.NOT_REGISTERED
            case _:
                device.phase = Phase.SETTLED
                device.failure = Outcome.REFUSED

    def deadline_ns(self) -> int | None:
        """Return the earliest time at which a device stops waiting, or None while all wait for a query."""
        due = [device.until_ns for device in self.devices.values() if device.phase in {Phase.ASKED, Phase.WAITING}]
        return min(due, default=None)

    def settled(self, device: Device) -> Settled:
        """Return the outcome of one device."""
        return Settled(
            self.message_id,
            self.client,
            device.installation_id,
            device.outcome,
            device.asked.server if device.asked else b"",
            sum(device.tries.values()),
        )

    def result(self) -> Notified:
        """Return the outcomes of all devices."""
        settled = tuple(self.settled(device) for device in self.devices.values())
        return Notified(self.message_id, self.client, settled, self.answer_count)

    def _back_off(
        self, device: Device, failure: Outcome, now_ns: int, delay_ns: Callable[[int], int], schedule: Schedule
    ) -> None:
        device.resends += 1
        device.failure = failure
        if device.resends > schedule.max_attempts:
            device.phase = Phase.SETTLED
            return
        device.phase = Phase.WAITING
        device.until_ns = now_ns + delay_ns(device.resends)
