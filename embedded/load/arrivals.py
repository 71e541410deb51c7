"""Arrivals of sent messages: how many were lost or doubled, and how late they came. The module is pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kit.figures import Distribution, distribution

Id = TypeVar("Id", bytes, str)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrivals of one kind. ``latency_ms`` is the time from the due moment of each to its first arrival."""

    arrived: int
    lost: int
    doubled: int
    latency_ms: Distribution | None


def arrivals(due_ns: Mapping[Id, int], arrived: Sequence[tuple[Id, int]]) -> Arrivals:
    """Return the arrivals of these messages, given when each was due (Unix nanoseconds), and of no others."""
    first: dict[Id, int] = {}
    doubled: set[Id] = set()
    for identifier, at_ns in sorted(arrived, key=lambda arrival: arrival[1]):
        if identifier in first:
            doubled.add(identifier)
        elif identifier in due_ns:
            first[identifier] = at_ns
    latencies = [(at_ns - due_ns[identifier]) / 1e6 for identifier, at_ns in first.items()]
    return Arrivals(len(first), len(due_ns) - len(first), len(doubled), distribution(latencies))
