"""The result of a load: latencies, losses, duplicates, and the generator's own share of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from embedded.load.arrivals import Arrivals, arrivals
from embedded.load.waku.replies import Reply
from embedded.load.waku.requests import LoadRequests
from embedded.load.waku.sender import Sent
from kit.figures import Distribution, distribution


@dataclass(frozen=True, slots=True)
class Generator:
    """The cost of the load for the generator itself.

    ``lag_ms`` is the delay with which requests left: a delay near the latencies makes them worthless.
    """

    cpu_ms_per_request: float
    share_of_core: float
    build_cpu_ms_per_request: float
    sent_per_second: float
    max_in_flight: int
    lag_ms: Distribution | None
    publish_ms: Distribution | None
    refused_by_node: dict[str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load. ``pushes`` is None when gorush keeps no record.

    ``merged`` counts the requests that were answered with success, and whose phone got a later wake-up instead of a
    push of their own, because they were beyond a limit. ``refused`` counts those that the node refused, or that were
    answered without success. What is neither, and did not arrive, is lost.
    """

    requests: int
    pushes: Arrivals | None
    replies: Arrivals
    merged: int
    refused: int
    generator: Generator

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was lost or doubled. A push that a limit merged or refused is accounted for."""
        both = [self.replies, *([self.pushes] if self.pushes else [])]
        return sum(each.lost + each.doubled for each in both) == 0


def evaluate(
    load_requests: LoadRequests, sent: Sent, replies: Sequence[Reply], pushes: Sequence[tuple[bytes, int]] | None
) -> Result:
    """Return the result of a load."""
    count = len(load_requests.message_ids)
    not_sent = {load_requests.message_ids[number] for number in sent.not_sent}
    due_ns = dict(zip(load_requests.message_ids, load_requests.due_ns, strict=True))
    refused = {message_id for message_id, is_success, _ in replies if not is_success} | not_sent
    answered = {message_id for message_id, *_ in replies} - refused
    merged = _woken(load_requests, pushes or ()) & answered
    excused = (merged | refused) - {identifier for identifier, _ in pushes or ()}
    return Result(
        requests=count,
        pushes=None if pushes is None else arrivals(_without(due_ns, excused), pushes),
        replies=arrivals(_without(due_ns, not_sent), [(message_id, at_ns) for message_id, _, at_ns in replies]),
        merged=len(merged & excused),
        refused=len(refused & due_ns.keys()),
        generator=Generator(
            cpu_ms_per_request=round(sent.cpu_seconds * 1000 / count, 3),
            share_of_core=round(sent.cpu_seconds / max(sent.wall_seconds, 1e-9), 3),
            build_cpu_ms_per_request=round(load_requests.build_seconds * 1000 / count, 3),
            sent_per_second=round(count / max(_span_seconds(load_requests, sent), 1e-9), 1),
            max_in_flight=sent.max_in_flight,
            lag_ms=distribution(sent.lags_ms),
            publish_ms=distribution(sent.publish_ms),
            refused_by_node=dict(sent.refused),
        ),
    )


def _woken(load_requests: LoadRequests, pushes: Sequence[tuple[bytes, int]]) -> set[bytes]:
    """Return the messages whose phone got a wake-up when they were due or later."""
    newest_ns: dict[bytes, int] = {}
    for recipient, at_ns in pushes:
        newest_ns[recipient] = max(at_ns, newest_ns.get(recipient, 0))
    each = zip(load_requests.message_ids, load_requests.due_ns, load_requests.recipients, strict=True)
    return {message_id for message_id, due_ns, recipient in each if newest_ns.get(recipient, -1) >= due_ns}


def _without(due_ns: Mapping[bytes, int], excused: Collection[bytes]) -> dict[bytes, int]:
    return {message_id: at_ns for message_id, at_ns in due_ns.items() if message_id not in excused}


def _span_seconds(load_requests: LoadRequests, sent: Sent) -> float:
    """Return the time from the due moment of the first request to the start of the last, plus one pause."""
    planned = (load_requests.due_ns[-1] - load_requests.due_ns[0]) / 1e9
    pause = planned / max(1, len(load_requests.due_ns) - 1)
    return planned + pause + (sent.lags_ms[-1] / 1000 if sent.lags_ms else 0)
