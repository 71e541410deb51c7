"""Senders in the console: who asks for more than the limits allow, and muting them."""

from collections.abc import Iterable, Sequence

from kit.admin.operations import Done, Operation
from kit.db.clock import database_now
from notifications.models import NotificationRequest, Sender
from notifications.queues import admission

ALREADY = "Already done: nothing was changed."


class MuteSender(Operation):
    label = "Mute this sender"
    permission = "notifications.operate_sender"
    is_destructive = True

    def touched(self, rows: Sequence[Sender]) -> Iterable[str]:
        yield f"Nothing is delivered that {_senders(len(rows))} will ask for, within seconds, until somebody unmutes."
        yield "They are told success and learn nothing. What waits already is delivered."

    def run(self, rows: Sequence[Sender], *, by: str) -> Done:
        return _mute([bytes(row.digest) for row in rows], self.cleaned_data["why"], by=by)


class MuteSenderOfRequest(MuteSender):
    """The same, starting from what the sender asked for."""

    def touched(self, rows: Sequence[NotificationRequest]) -> Iterable[str]:  # type: ignore[override]
        return super().touched([Sender(digest=digest) for digest in _digests(rows)])

    def run(self, rows: Sequence[NotificationRequest], *, by: str) -> Done:  # type: ignore[override]
        return _mute(_digests(rows), self.cleaned_data["why"], by=by)


class UnmuteSender(Operation):
    label = "Unmute"
    permission = "notifications.operate_sender"

    def touched(self, rows: Sequence[Sender]) -> Iterable[str]:
        muted = [row for row in rows if row.muted_at]
        yield f"What {_senders(len(muted))} will ask for is delivered again. What was asked for meanwhile is not."

    def run(self, rows: Sequence[Sender], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        count = admission.unmute([bytes(row.digest) for row in rows])
        return Done(f"Unmuted {_senders(count)}.") if count else Done(ALREADY, is_change=False)


def _mute(digests: Sequence[bytes], why: str, *, by: str) -> Done:
    count = admission.mute(digests, by=by, why=why, now=database_now())
    return Done(f"Muted {_senders(count)}.") if count else Done(ALREADY, is_change=False)


def _digests(rows: Sequence[NotificationRequest]) -> list[bytes]:
    return sorted({bytes(row.sender_digest) for row in rows if row.sender_digest})


def _senders(count: int) -> str:
    return "1 sender" if count == 1 else f"{count} senders"
