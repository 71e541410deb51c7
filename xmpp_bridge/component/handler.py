"""Answering what arrived. All of it is done by one thread, which has the process' connection to the database.

A database that is away is no reason for silence: its users' servers are told to wait, and lose nothing that way.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
# Another process may have written the same at the same moment. It is committed by the time this one fails on it.
ATTEMPTS = 3
# A database that hangs counts as away after this: users' servers are told so while they still wait. A row that somebody
# holds is given up sooner, which tells the two apart.
TIMEOUTS = Timeouts(statement_seconds=5, lock_seconds=1)
CLOCK_SET_EVERY_SECONDS = 30.0
# How long other stanzas than pushes may take before pushes have their turn again. A command takes two milliseconds.
OTHERS_SECONDS = 0.05
# How many of them may wait for that. More commands are told to come again.
MAX_OTHERS = 500
# A run of the canary waits for one answer at a time, and one run is under way.
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
    """One stanza as the connection read it, or what it says; when it came (monotonic), and how many bytes it had."""

    event: Received | TooLarge | Unreadable | StanzaEvent = field(repr=False)
    at: float
    size: int


class Unavailable(Exception):  # noqa: N818 - says what is the case
    """The database is away, or hangs."""


class StanzaHandler:
    """Answers stanzas. ``domain`` is our own."""

    def __init__(self, domain: str, limits: Limits, domains: Domains) -> None:
        self._domain = domain
        self._inbound = Inbound(limits, domains)
        self._registering = Registering(domain, limits, domains)
        self._clock_set_at = float("-inf")
        # Until then the database counts as away: for as long as it took to find that out, so that a host that swallows
        # what it is sent holds up half of the time at most.
        self._retry_at = float("-inf")
        # Ids of what the canary had us say to ourselves, as long as no answer has come. The oldest are forgotten.
        self._unanswered: deque[str] = deque(maxlen=MAX_UNANSWERED)

    def answer(self, batch: Sequence[Arrived]) -> tuple[list[bytes], list[Arrived]]:
        """Return the answers to a batch, and what of it is to be handed in again.

        Pushes come first, whatever came before them. Commands and all else take a short while each time, and only so
        many wait for the next time: what waits is held in memory, and pushes behind it would not be read. It never
        raises: whatever happens, who asked is answered.
        """
        heard = [(arrived, _decode(arrived)) for arrived in batch]
        pushes = [(arrived.at, event_read) for arrived, event_read in heard if isinstance(event_read, PushNotification)]
        others = deque(
            (arrived, event_read) for arrived, event_read in heard if not isinstance(event_read, PushNotification)
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

    def _answer_pushes(self, pushes: Sequence[PushNotification]) -> list[bytes]:
        return [self._write(push, verdict) for push, verdict in zip(pushes, self._accept(pushes), strict=True)]

    def find_ended(self) -> list[announcing.Ended]:
        """Return routes whose end is to be announced, or none while the database is away."""
        return self._unless_unavailable(announcing.find_ended) or []

    def write_ends(self, ended: list[announcing.Ended]) -> list[bytes]:
        """Return the announcements of these ends."""
        return announcing.write_ends(ended, domain=self._domain)

    def note_announced(self, ended: list[announcing.Ended]) -> None:
        """Note that these ends were announced. When that fails, they are announced once more."""
        self._unless_unavailable(lambda: announcing.note_announced(ended, now=clock.now()))

    def take_queued(self) -> list[bytes]:
        """Return what the canary has us say to ourselves through the XMPP server, or nothing while the database is
        away.
        """
        wanted = self._unless_unavailable(queued_stanzas.take) or []
        self._unanswered.extend(each.id for each in wanted)
        return [each.text.encode() for each in wanted]

    def _note_answer(self, answer: IqAnswer) -> None:
        """Note an answer to what the canary had us say: nobody can guess its id, or send from our domain."""
        sender = parse_jid(answer.sender)
        if answer.id not in self._unanswered or sender is None or sender.domain != self._domain:
            return
        self._unanswered.remove(answer.id)
        self._unless_unavailable(lambda: queued_stanzas.note_answer(answer, is_own=answer.by == self._domain))

    def close(self) -> None:
        """Close the connection to the database."""
        connection.close()

    def _prepare(self) -> bool:
        """Have a connection to the database whose statements end in time, and know the time. Return whether it is
        there.
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
            if was_connected and is_closed(error):  # it broke while nothing was asked
                _hang_up(error)
                return self._prepare()
            self._give_up(error, began_at)
            return False
        return True

    def _give_up(self, error: Exception, began_at: float) -> None:
        """Take the database for away."""
        _hang_up(error)
        self._retry_at = 2 * monotonic() - began_at

    def _repeat(self, work: Callable[[], T]) -> T:
        """Do something, and do it again after a conflict, and once after the connection broke.

        Raises Away while the database is away or hangs, or another session holds a row, and otherwise what it failed
        by.
        """
        for attempt in range(ATTEMPTS):
            if not self._prepare():
                raise Unavailable
            began_at = monotonic()
            try:
                return work()
            except Exception as error:
                if is_lock_timeout(error):  # the database serves others
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
        """Do something that is done again later anyway."""
        try:
            return self._repeat(work)
        except (Unavailable, Error):
            return None

    def _accept(self, pushes: Sequence[PushNotification]) -> list[Verdict]:
        """Accept all together. If one of them trips us up, accept each alone, so that it does not stop the others."""
        if not pushes:
            return []
        try:
            return self._repeat(lambda: self._inbound.accept(pushes, now=clock.now()))
        except Unavailable:
            return self._not_stored(pushes)
        except Exception:  # noqa: BLE001 - it is noted, and whoever asked is answered in any case
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
        """Return the answer to what must not wait: a command, which takes its time, is not carried out."""
        if not isinstance(event_read, Command):
            return self._answer_other(event_read)
        STANZAS.labels(_NAMES[Command]).inc()
        return self._registering.refuse(event_read, Refusal.BUSY)

    def _answer_command(self, command: Command) -> bytes:
        try:
            return self._repeat(lambda: self._registering.answer(command, now=clock.now()))
        except Exception:  # noqa: BLE001 - it is noted, and whoever asked is answered in any case
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


def _decode(arrived: Arrived) -> StanzaEvent:
    try:
        match arrived.event:
            case Received(stanza):
                return decode(stanza)
            case TooLarge(name, attributes):
                return decode_too_large(name, attributes)
            case Unreadable():
                return Ignored("unreadable")
            case event_read:  # it came before, and had to wait
                return event_read
    except Exception as error:  # noqa: BLE001 - a fault of the codec concerns this stanza alone
        log.error("stanza_failed", error=type(error).__name__)  # noqa: TRY400 - it may quote the stanza
        return Ignored("failed")


def _hang_up(error: Exception) -> None:
    """Note a failure by its type, as its text may quote what was to be stored, and begin with a new connection if it
    is one of the database.
    """
    if is_conflict(error):
        return
    log.warning("not_stored", error=type(error).__name__)
    if isinstance(error, Error):
        connection.close()
