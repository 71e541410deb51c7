"""One message to one client on its way: which installation is to be asked for where, and what was said about it. Pure.

The rule that matters most: an installation is asked for at one server at a time, and never again once a server has
reported success. Another server is asked only after a failure, or after three seconds of silence. A silent server may
have notified after all, and then the device still shows one notification, because servers derive the id by which a push
replaces another from message, key and installation. A sender that cannot accept that asks with ``fail_over=False``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from notifications.messages import Report, ReportError
from waku_bridge.client.events import Destination, Notified, Outcome, Settled
from waku_bridge.client.notification.asking import Content
from waku_bridge.client.registration.schedules import Schedule

# What a server says it has not done and will not do, so that asking again cannot notify twice.
REPEATABLE = frozenset(
    {Outcome.WRONG_TOKEN, Outcome.INTERNAL_ERROR, Outcome.NOT_REGISTERED, Outcome.REFUSED, Outcome.NOT_FOUND}
)


class Phase(StrEnum):
    """What an installation waits for."""

    READY = "ready"  # to be asked for now
    ASKED = "asked"  # asked for, until the answer or `until_ns`
    WAITING = "waiting"  # backing off until `until_ns`
    QUERYING = "looking"  # waits until the query where it can be notified is over
    SETTLED = "settled"


@dataclass(slots=True)
class Device:
    """One installation. ``asked`` is the destination asked last, and ``request_key`` (33 bytes) the key of that
    request.

    ``spent`` holds server and access token of requests that must not be repeated, ``silent`` the keys of requests
    without any answer, and ``tries`` the number of requests by server. ``failure`` is what went wrong last.
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
        """Return how it ended. As long as one server kept silent, it may have notified, whatever the others said."""
        if self.is_notified:
            return Outcome.NOTIFIED
        return Outcome.NO_ANSWER if self.silent else self.failure

    @property
    def is_settled(self) -> bool:
        return self.phase is Phase.SETTLED

    def spend(self) -> None:
        """Note that the destination asked last must not be asked again."""
        if self.asked:
            self.spent.add((self.asked.server, self.asked.access_token))


@dataclass(slots=True)
class Notice:
    """A message that is to be notified about.

    ``wanted`` are the installations that the message was encrypted for, or None for all. ``luck`` orders equal servers.
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
        """Start again because the user asks again: what surely failed may be attempted once more, and nothing else."""
        if not self.is_over:
            return
        self.devices = {i: device for i, device in self.devices.items() if device.outcome not in REPEATABLE}
        self.wanted = wanted
        self.is_started = self.is_over = self.has_queried = False

    def unsettled(self) -> list[Device]:
        """Return the installations that are not settled."""
        return [device for device in self.devices.values() if not device.is_settled]

    def choose(self, ordered: Iterable[str], max_devices: int) -> None:
        """Take in the most recently active installations, as many as are allowed."""
        for installation_id in ordered:
            if len(self.devices) >= max_devices:
                return
            self.devices.setdefault(installation_id, Device(installation_id))

    def pick(self, device: Device, known: Iterable[Destination], draw: Callable[[], int]) -> Destination | None:
        """Return where to ask for a device next: the server asked least, of those the newest version, of those any."""
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
        """Let time pass for one device."""
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
        """Note that a server was asked for this device."""
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
        """Note that the server asked last reported a failure. Each error has a way on, but resending has an end."""
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
        """Return when a device waits no longer, or None while all wait for a query that has a deadline of its own."""
        due = [device.until_ns for device in self.devices.values() if device.phase in {Phase.ASKED, Phase.WAITING}]
        return min(due, default=None)

    def settled(self, device: Device) -> Settled:
        """Return what became of one device."""
        return Settled(
            self.message_id,
            self.client,
            device.installation_id,
            device.outcome,
            device.asked.server if device.asked else b"",
            sum(device.tries.values()),
        )

    def result(self) -> Notified:
        """Return what became of all devices."""
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
