"""A user's server towards the push service, with the duties that the draft of Push 2.0 gives it. A core without I/O.

It sends notifications along the routes that its users have enabled. After a `wait` it repeats the notification, with
growing pauses, up to MAX_ATTEMPTS attempts. It repeats nothing else. It forgets a route when the push service of that
route declares it gone. A message has no answer when all is well, so only its refusal is reported.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from xmpp_bridge.client import notifying
from xmpp_bridge.client.elements import Refused, element, error, refusal_of, reply_to
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.messages import Dialect

MAX_ATTEMPTS = 6
FIRST_PAUSE_SECONDS = 1.0
# Seconds after sending a notification during which its answer is recognised.
MEMORY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Route:
    """A route that a user has enabled."""

    service: str
    dialect: Dialect
    client: str = field(default="", repr=False)
    node: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The service confirmed that it has the notification. Only XEP-0357 has such an answer."""

    identifier: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The service refused a notification. After a transient refusal it is repeated, up to MAX_ATTEMPTS attempts."""

    identifier: str
    refusal: Refused


@dataclass(frozen=True, slots=True)
class Disabled:
    """A route was forgotten, because the service declared it gone: in answer to a notification, or unasked."""

    route: Route


Event = Stored | Failed | Disabled


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one input: stanzas to send, and events for the caller."""

    stanzas: tuple[Element, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(slots=True)
class _Sent:
    stanza: Element
    route: Route
    sent_at: float
    attempts: int = 1
    repeat_at: float | None = None


class UserServer:
    """The server of one domain. Times are seconds of any monotonic clock."""

    def __init__(self, domain: str, new_id: Callable[[], str]) -> None:
        self.domain = domain
        self._new_id = new_id
        self._routes: dict[Route, None] = {}
        self._sent: dict[str, _Sent] = {}

    @property
    def routes(self) -> tuple[Route, ...]:
        """The enabled routes."""
        return tuple(self._routes)

    def enable(self, route: Route) -> None:
        """Send along this route from now on, also if it was disabled before."""
        self._routes[route] = None

    def disable(self, route: Route) -> None:
        """Send no more along this route."""
        self._routes.pop(route, None)

    def notify(self, route: Route, notification: Notification, now: float) -> Step:
        """Send a notification along a route, unless it is not enabled."""
        if route not in self._routes:
            return Step()
        stanza = self._stanza(route, notification)
        self._sent[stanza.get("id", "")] = _Sent(stanza, route, now)
        return Step((stanza,))

    def receive(self, stanza: Element, now: float) -> Step:
        """Process a stanza from the stream. Every request gets an answer, as XMPP requires of each entity."""
        match stanza.tag, stanza.get("type", ""):
            case "iq", "get" | "set":
                return Step((reply_to(stanza, "error", error("cancel", "feature-not-implemented")),))
            case "iq", "result":
                return self._take_result(stanza)
            case (("iq" | "message"), "error"):
                return self._take_error(stanza, now)
        return Step()

    def tick(self, now: float) -> Step:
        """Return the notifications that are due for repetition, and forget those sent MEMORY_SECONDS ago."""
        self._sent = {name: sent for name, sent in self._sent.items() if now - sent.sent_at < MEMORY_SECONDS}
        due = [sent for sent in self._sent.values() if sent.repeat_at is not None and sent.repeat_at <= now]
        for sent in due:
            sent.repeat_at = None
            sent.attempts += 1
        return Step(tuple(sent.stanza for sent in due))

    def _stanza(self, route: Route, notification: Notification) -> Element:
        attributes = {"id": self._new_id(), "from": self.domain, "to": route.service}
        if route.dialect is Dialect.XEP0357:
            pubsub = notifying.xep0357(route.node, route.secret, notification)
            return element("iq", "", attributes | {"type": "set"}, pubsub)
        write = notifying.draft if route.dialect is Dialect.DRAFT else notifying.mod_push2
        return element("message", "", attributes, write(route.client, notification))

    def _take_result(self, stanza: Element) -> Step:
        if self._answered(stanza) is None:
            return Step()
        del self._sent[stanza.get("id", "")]
        return Step(events=(Stored(stanza.get("id", "")),))

    def _take_error(self, stanza: Element, now: float) -> Step:
        """Take a refusal, and forget a route that it declares gone, if the stanza comes from the service of the route.

        Source: "errors of type 'wait' SHOULD be retried …, discarding the notification after an appropriate … number
        of attempts. Other error types MUST NOT be automatically retried."
        """
        refusal, service, identifier = refusal_of(stanza), stanza.get("from", ""), stanza.get("id", "")
        client = refusal.disabled_client
        gone = [route for route in self._routes if client and (route.service, route.client) == (service, client)]
        for route in gone:
            self.disable(route)
        events: list[Event] = [Disabled(route) for route in gone]
        if sent := self._answered(stanza):
            events.insert(0, Failed(identifier, refusal))
            if refusal.kind == "wait" and sent.attempts < MAX_ATTEMPTS:
                sent.repeat_at = now + FIRST_PAUSE_SECONDS * 2 ** (sent.attempts - 1)
            else:
                del self._sent[identifier]
        return Step(events=tuple(events))

    def _answered(self, stanza: Element) -> _Sent | None:
        sent = self._sent.get(stanza.get("id", ""))
        return sent if sent is not None and sent.route.service == stanza.get("from") else None
