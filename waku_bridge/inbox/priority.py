"""Priority rule of the inbox: which messages of a batch are decided now. Pure: the clock is an argument.

    the batch costs at most `BUDGET`, and the inbox keeps up ──▶ all messages are decided
    else ──┬── messages about a proven address whose bucket has a token ──▶ decided, up to `BUDGET`
           └── all others, the cheapest first ──▶ decided, up to the rest of `BUDGET`, or up to `SHARE` while the
                                                  inbox is behind; then postponed

The inbox is behind from a full batch with a message that waited longer than `THRESHOLD` until a batch that is not full.
A message is about the address that it notifies or registers. Its sender does not count, because keys cost nothing.
Queries are about nobody's address, and those beyond `QUERY_SHARE` are postponed in any case.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import NamedTuple

from kit.buckets.bucket import BucketLimits, Buckets, Charge, part
from notifications.messages import PushRequest
from registrations.messages import Named
from waku_bridge.codec.keys import key_hash
from waku_bridge.messages import Decoded, Query, Registration

# Units that a batch decides. An ordinary message costs one unit, and a batch has as many rows.
BUDGET = 200
# Units for messages about no proven address: their limit while the inbox is behind, and their minimum otherwise.
SHARE = 15
# Units of postponed messages that a batch decides when it took nothing from the inbox, instead of `SHARE`. A message
# that comes meanwhile waits for them: some 100 ms if they are registrations.
SHARE_OF_IDLE = 60
# Units of a query, whose answer is sealed and may be long, and units for all queries of a batch.
QUERY_UNITS = 4
QUERY_SHARE = BUDGET // 4
THRESHOLD = timedelta(milliseconds=500)
# Notifications of a request, and bytes of any message, that cost as much as another message.
NOTIFICATIONS_PER_UNIT = 5
BYTES_PER_UNIT = 4096
# Limit of the notifications that are read to see whom a request is about. An honest request has one for each
# installation of a user.
MAX_NAMED = 10
# Limit of the buckets in memory. While all are in use, a further address counts as unproven.
CAPACITY = 50_000


def cost(decoded: Decoded | None, size_bytes: int) -> int:
    """Return the cost of deciding about a message, in units. An envelope that could not be opened costs nothing."""
    if decoded is None:
        return 0
    units = 1 + size_bytes // BYTES_PER_UNIT
    match decoded.body:
        case PushRequest(notifications=notifications):
            return max(units, 1 + len(notifications) // NOTIFICATIONS_PER_UNIT)
        case Query():
            return max(units, QUERY_UNITS)
        case _:
            return units


def named(decoded: Decoded | None) -> list[Named]:
    """Return the installations that a message is about."""
    match decoded and decoded.body:
        case PushRequest(notifications=notifications):
            return [Named(n.public_key_hash, n.installation_id, n.access_token) for n in notifications[:MAX_NAMED]]
        # PostgreSQL's text cannot hold NUL. A request with NUL is dropped when it is opened, and a registration with
        # NUL is refused when it is decided.
        case Registration(registration=message) if decoded and message and "\0" not in message.installation_id:
            return [Named(key_hash(decoded.author), message.installation_id, version=message.version)]
        case _:
            return []


class Chosen(NamedTuple):
    """Indexes of the messages that are decided now, and of those that are postponed.

    Messages about proven addresses beyond the budget are in neither: they stay in the inbox.
    """

    decided: set[int]
    postponed: set[int]


class Priority:
    """The rule in one process, with the token buckets of the addresses that were decided first."""

    def __init__(
        self, limits: BucketLimits, share: Callable[[], float], clock: Callable[[], float] = monotonic
    ) -> None:
        self._limits = limits
        self._share = share
        self._clock = clock
        self._buckets = Buckets(CAPACITY)
        self.is_behind = False

    def decides_all(self, costs: Iterable[int], *, is_full: bool, waited: timedelta) -> bool:
        """Return whether all of a batch is decided, and note whether the inbox is behind.

        ``is_full`` says that the batch reached its limit, and ``waited`` is how long its oldest message waited.
        """
        is_within_budget = sum(costs) <= BUDGET
        is_full = is_full or not is_within_budget
        self.is_behind = is_full and (self.is_behind or waited > THRESHOLD)
        return is_within_budget and not self.is_behind

    def choose(self, costs: Sequence[int], addresses: Sequence[Sequence[bytes]]) -> Chosen:
        """Choose from the messages of a batch beyond the budget.

        ``addresses`` holds for each message the proven addresses that it is about.
        """
        decided, left, others = set[int](), BUDGET, []
        for index, about in enumerate(addresses):
            if not about or (left > 0 and not any(map(self._take_token, about))):
                others.append(index)
            elif left > 0:
                decided.add(index)
                left -= costs[index]
        shared = set(cheapest(costs, others, units=SHARE if self.is_behind else max(left, SHARE)))
        return Chosen(decided | shared, {*others} - shared)

    def _take_token(self, address: bytes) -> bool:
        """Take a token from the bucket of an address, and return whether there was one."""
        charge, now = Charge(address, part(self._limits, self._share())), self._clock()
        has_token = self._buckets.has(charge, now=now) and self._buckets.spend(charge, now=now)
        self._buckets.keep()
        return has_token


def cheapest(costs: Sequence[int], indexes: Iterable[int], *, units: int = SHARE) -> Iterator[int]:
    """Yield the indexes of the messages that fit into ``units``, the cheapest first, and the first one in any case.

    So a request with hundreds of notifications delays no other message, and it is still decided.
    """
    for index in sorted(indexes, key=costs.__getitem__):
        if units <= 0 and costs[index]:
            return
        units -= costs[index]
        yield index


def fitting(costs: Sequence[int], indexes: Iterable[int], *, units: int) -> Iterator[int]:
    """Yield the indexes of the messages that together cost at most ``units``, the cheapest first."""
    for index in sorted(indexes, key=costs.__getitem__):
        units -= costs[index]
        if units < 0:
            return
        yield index
