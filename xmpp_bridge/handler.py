"""Handler that answers the stanzas of a connection. It runs in one thread, which has the process' database connection.

While the database is away, every push and command is still answered, with an error of type `wait`. Servers that repeat
it then lose nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic
from typing import TypeVar

import structlog
from django.db import Error, connection
from django.db.models.functions import Now

from kit.db.base import fetch, set_timeouts, write
from kit.db.clock import clock
from kit.db.reasons import is_closed, is_conflict, is_lock_timeout, is_unavailable
from kit.db.sessions import BATCH_WORKER, Timeouts, set_all
from xmpp_bridge import devices, statements
from xmpp_bridge.codec import answers
from xmpp_bridge.codec.elements import NS
from xmpp_bridge.commands import ACTIONS
from xmpp_bridge.devices import Ended, Registering
from xmpp_bridge.inbound import Inbound
from xmpp_bridge.limits import Limits
from xmpp_bridge.messages import Command, Errors, IqAnswer, PushNotification, Query, Refused, StanzaEvent, parse_jid
from xmpp_bridge.metrics import ANSWER_SECONDS, PUSHES, STANZAS
from xmpp_bridge.models import CanaryStanza
from xmpp_bridge.rules import Domains, Verdict, answer_to

log = structlog.get_logger(__name__)
T = TypeVar("T")

NAME = "Push service"
# Another process may write the same row at the same moment. It has committed by the time that our statement fails.
ATTEMPTS = 3
# A database that hangs counts as away after the statement timeout, while users' servers still wait for an answer. The
# shorter lock timeout distinguishes a row that another session holds.
TIMEOUTS = Timeouts(statement_seconds=5, lock_seconds=1)
CLOCK_SET_EVERY_SECONDS = 30.0
# Seconds for stanzas other than pushes in one batch, so that the next pushes do not wait. A command takes 2 ms.
OTHERS_SECONDS = 0.05
# Stanzas other than pushes that may wait for the next batch. Commands beyond this number are refused with `wait`.
MAX_OTHERS = 500
# Stanzas of the canary that wait for an answer. One run is under way at a time, and waits for one answer at a time.
MAX_UNANSWERED = 8
NO_CONDITION = "undefined-condition"


@dataclass(frozen=True, slots=True)
class Arrived:
    """One decoded stanza, its time of arrival (monotonic), and its size in bytes."""

    event: StanzaEvent = field(repr=False)
    at: float
    size: int


class Unavailable(Exception):  # noqa: N818 - names a state
    """The database is away or hangs, or another session holds the row."""


class StanzaHandler:
    """The handler of one component. ``domain`` is our own."""

    def __init__(self, domain: str, limits: Limits, domains: Domains) -> None:
        self._domain = domain
        self._inbound = Inbound(limits, domains)
        self._registering = Registering(domain, limits, domains)
        self._clock_set_at = float("-inf")
        # The database counts as away until this time (monotonic). The pause is as long as the failed attempt was, so
        # that a host that drops packets blocks the handler for half of the time at most.
        self._retry_at = float("-inf")
        # Ids of the canary's stanzas that have no answer yet. The oldest are forgotten.
        self._unanswered: deque[str] = deque(maxlen=MAX_UNANSWERED)

    def connect(self) -> None:
        """Begin a connection: answers that were written to the one before may be lost."""
        self._inbound.connect()

    def close(self) -> None:
        """Close the database connection."""
        connection.close()

    def answer(self, batch: Sequence[Arrived]) -> tuple[list[bytes], list[Arrived]]:
        """Return the answers to a batch, and the stanzas that the caller passes in again with the next one.

        Pushes are answered first, also if they arrived after other stanzas. All other stanzas get OTHERS_SECONDS. At
        most MAX_OTHERS of them wait for the next batch, because they fill the memory, and the pushes behind them are
        not read. The method never raises, so that every request gets an answer.
        """
        pushes: list[PushNotification] = []
        others: deque[Arrived] = deque()
        times = []
        for arrived in batch:
            if isinstance(arrived.event, PushNotification):
                waited = timedelta(seconds=monotonic() - arrived.at)
                pushes.append(replace(arrived.event, arrived_at=clock.now() - waited))
                times.append(arrived.at)
            else:
                others.append(arrived)
        answers = [self._write(push, verdict) for push, verdict in zip(pushes, self._accept(pushes), strict=True)]
        until = monotonic() + OTHERS_SECONDS
        while others and monotonic() < until:
            arrived = others.popleft()
            answers.append(self._answer_other(arrived.event))
            times.append(arrived.at)
        while len(others) > MAX_OTHERS:
            arrived = others.pop()
            answers.append(self._answer_other(arrived.event, is_urgent=True))
            times.append(arrived.at)
        ANSWER_SECONDS.observe_all([monotonic() - at for at in times])
        return [answer for answer in answers if answer], [*others]

    # Pushes -----------------------------------------------------------------------------------------------------------

    def _accept(self, pushes: Sequence[PushNotification]) -> list[Verdict]:
        """Accept all pushes together. If one raises, accept each alone, so that it does not stop the others."""
        if not pushes:
            return []
        try:
            return self._repeat(lambda: self._inbound.accept(pushes, now=clock.now()))
        except Exception as error:  # noqa: BLE001 - it is logged, and the sender is answered in any case
            if len(pushes) > 1 and not isinstance(error, Unavailable):
                return [verdict for push in pushes for verdict in self._accept([push])]
        for push in pushes:
            PUSHES.labels(push.dialect, Verdict.NOT_STORED).inc()
        return [Verdict.NOT_STORED] * len(pushes)

    def _write(self, push: PushNotification, verdict: Verdict) -> bytes:
        error = answer_to(push, verdict)
        if error:
            return answers.write_error(push.origin, error, by=self._domain)
        return answers.write_result_iq(push.origin) if push.origin.stanza == "iq" else b""

    # Other stanzas ----------------------------------------------------------------------------------------------------

    def _answer_other(self, event: StanzaEvent, *, is_urgent: bool = False) -> bytes:
        """Return the answer to a stanza. A command that is urgent is refused, because it takes too long."""
        STANZAS.labels(_kind_of(event)).inc()
        match event:
            case IqAnswer():
                self._note_answer(event)
            case Query():
                return self._answer_query(event)
            case Command():
                return self._registering.refuse(event, Errors.BUSY) if is_urgent else self._answer_command(event)
            case Refused(origin, error):
                return answers.write_error(origin, error, by=self._domain)
        return b""

    def _answer_command(self, command: Command) -> bytes:
        try:
            return self._repeat(lambda: self._registering.answer(command, now=clock.now()))
        except Exception:  # noqa: BLE001 - it is logged, and the sender is answered in any case
            return self._registering.refuse(command, Errors.TROUBLE)

    def _answer_query(self, query: Query) -> bytes:
        origin, node = query.origin, query.node
        match query.namespace:
            case NS.PING:
                return answers.write_result_iq(origin)
            case NS.DISCO_ITEMS:
                actions = ACTIONS.items() if node == NS.COMMANDS else ()
                return answers.write_items(origin, node, {name: action.name for name, action in actions})
            case NS.DISCO_INFO if not node or node in ACTIONS:
                return answers.write_info(origin, node, ACTIONS[node].name if node else NAME)
        return answers.write_error(origin, Errors.NOT_FOUND, by=self._domain)

    # Stanzas of our own, among them those of the canary, which go to ourselves through the XMPP server ----------------

    def take_own(self) -> tuple[list[Ended], list[bytes]]:
        """Return ends that are to be announced, and stanzas to be sent. There are none while the database is away.

        The stanzas of the canary are marked as sent, so that each is sent once.
        """
        both = self._unless_unavailable(lambda: (devices.find_ended(), fetch(statements.TAKE_CANARY_STANZAS)))
        ended, queued = both or ([], [])
        self._unanswered.extend(stanza_id for stanza_id, _ in queued)
        return ended, [text.encode() for _, text in queued]

    def note_announced(self, ended: list[Ended]) -> None:
        """Record that these ends were announced. If that fails, they are announced once more."""
        self._unless_unavailable(lambda: devices.note_announced(ended))

    def _note_answer(self, answer: IqAnswer) -> None:
        """Record the answer to a stanza of the canary. Nobody else can guess its id, or send from our domain."""
        sender = parse_jid(answer.sender)
        if answer.id not in self._unanswered or sender is None or sender.domain != self._domain:
            return
        self._unanswered.remove(answer.id)
        error = (answer.condition or NO_CONDITION) if answer.is_error else ""
        noted = {"answered_at": Now(), "error": error, "is_own_error": answer.is_error and answer.by == self._domain}
        self._unless_unavailable(
            lambda: CanaryStanza.objects.filter(pk=answer.id, answered_at__isnull=True).update(**noted)
        )

    # The database -----------------------------------------------------------------------------------------------------

    def _repeat(self, work: Callable[[], T]) -> T:
        """Do the work. Repeat it after a conflict, and once after the connection broke.

        Raises Unavailable while the database is away or hangs, or another session holds a row. Any other error of the
        work is raised as it is.
        """
        for attempts_left in reversed(range(ATTEMPTS)):
            began_at, was_connected = monotonic(), connection.connection is not None
            if not was_connected and began_at < self._retry_at:
                break
            try:
                self._prepare()
                return work()
            except Exception as error:
                _hang_up(error)
                if is_lock_timeout(error):  # the database is not away: another session holds the row
                    break
                if is_unavailable(error) and not (was_connected and is_closed(error)):
                    self._retry_at = 2 * monotonic() - began_at
                    break
                if not attempts_left or not (is_unavailable(error) or is_conflict(error)):
                    raise
        raise Unavailable

    def _prepare(self) -> None:
        """Open the database connection with its timeouts and set the clock, where necessary."""
        if connection.connection is None:
            connection.ensure_connection()
            set_timeouts(TIMEOUTS)
            write(f"SELECT {set_all(BATCH_WORKER)}")
            self._clock_set_at = float("-inf")
        if monotonic() - self._clock_set_at > CLOCK_SET_EVERY_SECONDS:
            [(now,)] = fetch("SELECT clock_timestamp()")
            clock.set(now)
            self._clock_set_at = monotonic()

    def _unless_unavailable(self, work: Callable[[], T]) -> T | None:
        """Do work that is repeated later in any case, and return None if the database fails."""
        try:
            return self._repeat(work)
        except (Unavailable, Error):
            return None


def _kind_of(event: StanzaEvent) -> str:
    """Return the label of a stanza in metrics."""
    if isinstance(event, Refused):
        return "malformed" if event.error == Errors.BAD_REQUEST else "unsupported"
    return {Command: "command", Query: "query", IqAnswer: "answer"}.get(type(event), "ignored")


def _hang_up(error: Exception) -> None:
    """Log a failure by its type, because its text may quote stored values. Close the connection on a database error."""
    if is_conflict(error):
        return
    log.warning("not_stored", error=type(error).__name__)
    if isinstance(error, Error):
        connection.close()
