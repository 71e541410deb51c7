"""Answering what arrived. All of it is done by one thread, which has the process' connection to the database.

A database that is away is no reason for silence: its users' servers are told to wait, and lose nothing that way.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import structlog
from django.db import Error, InterfaceError, OperationalError, connection

from kit.db.clock import clock
from kit.db.reasons import is_conflict
from kit.db.statements import fetch, write
from kit.sessions import BATCH_WORKER, set_all
from xmpp_bridge import announcing, errands
from xmpp_bridge.codec import answers
from xmpp_bridge.codec.jids import parse_jid
from xmpp_bridge.codec.names import COMMANDS as COMMANDS_NODE
from xmpp_bridge.codec.stanzas import decode, decode_too_large
from xmpp_bridge.codec.stream import Received, TooLarge
from xmpp_bridge.commands import ACTIONS
from xmpp_bridge.inbound import Inbound
from xmpp_bridge.limits import Limits
from xmpp_bridge.messages import (
    Command,
    Ignored,
    IqAnswer,
    Malformed,
    PushNotification,
    Query,
    Question,
    Said,
    StanzaError,
    Unsupported,
)
from xmpp_bridge.metrics import ANSWER_SECONDS, PUSHES, STANZAS
from xmpp_bridge.registering import Registering
from xmpp_bridge.rules import BAD_REQUEST, NOT_FOUND, Domains, Verdict, answer_to

log = structlog.get_logger(__name__)

NAME = "Push service"
# Another process may have written the same at the same moment. It is committed by the time this one fails on it.
ATTEMPTS = 3
# A database that hangs counts as away after this: users' servers are told so while they still wait.
STATEMENT_TIMEOUT = "5s"
CLOCK_SET_EVERY_SECONDS = 30.0
# A run of the canary waits for one answer at a time, and one run is under way.
MOST_UNANSWERED = 8
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
    """One stanza as the connection read it, and when (monotonic)."""

    event: Received | TooLarge = field(repr=False)
    at: float


class Desk:
    """Answers stanzas. ``domain`` is our own."""

    def __init__(self, domain: str, limits: Limits, domains: Domains) -> None:
        self._domain = domain
        self._inbound = Inbound(limits, domains)
        self._registering = Registering(domain, limits, domains)
        self._clock_set_at = float("-inf")
        # Ids of what the canary had us say to ourselves, as long as no answer has come. The oldest are forgotten.
        self._unanswered: deque[str] = deque(maxlen=MOST_UNANSWERED)

    def answer(self, batch: Sequence[Arrived]) -> list[bytes]:
        """Return the answers to a batch. It never raises: whatever happens, who asked is answered."""
        self._prepare()
        said = [_decode(arrived) for arrived in batch]
        self._note_answers([each for each in said if isinstance(each, IqAnswer)])
        pushes = [each for each in said if isinstance(each, PushNotification)]
        others = [self._answer_other(each) for each in said if not isinstance(each, PushNotification)]
        verdicts = self._accept(pushes)
        written = [self._write(push, verdict) for push, verdict in zip(pushes, verdicts, strict=True)]
        for name, number in Counter(_NAMES[type(each)] for each in said if type(each) in _NAMES).items():
            STANZAS.labels(name).inc(number)
        ANSWER_SECONDS.observe_all([monotonic() - arrived.at for arrived in batch])
        return [answer for answer in (*others, *written) if answer]

    def find_ended(self) -> list[announcing.Ended]:
        """Return routes whose end is to be announced, or none while the database is away."""
        try:
            self._prepare()
            return announcing.find_ended()
        except Error as error:
            _hang_up(error)
            return []

    def write_ends(self, ended: list[announcing.Ended]) -> list[bytes]:
        """Return the announcements of these ends."""
        return announcing.write_ends(ended, domain=self._domain)

    def note_told(self, ended: list[announcing.Ended]) -> None:
        """Note that these ends were announced. When that fails, they are announced once more."""
        try:
            announcing.note_told(ended, now=clock.now())
        except Error as error:
            _hang_up(error)

    def take_errands(self) -> list[bytes]:
        """Return what the canary has us say to ourselves through the XMPP server, or nothing while the database is
        away.
        """
        try:
            self._prepare()
            wanted = errands.take()
        except Error as error:
            _hang_up(error)
            return []
        self._unanswered.extend(each.id for each in wanted)
        return [each.text.encode() for each in wanted]

    def _note_answers(self, heard: Sequence[IqAnswer]) -> None:
        """Note the answers to what the canary had us say: nobody can guess its id, or send from our domain."""
        for answer in heard:
            sender = parse_jid(answer.sender)
            if answer.id not in self._unanswered or sender is None or sender.domain != self._domain:
                continue
            self._unanswered.remove(answer.id)
            try:
                errands.note_answer(answer, is_own=answer.by == self._domain)
            except Error as error:
                _hang_up(error)

    def close(self) -> None:
        """Close the connection to the database."""
        connection.close()

    def _prepare(self) -> None:
        """Have a connection to the database whose statements end in time, and know the time."""
        try:
            if connection.connection is None:
                connection.ensure_connection()
                write(f"SELECT {set_all({'statement_timeout': STATEMENT_TIMEOUT, **BATCH_WORKER})}")
                self._clock_set_at = float("-inf")
            if monotonic() - self._clock_set_at > CLOCK_SET_EVERY_SECONDS:
                [(now,)] = fetch("SELECT clock_timestamp()")
                clock.set(now)
                self._clock_set_at = monotonic()
        except Error as error:
            _hang_up(error)

    def _accept(self, pushes: Sequence[PushNotification]) -> list[Verdict]:
        """Accept all together. If one of them trips us up, accept each alone, so that it does not stop the others."""
        if not pushes:
            return []
        for _ in range(ATTEMPTS):
            try:
                return self._inbound.accept(pushes, now=clock.now())
            except Exception as error:  # noqa: BLE001 - whoever asked is answered in any case
                _hang_up(error)
                if not (is_conflict(error) or self._is_database_back(error)):
                    break
        return self._accept_apart(pushes)

    def _is_database_back(self, error: Exception) -> bool:
        """Return whether the database is there after all, and only the connection to it had broken."""
        if isinstance(error, OperationalError | InterfaceError):
            self._prepare()
        return isinstance(error, OperationalError | InterfaceError) and connection.connection is not None

    def _accept_apart(self, pushes: Sequence[PushNotification]) -> list[Verdict]:
        is_database_there = connection.connection is not None
        if len(pushes) > 1 and is_database_there:
            return [verdict for push in pushes for verdict in self._accept([push])]
        for push in pushes:
            PUSHES.labels(push.dialect, Verdict.NOT_STORED).inc()
        return [Verdict.NOT_STORED] * len(pushes)

    def _write(self, push: PushNotification, verdict: Verdict) -> bytes:
        error = answer_to(push, verdict)
        if error:
            return answers.write_error(push.origin, error, by=self._domain)
        return answers.write_result_iq(push.origin) if push.origin.stanza == "iq" else b""

    def _answer_other(self, said: Said) -> bytes:
        match said:
            case Query():
                return self._answer_query(said)
            case Command():
                return self._answer_command(said)
            case Malformed():
                return answers.write_error(said.origin, BAD_REQUEST, by=self._domain)
            case Unsupported():
                return answers.write_error(said.origin, StanzaError("cancel", said.condition), by=self._domain)
        return b""

    def _answer_command(self, command: Command) -> bytes:
        for _ in range(ATTEMPTS):
            try:
                return self._registering.answer(command, now=clock.now())
            except Exception as error:  # noqa: BLE001 - whoever asked is answered in any case
                _hang_up(error)
                if not (is_conflict(error) or self._is_database_back(error)):
                    break
        return self._registering.trouble(command)

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


def _decode(arrived: Arrived) -> Said:
    event = arrived.event
    try:
        return decode(event.stanza) if isinstance(event, Received) else decode_too_large(event.name, event.attributes)
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
