"""How much is taken from whom: token buckets in the memory of the one process that is connected, and pure.

    call, payload, wake-up of a device ──▶ pushes of a domain ──▶ all pushes
    command of an account ───────────────▶ commands of a domain ──▶ all commands
    new device of a domain ──────────────▶ all new devices
    what names no client of ours ────────▶ all that does not: never the domain that it comes from

A name that finds no room in the memory is charged to what stands right of it only. What a batch counted is `keep`t once
the batch is stored, or `take_back` when it is not: a push that was told `wait` may come again.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from kit.buckets.bucket import CAPACITY, TOLERANCE, BucketLimits, Buckets, Charge, Limit, per_minute

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3600.0
# New devices that nobody registered for a while are saved up for as many minutes: a wave after an outage.
MINUTES_SAVED_UP = 10
# The same again within this time comes from several enabled clients of one device.
SAME = (Limit(1, 2.0),)
# The user's server is told so often that a route is no more; many go on pushing all the same.
GONE = (Limit(1, 60.0),)
# What all names of a kind are charged to, and what is not verified.
PUSHES, COMMANDS, ROUTES, UNVERIFIED = "pushes", "commands", "routes", "unverified"
ROOTS = frozenset({PUSHES, COMMANDS, ROUTES, UNVERIFIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The limits that an operator may set. docs/xmpp.md says what is answered beyond each."""

    wake_seconds: float = 5.0
    payloads_per_minute: int = 60
    payloads_per_day: int = 1000
    calls_per_minute: int = 6
    domain_per_second: int = 200
    domain_burst: int = 1000
    unknown_per_hour: int = 100
    devices_per_user: int = 10
    commands_per_hour: int = 20
    routes_per_hour: int = 2000
    new_devices_per_minute: int = 1200
    in_all: BucketLimits = (Limit(30_000, 10.0), Limit(7_200_000, 3600.0))

    @property
    def of_domain(self) -> BucketLimits:
        """Return what a domain may send."""
        return (Limit(self.domain_burst, self.domain_burst / self.domain_per_second),)

    @property
    def payloads(self) -> BucketLimits:
        """Return how many payloads a device may get. A flood of a minute does not use up the day."""
        return (*per_minute(self.payloads_per_minute), Limit(self.payloads_per_day, DAY_SECONDS))


class Limits:
    """The counters. ``now`` is in seconds, of any clock."""

    def __init__(self, rates: Rates, capacity: int = CAPACITY) -> None:
        self.rates = rates
        self._buckets = Buckets(capacity, ROOTS.__contains__)
        self.keep, self.take_back = self._buckets.keep, self._buckets.take_back

    def take_from_domain(self, domain: str, now: float) -> bool:
        """Return whether a push of this domain is taken."""
        return self._buckets.take(self._domain(PUSHES, domain), self._all(PUSHES), now=now)

    def take_unverified(self, now: float) -> bool:
        """Return whether a push is looked at that names no client of ours or whose domain is not served."""
        return self._buckets.take(Charge(UNVERIFIED, self.rates.of_domain), now=now)

    def take_call(self, route: Hashable, now: float) -> bool:
        """Return whether a call to this route is taken."""
        return self._buckets.take(Charge(("call", route), per_minute(self.rates.calls_per_minute)), now=now)

    def take_payload(self, route: Hashable, now: float) -> bool:
        """Return whether a push to this route may bring its payload."""
        return self._buckets.take(Charge(("payload", route), self.rates.payloads), now=now)

    def take_command(self, account: Hashable, domain: str, now: float) -> bool:
        """Return whether a command of this account is taken."""
        own = Charge(("command", account), (Limit(self.rates.commands_per_hour, HOUR_SECONDS),))
        return self._buckets.take(own, self._domain(COMMANDS, domain), self._all(COMMANDS), now=now)

    def take_route(self, domain: str, now: float) -> bool:
        """Return whether another device of this domain is registered. All domains together have a limit, too: who owns
        one has any number of them.
        """
        own = Charge(("route", domain), (Limit(self.rates.routes_per_hour, HOUR_SECONDS),))
        in_all = per_minute(self.rates.new_devices_per_minute, minutes=MINUTES_SAVED_UP)
        return self._buckets.take(own, Charge(ROUTES, in_all), now=now)

    def hears_stranger(self, domain: str, now: float) -> bool:
        """Return whether a push of this domain for an unknown client is answered."""
        limits = (Limit(self.rates.unknown_per_hour, HOUR_SECONDS),)
        return self._buckets.take(Charge(("unknown", domain), limits), now=now)

    def is_same_again(self, route: Hashable, content: Hashable, now: float) -> bool:
        """Return whether this route has just got the very same."""
        return not self._buckets.has(Charge(("same", route, content), SAME), now=now)

    def note_content(self, route: Hashable, content: Hashable, now: float) -> None:
        """Note what this route gets."""
        self._buckets.spend(Charge(("same", route, content), SAME), now=now)

    def tells_gone(self, route: Hashable, now: float) -> bool:
        """Return whether it is time to say again that this route is no more."""
        return self._buckets.take(Charge(("gone", route), GONE), now=now)

    def wake_at(self, route: Hashable, now: float) -> float | None:
        """Return when this route is woken: at once, or later with all that come until then, or None when this batch has
        planned that already. What an earlier batch planned may have been sent or dropped before its time.
        """
        charge = Charge(("wake", route), (Limit(1, self.rates.wake_seconds),))
        [missing] = self._buckets.missing(charge.name, now=now) or [0.0]
        is_planned = missing > self.rates.wake_seconds + TOLERANCE
        if is_planned and self._buckets.is_changed(charge.name):
            return None
        if is_planned:
            self._buckets.put(charge.name, (missing,), now=now)  # from now on this batch has planned it
            return now + missing - self.rates.wake_seconds
        self._buckets.spend(charge, now=now)
        return now + missing

    def _domain(self, kind: str, domain: str) -> Charge:
        return Charge((kind, domain), self.rates.of_domain)

    def _all(self, kind: str) -> Charge:
        return Charge(kind, self.rates.in_all)
