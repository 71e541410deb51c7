"""Limits of pushes and commands: token buckets in the memory of the connected process. Pure.

    call, payload, wake-up of a device ──▶ those of its zone to its address ──▶ those of its address, from all zones
    push ────────────────────────────────▶ pushes of a domain ──▶ of its zone ──▶ all pushes
    command of an account ───────────────▶ commands of a domain ──▶ of its zone ──▶ all commands
    new device of a domain ──────────────▶ only that, as the table of devices is a stock (`registrations.quotas`)
    push without valid credentials ──────▶ all such pushes, and never the domain of its sender

When the memory has no space for a name, only the buckets to the right of that name are charged. The caller commits the
charges of a batch with `keep` once the batch is stored, or reverts them with `take_back`: a push that was answered with
`wait` may come again.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kit.buckets.bucket import CAPACITY, TOLERANCE, BucketLimits, Buckets, Charge, Limit, part, per_minute

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0
# A push with the same content within this time comes from several enabled clients of one device, and a stanza with the
# same id is a repetition. Later it is not: some servers give all stanzas to a device one id. All wake-ups have the same
# content. Their time is shorter, because a device may wake, fetch its messages and need another wake-up.
SAME = (Limit(1, 2.0),)
SAME_WAKE = (Limit(1, 0.5),)
# A user's server gets the error for a route that is gone once in this time. Many servers go on pushing all the same.
GONE = (Limit(1, 60.0),)
# A zone is all domains with the same last two labels, because the owner of a domain can make any number of domains
# below it. One zone gets at most this part of the limits of all domains.
ZONE_PART = 0.6
# A phone may have accounts of several domains. One zone gets at most this part of the limits of a phone, so it uses up
# none of another one.
ZONE_PART_OF_PHONE = 1 / 4
# Names of the buckets of all pushes and commands, and of all pushes without valid credentials.
PUSHES, COMMANDS, UNVERIFIED = "pushes", "commands", "unverified"
ROOTS = frozenset({PUSHES, COMMANDS, UNVERIFIED})


class Mark(NamedTuple):
    """A digest of what a push and its repetition have in common, and whether they only wake the device."""

    digest: bytes
    is_wake: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The limits. docs/limits.md lists the answer beyond each. Those of a phone are for one zone of domains."""

    wake_seconds: float = 5.0
    payloads_per_minute: int = 60
    payloads_per_day: int = 1000
    calls_per_minute: int = 6
    unknown_per_hour: int = 100
    devices_per_user: int = 10
    commands_per_hour: int = 20
    routes_per_hour: int = 2000
    in_all: BucketLimits = (Limit(30_000, 10.0), Limit(7_200_000, 3600.0))
    pushes_of_domain: BucketLimits = (Limit(1000, 5.0),)
    # A command takes ten times as long as a push. The burst is for devices that register again after an outage.
    commands_of_domain: BucketLimits = (Limit(600, 30.0),)
    commands_in_all: BucketLimits = (Limit(3000, 60.0),)
    wakes_of_phone: BucketLimits = (Limit(10, 10.0),)

    @property
    def payloads(self) -> BucketLimits:
        """The limits of payloads to a phone. A flood of one minute does not use up the limit of the day."""
        return (*per_minute(self.payloads_per_minute), Limit(self.payloads_per_day, DAY_SECONDS))


RATES = Rates()


class DeviceLimit(StrEnum):
    """A limit of pushes that only this bridge has, by its name in the counter of pushes beyond limits."""

    WAKE_UPS = "xmpp_wake_ups"
    PAYLOADS = "xmpp_payloads"
    CALLS = "xmpp_calls"
    DOMAIN = "xmpp_domain"


class Limits:
    """The token buckets. ``now`` is in seconds, of any clock."""

    def __init__(self, rates: Rates, capacity: int = CAPACITY) -> None:
        self.rates = rates
        self._buckets = Buckets(capacity, ROOTS.__contains__)
        self.keep, self.take_back = self._buckets.keep, self._buckets.take_back

    def take_from_domain(self, domain: str, now: float) -> bool:
        """Return whether a push of this domain is within its limits, and charge it."""
        own = Charge((PUSHES, domain), self.rates.pushes_of_domain)
        return self._buckets.take(own, *_in_all(PUSHES, domain, self.rates.in_all), now=now)

    def take_unverified(self, now: float) -> bool:
        """Return whether a push without valid credentials, or of a domain that is not served, is within their limit."""
        return self._buckets.take(Charge(UNVERIFIED, self.rates.pushes_of_domain), now=now)

    def take_call(self, address: Hashable, domain: str, now: float) -> bool:
        """Return whether a call of this domain to this address is within its limits, and charge it."""
        limits = per_minute(self.rates.calls_per_minute)
        return self._buckets.take(*_of_phone("call", address, domain, limits), now=now)

    def take_payload(self, address: Hashable, domain: str, now: float) -> bool:
        """Return whether a payload of this domain to this address is within its limits, and charge it."""
        return self._buckets.take(*_of_phone("payload", address, domain, self.rates.payloads), now=now)

    def take_command(self, account: Hashable, domain: str, now: float) -> bool:
        """Return whether a command of this account is within its limits, and charge it."""
        own = Charge(("command", account), (Limit(self.rates.commands_per_hour, HOUR_SECONDS),))
        of_domain = Charge((COMMANDS, domain), self.rates.commands_of_domain)
        return self._buckets.take(own, of_domain, *_in_all(COMMANDS, domain, self.rates.commands_in_all), now=now)

    def take_route(self, domain: str, now: float) -> bool:
        """Return whether a new device of this domain is within its limits, and charge it."""
        own = Charge(("route", domain), (Limit(self.rates.routes_per_hour, HOUR_SECONDS),))
        return self._buckets.take(own, now=now)

    def answers_unknown(self, domain: str, now: float) -> bool:
        """Return whether a push of this domain for an unknown client is answered."""
        limits = (Limit(self.rates.unknown_per_hour, HOUR_SECONDS),)
        return self._buckets.take(Charge(("unknown", domain), limits), now=now)

    def is_same_again(self, route: Hashable, marks: Iterable[Mark], now: float) -> bool:
        """Return whether this route got a push with one of these marks a moment ago."""
        return not all(self._buckets.has(_same(route, mark), now=now) for mark in marks)

    def note_marks(self, route: Hashable, marks: Iterable[Mark], now: float) -> None:
        """Record the marks of a push to this route."""
        for mark in marks:
            self._buckets.spend(_same(route, mark), now=now)

    def answers_gone(self, route: Hashable, now: float) -> bool:
        """Return whether a push to this route, which is gone, is answered."""
        return self._buckets.take(Charge(("gone", route), GONE), now=now)

    def wake_at(self, route: Hashable, address: Hashable, domain: str, now: float) -> float | None:
        """Return when this route of a domain is woken: now, or later for all pushes until then.

        Return None if this batch has planned the wake-up already. A wake-up that an earlier batch planned is planned
        again, because it may have been sent or dropped before its time.
        """
        charge = Charge(("wake", route), (Limit(1, self.rates.wake_seconds),))
        [missing] = self._buckets.missing(charge.name, now=now) or [0.0]
        is_planned = missing > self.rates.wake_seconds + TOLERANCE
        if is_planned and self._buckets.is_changed(charge.name):
            return None
        if is_planned:
            self._buckets.put(charge.name, (missing,), now=now)  # marks it as planned by this batch
            return now + missing - self.rates.wake_seconds
        self._buckets.spend(charge, now=now)
        return now + max(missing, self._wait_of_phone(address, domain, now=now))

    def _wait_of_phone(self, address: Hashable, domain: str, *, now: float) -> float:
        """Charge one wake-up of a domain to an address, and return in how many seconds its limits allow it.

        All zones are charged only for wake-ups that a zone has not booked in advance. So what one zone books, with
        thousands of devices that have this address, delays no other zone.
        """
        own, in_all = _of_phone("wake of", address, domain, self.rates.wakes_of_phone)
        if self._buckets.has(own, now=now):
            self._buckets.spend(in_all, now=now)
        self._buckets.spend(own, now=now)
        waits = (-self._buckets.left(each, now=now) * each.limits[0].token_seconds for each in (own, in_all))
        return max(0.0, *waits)


def _same(route: Hashable, mark: Mark) -> Charge:
    return Charge(("same", route, mark), SAME_WAKE if mark.is_wake else SAME)


def _in_all(kind: str, domain: str, limits: BucketLimits) -> tuple[Charge, Charge]:
    """Return the charges to the zone of a domain and to all domains together."""
    return Charge(("zone", kind, _zone(domain)), part(limits, ZONE_PART)), Charge(kind, limits)


def _of_phone(kind: str, address: Hashable, domain: str, limits: BucketLimits) -> tuple[Charge, Charge]:
    """Return the charges to the zone of a domain at an address, with these limits, and to all zones at the address."""
    return Charge((kind, address, _zone(domain)), limits), Charge((kind, address), part(limits, 1 / ZONE_PART_OF_PHONE))


def _zone(domain: str) -> str:
    return ".".join(domain.split(".")[-2:])
