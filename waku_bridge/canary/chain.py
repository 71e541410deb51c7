"""The round trip itself: register, ask, notify, unregister, and how long each link takes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic

from waku_bridge.canary.diagnosis import Cause, Diagnosis, Facts, Link, diagnose, push_trouble
from waku_bridge.canary.line import Line
from waku_bridge.canary.traces import gorush_latency_ms, look
from waku_bridge.client import (
    Core,
    Refused,
    RegisteringClient,
    RegistrationRefused,
    SendingClient,
    Standing,
)
from waku_bridge.messages import WakuMessage
from waku_bridge.node import NodeError

POLL_SECONDS = 0.05
# Between messages the canary only waits, and after a while it asks less often.
LONG_POLL_SECONDS = 0.25
LONG_AFTER_SECONDS = 2.0


class ChainBroken(Exception):  # noqa: N818 - says what happened
    """A link of the chain does not hold, for the reason in ``diagnosis``."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.cause)
        self.diagnosis = diagnosis


@dataclass(slots=True)
class Chain:
    """One run. ``timings_ms`` has the links that held, also after ChainBroken."""

    line: Line
    patience_seconds: float
    timings_ms: dict[Link, int] = field(default_factory=dict)

    def register(self, phone: RegisteringClient, server: bytes) -> None:
        """Register the phone.

        Raises ChainBroken.
        """
        self._tell(phone, server, Link.REGISTER, Link.REGISTER_ANSWER)

    def unregister(self, phone: RegisteringClient, server: bytes) -> None:
        """Unregister the phone.

        Raises ChainBroken.
        """
        phone.unregister()
        self._tell(phone, server, Link.UNREGISTER, Link.UNREGISTER_ANSWER)

    def look_up(self, sender: SendingClient, client: bytes) -> None:
        """Ask where the client can be notified.

        Raises ChainBroken.
        """
        sender.look_up(client)
        self._ask(sender, Link.QUERY, Link.QUERY_ANSWER, lambda: bool(sender.destinations(client)))

    def notify(self, sender: SendingClient, client: bytes, message_id: bytes) -> None:
        """Have the client notified.

        Raises ChainBroken, also when the sender is told success and gorush did not take the push.
        """
        sender.notify(client, sender.one_to_one(), message_id)
        is_answered = lambda: sender.result(client, message_id) is not None  # noqa: E731
        self._ask(sender, Link.REQUEST, Link.REQUEST_ANSWER, is_answered)
        if trouble := push_trouble(self._wait_for_gorush()):
            raise ChainBroken(trouble)
        self.timings_ms[Link.GORUSH] = gorush_latency_ms() or 0
        notified = sender.result(client, message_id)
        if notified is None or not notified.is_notified:
            raise ChainBroken(Diagnosis(Link.REQUEST_ANSWER, Cause.WORKER, "the sender was told a failure"))

    def _tell(self, phone: RegisteringClient, server: bytes, question: Link, answer: Link) -> None:
        def is_accepted() -> bool:
            slot = phone.standing(server)
            return slot is not None and slot.standing is Standing.ACCEPTED

        self._ask(phone, question, answer, is_accepted)

    def _ask(self, core: Core, question: Link, answer: Link, is_answered: Callable[[], bool]) -> None:
        started = monotonic()
        self._say(core, question)
        said = monotonic()
        self.timings_ms[question] = _ms(said - started)
        self._listen(core, answer, is_answered, since=said)
        self.timings_ms[answer] = _ms(monotonic() - said)

    def _say(self, core: Core, question: Link) -> None:
        try:
            for message in core.tick(time.time_ns()).messages:
                self.line.say(_fleeting(message))
        except NodeError as error:
            raise ChainBroken(Diagnosis(question, Cause.NODE, str(error))) from error

    def _listen(self, core: Core, answer: Link, is_answered: Callable[[], bool], *, since: float) -> None:
        """Wait for the answer. What the core wants to say meanwhile is not sent, because nothing is attempted twice
        here.
        """
        refused: list[Refused] = []
        while not is_answered():
            waited = monotonic() - since
            if refused or waited > self.patience_seconds:
                raise ChainBroken(self._why(answer, refused))
            time.sleep(POLL_SECONDS if waited < LONG_AFTER_SECONDS else LONG_POLL_SECONDS)
            events = [event for m in self.line.hear(core) for event in core.receive(m, time.time_ns()).events]
            refused = [event for event in events if isinstance(event, Refused)]

    def _why(self, answer: Link, refused: list[Refused]) -> Diagnosis:
        if refused:
            return Diagnosis(answer, Cause.WORKER, f"refused: {RegistrationRefused(refused[0].error, b'')}")
        found = diagnose(answer, look(self.line.said[-1]))
        is_unheard = found.cause == Cause.REPLY and self.line.deaf
        return replace(found, detail=f"no store can be asked: {self.line.deaf}") if is_unheard else found

    def _wait_for_gorush(self) -> Facts:
        """Return what is known once gorush has answered: the sender may be answered before that."""
        deadline = monotonic() + self.patience_seconds
        while True:
            facts = look(self.line.said[-1])
            if facts.attempt or monotonic() > deadline:
                return facts
            time.sleep(POLL_SECONDS)


def _fleeting(message: WakuMessage) -> WakuMessage:
    """Return the message as one that stores do not keep: read from a store when its traces are gone, it would count as
    new.
    """
    return replace(message, ephemeral=True)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
