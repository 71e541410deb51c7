"""The actions of the people of the demonstration: register, look each other up, notify, leave and return.

Every line of the log has the two people, the server's answer and the milliseconds until it came. None has a token.
"""

import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

import structlog

from embedded.demo.people import PUBLIC_CHAT, Character
from waku_bridge.client import Content, NoAnswer, Notified, Outcome, RegistrationRefused, Session
from waku_bridge.node import NodeError

REGISTRATION_SECONDS = 2.0
AWAY_SECONDS = 1.0
# Longer than three servers may take to answer. While a request backs off from an internal error, its person is busy.
NOTIFICATION_SECONDS = 12.0
MESSAGE_BYTES = 200
# Shares of these kinds of events, in percent.
CHANGES = 8
DEPARTURES = 4
MENTIONS = 20
# How often a person looks up another one again that it has found before, in percent.
FRESH_QUERIES = 30

log = structlog.get_logger(__name__)


class DemoRun:
    """The demonstration. ``pause_seconds`` is the average time between two events.

    The seed decides who acts, and the network decides when.
    """

    def __init__(
        self, session: Session, server: bytes, people: Sequence[Character], *, seed: int, pause_seconds: float
    ) -> None:
        self._session = session
        self._people = people
        self._random = Random(seed)  # noqa: S311 - chooses who writes to whom
        self._pause_seconds = pause_seconds
        for person in people:
            person.phone.use([server])
            for other in people:
                if other is not person:
                    person.sender.follow(other.public_key)

    async def live(self) -> None:
        """Play until cancelled. All people register first, as after installing the app."""
        await asyncio.gather(*(self._register(person) for person in self._people))
        async with asyncio.TaskGroup() as events:
            while True:
                sender, recipient = self._random.sample(self._people, 2)
                if not sender.is_busy:
                    events.create_task(self._occupy(sender, recipient))
                await asyncio.sleep(self._pause_seconds * self._random.uniform(0.5, 1.5))

    async def _occupy(self, sender: Character, recipient: Character) -> None:
        sender.is_busy = True
        await self._next_event(sender, recipient)
        sender.is_busy = False

    def _next_event(self, sender: Character, recipient: Character) -> Coroutine[Any, Any, None]:
        chance = self._random.randrange(100)
        if not sender.is_registered or chance < CHANGES:
            return self._register(sender)
        if chance < CHANGES + DEPARTURES:
            return self._unregister(sender)
        is_mention = self._random.randrange(100) < MENTIONS
        is_fresh = self._random.randrange(100) < FRESH_QUERIES
        return self._write(sender, recipient, self._content(sender, is_mention=is_mention), is_fresh=is_fresh)

    def _content(self, sender: Character, *, is_mention: bool) -> Content:
        message = os.urandom(MESSAGE_BYTES)
        if not is_mention:
            return sender.sender.one_to_one(message)
        return sender.sender.mention(PUBLIC_CHAT, message)

    async def _register(self, person: Character) -> None:
        person.phone.change(person.address, person.preferences)
        person.is_registered = await self._log(person, "registered", device=person.device)

    async def _unregister(self, person: Character) -> None:
        person.phone.unregister()
        person.is_registered = not await self._log(person, "unregistered")

    async def _log(self, person: Character, done: str, **facts: str) -> bool:
        """Repeat the registration of the phone until the server answers, and return whether the server accepted it."""
        started = time.monotonic()
        while True:
            try:
                await self._session.register(person.phone, timeout_seconds=REGISTRATION_SECONDS)
            except RegistrationRefused as refused:
                log.warning("registration_refused", person=person.name, answer=str(refused), ms=_ms_since(started))
                return False
            except NoAnswer:
                log.warning("registration_unanswered", person=person.name, ms=_ms_since(started))
            except NodeError as error:
                await self._wait_for_node(error)
            else:
                log.info(done, person=person.name, **facts, version=person.phone.version, ms=_ms_since(started))
                return True

    async def _write(self, sender: Character, recipient: Character, content: Content, *, is_fresh: bool) -> None:
        try:
            if is_fresh or not sender.sender.destinations(recipient.public_key):
                await self._look_for(sender, recipient)
            if sender.sender.destinations(recipient.public_key):
                await self._notify(sender, recipient, content)
        except NoAnswer as silence:
            log.info("no_answer", sender=sender.name, recipient=recipient.name, reason=str(silence))
        except NodeError as error:
            await self._wait_for_node(error)

    async def _look_for(self, sender: Character, recipient: Character) -> None:
        started = time.monotonic()
        found = await self._session.look_up(sender.sender, recipient.public_key)
        answer = f"{len(found)} installation" if found else "not for you"
        log.info("looked_up", sender=sender.name, recipient=recipient.name, answer=answer, ms=_ms_since(started))

    async def _notify(self, sender: Character, recipient: Character, content: Content) -> None:
        started = time.monotonic()
        notified = await self._session.notify(
            sender.sender, recipient.public_key, content, os.urandom(32), timeout_seconds=NOTIFICATION_SECONDS
        )
        answer = _words(notified)
        log.info("notified", sender=sender.name, recipient=recipient.name, answer=answer, ms=_ms_since(started))

    async def _wait_for_node(self, error: NodeError) -> None:
        log.warning("node_away", error=str(error))
        await asyncio.sleep(AWAY_SECONDS)


def _words(notified: Notified) -> str:
    outcomes = (settled.outcome for settled in notified.installations)
    return ", ".join("success" if outcome is Outcome.NOTIFIED else outcome.upper() for outcome in outcomes)


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
