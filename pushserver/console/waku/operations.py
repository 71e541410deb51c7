"""Console operations on envelopes and dead letters: each describes its effect before an operator confirms it."""

from collections.abc import Iterable, Sequence

from kit.db.clock import database_now
from pushserver.console.toolkit.operations import Done, Operation
from pushserver.console.waku import operator_actions
from waku_bridge.inbox import faults
from waku_bridge.models import DeadLetter, EnvelopeFault, InboundEnvelope

ALREADY = "Already done: nothing was changed."


class ProcessAgain(Operation):
    label = "Process again"
    permission = "waku_bridge.operate_inboundenvelope"

    @classmethod
    def fits(cls, row: InboundEnvelope) -> bool:
        return row.state == InboundEnvelope.State.FAILED

    def touched(self, rows: Sequence[InboundEnvelope]) -> Iterable[str]:
        yield f"Envelopes that failed, and would be processed again within seconds: {_failed(rows)} of {len(rows)}."
        yield "Their senders may have given up waiting for the answer; a notification in them is still sent."

    def run(self, rows: Sequence[InboundEnvelope], *, by: str) -> Done:
        count = operator_actions.process_again([row.hash for row in rows])
        return Done(f"Envelopes to be processed again: {count}.") if count else Done(ALREADY, is_change=False)


class ProcessAllAgain(Operation):
    """Process all envelopes again that failed by a fault, so that the operator who repaired it need not find them."""

    label = "Process again"
    permission = "waku_bridge.operate_inboundenvelope"

    def touched(self, rows: Sequence[EnvelopeFault]) -> Iterable[str]:
        count = len(faults.waiting([row.pk for row in rows]))
        fault = "this fault" if len(rows) == 1 else "these faults"
        yield f"Envelopes that failed by {fault}, and would be processed again: {count}."
        yield "Until it is repaired they fail again. Nothing is lost by that, because their payloads are kept."
        yield "Their senders may have given up waiting for the answer; a notification in them is still sent."

    def run(self, rows: Sequence[EnvelopeFault], *, by: str) -> Done:
        count = operator_actions.process_again(faults.waiting([row.pk for row in rows]))
        return Done(f"Envelopes to be processed again: {count}.") if count else Done(ALREADY, is_change=False)


class DropEnvelopes(Operation):
    label = "Drop"
    permission = "waku_bridge.operate_inboundenvelope"
    is_destructive = True

    @classmethod
    def fits(cls, row: InboundEnvelope) -> bool:
        return row.state == InboundEnvelope.State.FAILED

    def touched(self, rows: Sequence[InboundEnvelope]) -> Iterable[str]:
        yield f"Envelopes that failed, and would never be processed: {_failed(rows)} of {len(rows)}."
        yield "Their messages are lost."

    def run(self, rows: Sequence[InboundEnvelope], *, by: str) -> Done:
        count = operator_actions.drop_envelopes([row.hash for row in rows])
        return Done(f"Dropped envelopes: {count}.") if count else Done(ALREADY, is_change=False)


def _failed(rows: Sequence[InboundEnvelope]) -> int:
    return sum(row.state == InboundEnvelope.State.FAILED for row in rows)


class ReadLettersAgain(Operation):
    label = "Read again"
    permission = "waku_bridge.operate_deadletter"
    removes_rows = True

    def touched(self, rows: Sequence[DeadLetter]) -> Iterable[str]:
        yield f"Dead letters that are read once more: {len(rows)}. Those that can be read now go into the inbox."
        yield "The others stay."

    def run(self, rows: Sequence[DeadLetter], *, by: str) -> Done:
        read = operator_actions.read_again([row.digest for row in rows], now=database_now())
        message = f"Put into the inbox: {read.taken}. Still not readable: {read.unreadable}."
        return Done(message, is_change=bool(read.taken))


class DropLetters(Operation):
    label = "Drop"
    permission = "waku_bridge.operate_deadletter"
    is_destructive = removes_rows = True

    def touched(self, rows: Sequence[DeadLetter]) -> Iterable[str]:
        yield f"Dead letters that are removed for good: {len(rows)}."

    def run(self, rows: Sequence[DeadLetter], *, by: str) -> Done:
        count = operator_actions.drop_letters([row.digest for row in rows])
        return Done(f"Dropped dead letters: {count}.") if count else Done(ALREADY, is_change=False)
