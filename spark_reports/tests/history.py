"""Made-up history of a small fleet in PostgreSQL, from a seed: rows as the server writes them, in bulk."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction

from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.messages import Outcome
from notifications.models import Notification, NotificationRequest
from notifications.policy import Verdict, Wish
from notifications.reports import CODES, Decided, pack
from registrations.encryption import Purpose, keyring
from registrations.models import RegistrationEvent
from tests.rig.rows import (
    make_answered_request,
    make_attempt,
    make_channel,
    make_envelope,
    make_notification,
    make_reply,
    make_route,
)
from waku_bridge.messages import MessageType
from waku_bridge.models import InboundEnvelope, OutboundReply

Kind = RegistrationEvent.Kind
Place = dict[str, Any]
PLACES: tuple[Place, ...] = (
    {"token_type": 1, "app_topic": "im.status.ethereum", "bridge": "waku"},
    {"token_type": 2, "app_topic": "", "bridge": "waku"},
    {"token_type": 1, "app_topic": "im.status.desktop", "bridge": "waku"},
    {"token_type": 2, "app_topic": "", "bridge": "xmpp"},
    {"token_type": 1, "app_topic": "org.example.chat", "bridge": "xmpp"},
)
Replies = OutboundReply.State
# The states of replies, with the number of repetitions.
REPLIES = [
    (Replies.CONFIRMED, 0),
    (Replies.CONFIRMED, 2),
    (Replies.UNCONFIRMED, 4),
    (Replies.UNCONFIRMED, 0),
    (Replies.ABANDONED, 0),
    (Replies.PENDING, 0),
]


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


@dataclass
class Installation:
    place: Place
    pseudonym: UUID = field(default_factory=uuid4)
    is_active: bool = False


@dataclass
class History:
    """Made-up days of a fleet. ``secrets`` are values that must never be found in the lake."""

    seed: int
    secrets: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.installations = [Installation(self.random.choice(PLACES)) for _ in range(60)]
        self.routes = [
            make_route(**place, device_token=f"device-token-{n}-{self.seed}") for n, place in enumerate(PLACES)
        ]
        for key in {(place["token_type"], place["app_topic"]) for place in PLACES}:
            make_channel(key)
        self.secrets += [bytes(route.address_digest)[4:] for route in self.routes]
        self.secrets += [f"device-token-{n}".encode() for n in range(len(PLACES))]
        self.recipients = [secrets.token_bytes(64) for _ in range(20)]
        self.senders = [b"\x02" + secrets.token_bytes(32) for _ in range(10)]
        self.secrets += self.recipients + self.senders

    @transaction.atomic
    def add_day(
        self, day: date, *, events: int = 150, requests: int = 120, tries: Sequence[int] = (1, 1, 1, 2, 3)
    ) -> None:
        """Add a day. ``tries`` are the possible numbers of attempts of a push, each with equal probability."""
        self.tries = tries
        start = midnight(day)
        # Coarse times, so that an installation has several events at the same moment.
        moments = sorted(start + timedelta(minutes=20 * self.random.randrange(72)) for _ in range(events))
        RegistrationEvent.objects.bulk_create(self._event(at) for at in moments)
        for _ in range(requests):
            self._request(start + timedelta(milliseconds=self.random.randrange(86_400_000)))
        for _ in range(requests // 4):
            self._push_of_xmpp(start + timedelta(milliseconds=self.random.randrange(86_400_000)))

    def register(self, at: datetime, number: int) -> list[UUID]:
        """Register installations of the first place without further events, and return their pseudonyms."""
        pseudonyms = [uuid4() for _ in range(number)]
        self._all_at_once(Kind.REGISTERED, at, pseudonyms)
        return pseudonyms

    def kill(self, at: datetime, pseudonyms: Sequence[UUID]) -> None:
        """Record the death of tokens of the first place."""
        self._all_at_once(Kind.TOKEN_DIED, at, pseudonyms)

    def _all_at_once(self, kind: Kind, at: datetime, pseudonyms: Sequence[UUID]) -> None:
        RegistrationEvent.objects.bulk_create(
            RegistrationEvent(kind=kind, pseudonym=each, at=at, **PLACES[0]) for each in pseudonyms
        )
        self.secrets += [each.bytes for each in pseudonyms]

    def _event(self, at: datetime) -> RegistrationEvent:
        installation = self.random.choice(self.installations)
        self.secrets.append(installation.pseudonym.bytes)
        kind = self._next_kind(installation)
        event = RegistrationEvent(kind=kind, pseudonym=installation.pseudonym, at=at, **installation.place)
        installation.is_active = kind not in {Kind.UNREGISTERED, Kind.TOKEN_DIED, Kind.EXPIRED}
        if kind == Kind.UNREGISTERED:  # the next registration is another's, as far as anybody can tell
            installation.pseudonym = uuid4()
        return event

    def _next_kind(self, installation: Installation) -> Kind:
        if not installation.is_active:
            return self.random.choice(
                [Kind.REGISTERED, Kind.REGISTERED, Kind.TOKEN_CHANGED, Kind.REVIVED, Kind.REFRESHED]
            )
        if self.random.random() < 0.1:
            bridge = installation.place["bridge"]
            installation.place = self.random.choice([place for place in PLACES if place["bridge"] == bridge])
            return Kind.TOKEN_CHANGED
        rare = [Kind.TOKEN_CHANGED, Kind.SETTINGS_CHANGED, Kind.UNREGISTERED, Kind.TOKEN_DIED, Kind.EXPIRED]
        return self.random.choices([Kind.REFRESHED, *rare], [8, 2, 2, 1, 1, 1])[0]

    def _request(self, at: datetime) -> None:
        envelope = self._envelope(at, MessageType.REQUEST)
        sender = self.random.choice(self.senders)
        rows, others = self.random.choice([(1, 0), (1, 0), (1, 1), (2, 0), (4, 3), (0, 2)])
        decided = [self._decision(rows + place) for place in range(others)]
        request = make_answered_request(
            at=at,
            decided=pack(decided),
            answered_at=at + timedelta(milliseconds=self.random.randrange(20, 3000)),
            source_key=envelope.hash,
            sender_digest=keyring().digest(Purpose.SENDER, sender),
        )
        self.secrets += [bytes(request.request_key), bytes(request.message_id), bytes(envelope.hash)]
        for position in range(rows):
            self._notification(request, position, at, public_key_hash=self.random.choice(self.recipients))
        self._reply(envelope)
        self._envelope(at, self.random.choice([MessageType.REGISTRATION, MessageType.QUERY]))

    def _decision(self, position: int) -> Decided:
        """Return a random decision at once about one place of a request."""
        verdict = self.random.choice(list(CODES))
        wish = self.random.choice([None, *Wish]) if verdict is Verdict.SUPPRESSED else None
        return Decided(position, verdict, self.random.randrange(5), wish)

    def _push_of_xmpp(self, at: datetime) -> None:
        request = make_answered_request(bridge="xmpp", at=at, answered_at=at, reply_due_at=at)
        device = str(UUID(int=self.random.randrange(10)))
        self._notification(request, 0, at, public_key_hash=b"", installation_id=device, grade="normal")

    def _envelope(self, at: datetime, message_type: int) -> InboundEnvelope:
        refused = message_type == MessageType.REGISTRATION and self.random.random() < 0.2
        return make_envelope(
            at=at,
            message_type=message_type,
            state=InboundEnvelope.State.PROCESSED,
            reason="stale_version" if refused else "",
            payload=None,
            processed_at=at + timedelta(milliseconds=self.random.randrange(1, 50)),
        )

    def _reply(self, envelope: InboundEnvelope) -> None:
        state, repeats = self.random.choices(REPLIES, [15, 2, 1, 1, 1, 1])[0]
        made_at = envelope.received_at + timedelta(milliseconds=30)
        published_at = made_at + timedelta(milliseconds=self.random.randrange(1, 4000), seconds=20 * repeats)
        make_reply(
            envelope_hash=envelope.hash,
            at=made_at,
            state=state,
            repeat_count=repeats,
            published_at=None if state in {Replies.PENDING, Replies.ABANDONED} else published_at,
        )

    def _notification(self, request: NotificationRequest, position: int, at: datetime, **facts: Any) -> None:
        route = self.random.choice([route for route in self.routes if route.bridge == request.bridge])
        is_refused = self.random.random() < 0.1
        tries = 0 if is_refused else self.random.choice(self.tries)
        notification = make_notification(
            request=request,
            position=position,
            at=at,
            route=None if is_refused else route,
            state=Notification.State.EXPIRED if is_refused else Notification.State.DELIVERED,
            report=Notification.Reports.WRONG_TOKEN if is_refused else Notification.Reports.SUCCESS,
            attempt_count=tries,
            finished_at=at + timedelta(seconds=tries),
            **facts,
        )
        self.secrets += [notification.installation_id.encode(), bytes(notification.dedup_key)]
        for number in range(1, tries + 1):
            is_last = number == tries
            make_attempt(
                notification,
                number=number,
                token_type=route.token_type,
                app_topic=route.app_topic,
                started_at=at + timedelta(milliseconds=10 * number),
                latency_ms=self.random.randrange(5, 20_000),
                outcome=Outcome.DELIVERED if is_last else Outcome.TRANSIENT,
                code="" if is_last else self.random.choice(["unavailable", "internal"]),
            )

    def add_unknown_error(self, at: datetime, count: int) -> None:
        UnknownGatewayError.objects.create(
            platform="ios", signature="a new <n> fault", count=count, first_seen_at=at, last_seen_at=at
        )
