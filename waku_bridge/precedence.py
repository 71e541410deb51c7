"""Who goes first when more came than can be worked off at once. The clock is an argument.

    opened ──┬── it concerns an address that something was delivered to ──▶ decided in this turn
             └── strangers ──┬── the cheapest, as far as the turn has room ──▶ decided in this turn
                             └── the others ──▶ postponed, and decided once the inbox keeps up, the newest first

One address goes first only as often as it may be woken: a flood at a victim waits behind the messages to all others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic

from kit.buckets.bucket import BucketLimits, Buckets, Charge, part
from notifications.messages import PushRequest
from notifications.standing import Named
from waku_bridge.codec.keys import key_hash
from waku_bridge.messages import Decoded, Registration

# As much as a full turn of ordinary messages; what fits into it is decided, whoever it is of.
FULL_TURN = 200
# When more comes, one turn decides so much for strangers.
UNITS = 60
# However much the known ask for, and however late the turn is, strangers are not left with nothing.
LEAST_UNITS = 10
# So many notifications of a request cost as much as another message.
NOTIFICATIONS_A_UNIT = 5
# A request is known by its first notifications: honest ones have one for each installation of a user.
MOST_NAMED = 10
# Addresses remembered. Others are strangers while all of these wait for tokens.
MOST_REMEMBERED = 50_000


def cost(decoded: Decoded | None) -> int:
    """Return what it costs to decide about a message, in units. What could not be opened is only closed."""
    if decoded is None:
        return 0
    if isinstance(decoded.body, PushRequest):
        return 1 + len(decoded.body.notifications) // NOTIFICATIONS_A_UNIT
    return 1


def named(decoded: Decoded | None) -> list[Named]:
    """Return the installations by which a message may be known."""
    match decoded and decoded.body:
        case PushRequest(notifications=notifications):
            return [Named(n.public_key_hash, n.installation_id, n.access_token) for n in notifications[:MOST_NAMED]]
        # PostgreSQL's text cannot hold NUL. Requests with it are dropped when they are opened, and registrations are
        # refused when they are decided.
        case Registration(registration=told) if decoded and told and "\0" not in told.installation_id:
            return [Named(key_hash(decoded.author), told.installation_id)]
        case _:
            return []


class Room:
    """What a turn of this process has room for, and how often addresses went first lately."""

    def __init__(
        self, limits: BucketLimits, share: Callable[[], float], clock: Callable[[], float] = monotonic
    ) -> None:
        self._limits = limits
        self._share = share
        self._clock = clock
        self._buckets = Buckets(MOST_REMEMBERED)
        self.begin()

    def begin(self) -> None:
        """Begin another turn. ``is_short`` says later whether some messages were left out of it."""
        self.left = FULL_TURN
        self.is_short = False

    def has(self, costs: Iterable[int]) -> bool:
        """Return whether there is room for all of this."""
        return sum(costs) <= self.left

    def take(self, costs: Iterable[int]) -> None:
        """Take the room for this, also where there is less."""
        self.left -= sum(costs)

    def choose(self, costs: Sequence[int], addresses: Sequence[Sequence[bytes]], *, units: int = UNITS) -> set[int]:
        """Return the positions of the messages that are decided now, and take their room.

        ``addresses`` are those that each message is known by, and ``units`` is the most that strangers get.
        """
        known = {place for place, each in enumerate(addresses) if any(self._goes_first(address) for address in each)}
        self.take(costs[place] for place in known)
        strangers = sorted((each, place) for place, each in enumerate(costs) if place not in known)
        chosen = known | set(self._fitting(strangers, units))
        self.is_short = len(chosen) < len(costs)
        return chosen

    def _fitting(self, strangers: Iterable[tuple[int, int]], units: int) -> Iterator[int]:
        """Yield the places of the strangers that there is room for, who come with their costs."""
        self.left = max(min(self.left, units), LEAST_UNITS)
        for each, place in strangers:
            if self.left <= 0 and each:
                return
            self.left -= each
            yield place

    def _goes_first(self, address: bytes) -> bool:
        """Return whether the bucket of an address has a token, and take it. Where no room is left for another bucket,
        the address is a stranger's.
        """
        charge, now = Charge(address, part(self._limits, self._share())), self._clock()
        goes_first = self._buckets.has(charge, now=now) and self._buckets.spend(charge, now=now)
        self._buckets.keep()
        return goes_first
