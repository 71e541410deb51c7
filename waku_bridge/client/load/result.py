"""What a load showed: latencies, losses, duplicates, and how much of it is the generator's own. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from waku_bridge.client.load.ammunition import Ammunition
from waku_bridge.client.load.figures import Distribution, distribution
from waku_bridge.client.load.listening import Heard
from waku_bridge.client.load.shooting import Shots


@dataclass(frozen=True, slots=True)
class Generator:
    """``lag_ms`` is by how much requests left too late: a figure near the latencies makes them worthless."""

    cpu_ms_per_request: float
    share_of_core: float
    build_cpu_ms_per_request: float
    sent_per_second: float
    most_in_flight: int
    lag_ms: Distribution | None
    publish_ms: Distribution | None
    refused_by_node: dict[str, int]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of one kind. ``latency_ms`` counts from the moment a request was due to the first arrival."""

    arrived: int
    lost: int
    doubled: int
    latency_ms: Distribution | None


@dataclass(frozen=True, slots=True)
class Result:
    """``pushes`` is None when gorush keeps no record. ``failed`` counts answers that were no success."""

    requests: int
    pushes: Arrivals | None
    replies: Arrivals
    failed: int
    generator: Generator

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled, refused or failed."""
        arrivals = [self.replies, *([self.pushes] if self.pushes else [])]
        troubles = (
            sum(a.lost + a.doubled for a in arrivals) + self.failed + sum(self.generator.refused_by_node.values())
        )
        return troubles == 0


def evaluate(
    ammunition: Ammunition, shots: Shots, heard: Sequence[Heard], pushes: Sequence[tuple[bytes, int]] | None
) -> Result:
    count = len(ammunition.message_ids)
    return Result(
        requests=count,
        pushes=None if pushes is None else _arrivals(ammunition, pushes),
        replies=_arrivals(ammunition, [(message_id, at_ns) for message_id, _, at_ns in heard]),
        failed=len({message_id for message_id, is_success, _ in heard if not is_success}),
        generator=Generator(
            cpu_ms_per_request=round(shots.cpu_seconds * 1000 / count, 3),
            share_of_core=round(shots.cpu_seconds / max(shots.wall_seconds, 1e-9), 3),
            build_cpu_ms_per_request=round(ammunition.build_seconds * 1000 / count, 3),
            sent_per_second=round(count / max(_span_seconds(ammunition, shots), 1e-9), 1),
            most_in_flight=shots.most_in_flight,
            lag_ms=distribution(shots.lags_ms),
            publish_ms=distribution(shots.publish_ms),
            refused_by_node=dict(shots.refused),
        ),
    )


def _span_seconds(ammunition: Ammunition, shots: Shots) -> float:
    """From the moment the first was due until the last was started, and the pause that follows each."""
    planned = (ammunition.due_ns[-1] - ammunition.due_ns[0]) / 1e9
    pause = planned / max(1, len(ammunition.due_ns) - 1)
    return planned + pause + (shots.lags_ms[-1] / 1000 if shots.lags_ms else 0)


def _arrivals(ammunition: Ammunition, arrived: Sequence[tuple[bytes, int]]) -> Arrivals:
    """What is about other messages than ours is somebody else's."""
    due = dict(zip(ammunition.message_ids, ammunition.due_ns, strict=True))
    first: dict[bytes, int] = {}
    doubled: set[bytes] = set()
    for message_id, at_ns in sorted(arrived, key=lambda arrival: arrival[1]):
        if message_id in first:
            doubled.add(message_id)
        elif message_id in due:
            first[message_id] = at_ns
    latencies = [(at_ns - due[message_id]) / 1e6 for message_id, at_ns in first.items()]
    return Arrivals(len(first), len(due) - len(first), len(doubled), distribution(latencies))
