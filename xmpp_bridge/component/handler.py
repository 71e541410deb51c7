"""Handler that answers the stanzas of a connection. It runs in one thread, which has the process' database connection.

While the database is away, every push and command is still answered, with an error of type `wait`. Servers that repeat
it then lose nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import TypeVar

import structlog
from django.db import Error, connection

from kit.db.clock import clock
from kit.db.postgresql.sessions import BATCH_WORKER, set_all
from kit.db.postgresql.timeouts import Timeouts
from kit.db.reasons import is_closed, is_conflict, is_lock_timeout, is_unavailable
from kit.db.statements import fetch, write
from kit.db.timeouts import set_timeouts
from xmpp_bridge.codec import answers
from xmpp_bridge.codec.jids import parse_jid
from xmpp_bridge.codec.names import COMMANDS as COMMANDS_NODE
from xmpp_bridge.codec.stanzas import decode, decode_too_large
from xmpp_bridge.codec.stream import Received, TooLarge, Unreadable
from xmpp_bridge.component import announcing, queued_stanzas
from xmpp_bridge.devices.commands import ACTIONS
from xmpp_bridge.devices.registering import Registering
from xmpp_bridge.inbound import Inbound
from xmpp_bridge.messages import (
    Command,
    Ignored,
    IqAnswer,
    Malformed,
    PushNotification,
    Query,
    Question,
    StanzaError,
    StanzaEvent,
    Unsupported,
)
from xmpp_bridge.metrics import ANSWER_SECONDS, PUSHES, STANZAS
from xmpp_bridge.rules.decisions import BAD_REQUEST, NOT_FOUND, Domains, Refusal, Verdict, answer_to
from xmpp_bridge.rules.limits import Limits

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
_NAMES = {
    Command: "command",
    Query: "query",
    Malformed: "malformed",
    Unsupported: "unsupported",
    IqAnswer: "answer",
    Ignored: "ignored",
}


@dataclass(frozen=True, slots=True)
class Arrived:
    """One stanza as the connection read it, or decoded; its time of arrival (monotonic), and its size in bytes."""

    event: Received | TooLarge | Unreadable | StanzaEvent = field(repr=False)
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

    def answer(self, batch: Sequence[Arrived]) -> tuple[list[bytes], list[Arrived]]:
        """Return the answers to a batch, and the stanzas that the caller passes in again with the next one.

        Pushes are answered first, also if they arrived after other stanzas. All other stanzas get OTHERS_SECONDS. At
        most MAX_OTHERS of them wait for the next batch, because they fill the memory, and the pushes behind them are
        not read. The method never raises, so that every request gets an answer.
        """
        decoded = [(arrived, _decode(arrived)) for arrived in batch]
        pushes = [
            (arrived.at, replace(event_read, arrived_at=_time_of(arrived)))
            for arrived, event_read in decoded
            if isinstance(event_read, PushNotification)
        ]
        others = deque(
            (arrived, event_read) for arrived, event_read in decoded if not isinstance(event_read, PushNotification)
        )
        answers = self._answer_pushes([push for _, push in pushes])
        times, until = [at for at, _ in pushes], monotonic() + OTHERS_SECONDS
        while others and monotonic() < until:
            arrived, event_read = others.popleft()
            answers.append(self._answer_other(event_read))
            times.append(arrived.at)
        while len(others) > MAX_OTHERS:
            arrived, event_read = others.pop()
            answers.append(self._answer_at_once(event_read))
            times.append(arrived.at)
        ANSWER_SECONDS.observe_all([monotonic() - at for at in times])
        return [answer for answer in answers if answer], [
            replace(arrived, event=event_read) for arrived, event_read in others
        ]

    def connect(self) -> None:
        """Begin a connection: answers that were written to the one before may be lost."""
        self._inbound.connect()

    def _answer_pushes(self, pushes: Sequence[PushNotification]) -> list[bytes]:
        return [self._write(push, verdict) for push, verdict in zip(pushes, self._accept(pushes), strict=True)]

    def find_ended(self) -> list[announcing.Ended]:
        """Return routes whose end is to be announced. There are none while the database is away."""
        return self._unless_unavailable(announcing.find_ended) or []

    def write_ends(self, ended: list[announcing.Ended]) -> list[bytes]:
        """Return the announcements of these ends."""
        return announcing.write_ends(ended, domain=self._domain)

    def note_announced(self, ended: list[announcing.Ended]) -> None:
        """Record that these ends were announced. If that fails, they are announced once more."""
        self._unless_unavailable(lambda: announcing.note_announced(ended))

    def take_queued(self) -> list[bytes]:
        """Return the queued stanzas of the canary. There are none while the database is away."""
        queued = self._unless_unavailable(queued_stanzas.take) or {}
        self._unanswered.extend(queued)
        return [text.encode() for text in queued.values()]

    def _note_answer(self, answer: IqAnswer) -> None:
        """Record the answer to a stanza of the canary. Nobody else can guess its id, or send from our domain."""
        sender = parse_jid(answer.sender)
        if answer.id not in self._unanswered or sender is None or sender.domain != self._domain:
            return
        self._unanswered.remove(answer.id)
        self._unless_unavailable(lambda: queued_stanzas.note_answer(answer, is_own=answer.by == self._domain))

    def close(self) -> None:
        """Close the database connection."""
        connection.close()

    def _prepare(self) -> bool:
        """Open the database connection with its timeouts and set the clock, where necessary.

        Return False while the database is away.
        """
        if connection.connection is None and monotonic() < self._retry_at:
            return False
        began_at, was_connected = monotonic(), connection.connection is not None
        try:
            if not was_connected:
                connection.ensure_connection()
                set_timeouts(TIMEOUTS)
                write(f"SELECT {set_all(BATCH_WORKER)}")
                self._clock_set_at = float("-inf")
            if monotonic() - self._clock_set_at > CLOCK_SET_EVERY_SECONDS:
                [(now,)] = fetch("SELECT clock_timestamp()")
                clock.set(now)
                self._clock_set_at = monotonic()
        except Error as error:
            if was_connected and is_closed(error):  # the connection broke between two batches
                _hang_up(error)
                return self._prepare()
            self._give_up(error, began_at)
            return False
        return True

    def _give_up(self, error: Exception, began_at: float) -> None:
        """Treat the database as away for as long as the failed attempt took."""
        _hang_up(error)
        self._retry_at = 2 * monotonic() - began_at

    def _repeat(self, work: Callable[[], T]) -> T:
        """Do the work. Repeat it after a conflict, and once after the connection broke.

        Raises Unavailable while the database is away or hangs, or another session holds a row. Any other error of the
        work is raised as it is.
        """
        for attempt in range(ATTEMPTS):
            if not self._prepare():
                raise Unavailable
            began_at = monotonic()
            try:
                return work()
            except Exception as error:
                if is_lock_timeout(error):  # the database is not away: another session holds the row
                    _hang_up(error)
                    raise Unavailable from None
                if is_unavailable(error) and (attempt or not is_closed(error)):
                    self._give_up(error, began_at)
                    raise Unavailable from None
                _hang_up(error)
                if not (is_unavailable(error) or is_conflict(error)) or attempt == ATTEMPTS - 1:
                    raise
        raise Unavailable

    def _unless_unavailable(self, work: Callable[[], T]) -> T | None:
        """Do work that is repeated later in any case, and return None if the database fails."""
        try:
            return self._repeat(work)
        except (Unavailable, Error):
            return None

    def _accept(self, pushes: Sequence[PushNotification]) -> list[Verdict]:
        """Accept all pushes together. If one raises, accept each alone, so that it does not stop the others."""
        if not pushes:
            return []
        try:
            return self._repeat(lambda: self._inbound.accept(pushes, now=clock.now()))
        except Unavailable:
            return self._not_stored(pushes)
        except Exception:  # noqa: BLE001 - it is logged, and the sender is answered in any case
            if len(pushes) > 1:
                return [verdict for push in pushes for verdict in self._accept([push])]
            return self._not_stored(pushes)

    def _not_stored(self, pushes: Sequence[PushNotification]) -> list[Verdict]:
        for push in pushes:
            PUSHES.labels(push.dialect, Verdict.NOT_STORED).inc()
        return [Verdict.NOT_STORED] * len(pushes)

    def _write(self, push: PushNotification, verdict: Verdict) -> bytes:
        error = answer_to(push, verdict)
        if error:
            return answers.write_error(push.origin, error, by=self._domain)
        return answers.write_result_iq(push.origin) if push.origin.stanza == "iq" else b""

    def _answer_other(self, event_read: StanzaEvent) -> bytes:
        STANZAS.labels(_NAMES[type(event_read)]).inc()
        match event_read:
            case IqAnswer():
                self._note_answer(event_read)
            case Query():
                return self._answer_query(event_read)
            case Command():
                return self._answer_command(event_read)
            case Malformed():
                return answers.write_error(event_read.origin, BAD_REQUEST, by=self._domain)
            case Unsupported():
                return answers.write_error(
                    event_read.origin, StanzaError("cancel", event_read.condition), by=self._domain
                )
        return b""

    def _answer_at_once(self, event_read: StanzaEvent) -> bytes:
        """Return the answer to a stanza that must not wait. A command is refused, because it takes too long."""
        if not isinstance(event_read, Command):
            return self._answer_other(event_read)
        STANZAS.labels(_NAMES[Command]).inc()
        return self._registering.refuse(event_read, Refusal.BUSY)

    def _answer_command(self, command: Command) -> bytes:
        try:
            return self._repeat(lambda: self._registering.answer(command, now=clock.now()))
        except Exception:  # noqa: BLE001 - it is logged, and the sender is answered in any case
            return self._registering.refuse(command, Refusal.NOT_STORED)

    def _answer_query(self, query: Query) -> bytes:
        origin, node = query.origin, query.node
        match query.question:
            case Question.PING:
                return answers.write_result_iq(origin)
            case Question.DISCO_ITEMS:
                actions = ACTIONS.items() if node == COMMANDS_NODE else ()
                return answers.write_items(origin, node, {name: action.name for name, action in actions})
            case Question.DISCO_INFO if not node:
                return answers.write_disco_info(origin, name=NAME)
            case Question.DISCO_INFO if node in ACTIONS:
                return answers.write_command_info(origin, node, ACTIONS[node].name)
        return answers.write_error(origin, NOT_FOUND, by=self._domain)


def _time_of(arrived: Arrived) -> datetime:
    """Return when a stanza arrived, by the database's clock."""
    return clock.now() - timedelta(seconds=monotonic() - arrived.at)


def _decode(arrived: Arrived) -> StanzaEvent:
    try:
        match arrived.event:
            case Received(stanza):
                return decode(stanza)
            case TooLarge(name, attributes):
                return decode_too_large(name, attributes)
            case Unreadable():
                return Ignored("unreadable")
            case event_read:  # it was decoded with an earlier batch, and had to wait
                return event_read
    except Exception as error:  # noqa: BLE001 - a fault of the codec concerns this stanza alone
        log.error("stanza_failed", error=type(error).__name__)  # noqa: TRY400 - it may quote the stanza
        return Ignored("failed")


def _hang_up(error: Exception) -> None:
    """Log a failure by its type, because its text may quote stored values. Close the connection on a database error."""
    if is_conflict(error):
        return
    log.warning("not_stored", error=type(error).__name__)
    if isinstance(error, Error):
        connection.close()
