"""How much is taken from whom: counted in memory by the one process that is connected, and pure.

What a batch counted is `keep`t once the batch is stored, or `take_back` when it is not: a push that was told `wait` may
come again. Strangers choose many of the names that are counted, so the oldest are forgotten when there are too many.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

MAX_NAMES = 200_000
DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3600.0
MINUTE_SECONDS = 60.0
# New devices that nobody registered for a while are saved up for as many minutes: a wave after an outage.
MINUTES_SAVED_UP = 10
# The same again within this time comes from several enabled clients of one device.
SAME_SECONDS = 2.0
# The user's server is told so often that a route is no more; many go on pushing all the same.
GONE_SECONDS = 60.0


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


class Limits:
    """The counters. ``now`` is in seconds, of any clock that does not jump."""

    def __init__(self, rates: Rates, max_names: int = MAX_NAMES) -> None:
        self.rates = rates
        self._max_names = max_names
        self._states: OrderedDict[Hashable, tuple[float, ...]] = OrderedDict()
        self._before: dict[Hashable, tuple[float, ...] | None] = {}

    def keep(self) -> None:
        """Keep what the batch counted."""
        self._before.clear()
        while len(self._states) > self._max_names:
            self._states.popitem(last=False)

    def take_back(self) -> None:
        """Forget what the batch counted."""
        for name, state in self._before.items():
            if state is None:
                self._states.pop(name, None)
            else:
                self._states[name] = state
        self._before.clear()

    def take_from_domain(self, domain: str, now: float) -> bool:
        """Return whether a push of this domain is taken."""
        return self._take(("domain", domain), self.rates.domain_burst, self.rates.domain_per_second, now)

    def take_call(self, route: Hashable, now: float) -> bool:
        """Return whether a call to this route is taken."""
        limit = self.rates.calls_per_minute
        return self._take(("call", route), limit, limit / MINUTE_SECONDS, now)

    def take_payload(self, route: Hashable, now: float) -> bool:
        """Return whether a push to this route may bring its payload. A flood of a minute does not use up the day."""
        minutely, daily = self.rates.payloads_per_minute, self.rates.payloads_per_day
        return self._take(("minute", route), minutely, minutely / MINUTE_SECONDS, now) and self._take(
            ("day", route), daily, daily / DAY_SECONDS, now
        )

    def take_command(self, account: Hashable, now: float) -> bool:
        """Return whether a command of this account is taken."""
        limit = self.rates.commands_per_hour
        return self._take(("command", account), limit, limit / HOUR_SECONDS, now)

    def take_route(self, domain: str, now: float) -> bool:
        """Return whether another device of this domain is registered. All domains together have a limit, too: who owns
        one has any number of them.
        """
        limit, in_all = self.rates.routes_per_hour, self.rates.new_devices_per_minute
        return self._take(("route", domain), limit, limit / HOUR_SECONDS, now) and self._take(
            "routes", in_all * MINUTES_SAVED_UP, in_all / MINUTE_SECONDS, now
        )

    def _take(self, name: Hashable, burst: float, per_second: float, now: float) -> bool:
        """Take one from a bucket that fills up steadily."""
        left, at = self._states.get(name, (burst, now))
        left = min(burst, left + max(now - at, 0) * per_second)
        self._set(name, (left - 1, now) if left >= 1 else (left, now))
        return left >= 1

    def hears_stranger(self, domain: str, now: float) -> bool:
        """Return whether a push of this domain for an unknown client is answered. After too many of them, it is not
        for an hour.
        """
        count, since, silent_until = self._states.get(("unknown", domain), (0.0, now, 0.0))
        if now < silent_until:
            return False
        count, since = (count, since) if now - since < HOUR_SECONDS else (0.0, now)
        is_heard = count < self.rates.unknown_per_hour
        self._set(("unknown", domain), (count + 1, since, 0.0 if is_heard else now + HOUR_SECONDS))
        return is_heard

    def is_same_again(self, route: Hashable, content: Hashable, now: float) -> bool:
        """Return whether this route has just got the very same."""
        [at] = self._states.get(("same", route, content), (float("-inf"),))
        return now - at < SAME_SECONDS

    def note_content(self, route: Hashable, content: Hashable, now: float) -> None:
        """Note what this route gets."""
        self._set(("same", route, content), (now,))

    def tells_gone(self, route: Hashable, now: float) -> bool:
        """Return whether it is time to say again that this route is no more."""
        [at] = self._states.get(("gone", route), (float("-inf"),))
        if now - at < GONE_SECONDS:
            return False
        self._set(("gone", route), (now,))
        return True

    def wake_at(self, route: Hashable, now: float) -> float | None:
        """Return when this route is woken: at once, or later with all that come until then, or None when this batch has
        planned that already. What an earlier batch planned may have been sent or dropped before its time.
        """
        name = ("wake", route)
        [last] = self._states.get(name, (float("-inf"),))
        if last > now and name in self._before:
            return None
        at = last if last > now else max(now, last + self.rates.wake_seconds)
        self._set(name, (at,))
        return at

    def _set(self, name: Hashable, state: tuple[float, ...]) -> None:
        self._before.setdefault(name, self._states.get(name))
        self._states[name] = state
        self._states.move_to_end(name)
