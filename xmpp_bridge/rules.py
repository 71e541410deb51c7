"""Rules about pushes: who may send them, the verdict on each push, its answer, and the content for the device. Pure.

See docs/xmpp.md.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from notifications.messages import Content, Effect, Grade, PushLimit
from registrations.messages import TokenType
from xmpp_bridge.limits import DeviceLimit, Limits, Mark
from xmpp_bridge.messages import Dialect, Errors, Payload, PushNotification, StanzaError, Style


class Verdict(StrEnum):
    """The outcome of one push."""

    ACCEPTED = "accepted"
    MERGED = "merged"  # a waiting wake-up serves this push, too
    REPEATED = "repeated"  # the same stanza or content within the time of SAME, or a stanza whose answer was lost
    UNKNOWN = (
        "unknown"  # the client does not exist, is forged, or is of another domain; the answer is the same for each
    )
    IGNORED = "ignored"  # unknown, beyond the limit of unknown clients
    GONE = "gone"  # the device has ended, its route is disabled, or its app is retired
    GONE_BEFORE = "gone_before"  # as above, and answered so within the last minute
    FORBIDDEN = "forbidden"  # sent by a client and not by a server
    REFUSED = "refused"  # a forwarded message, for an app that refuses them
    BUSY_DOMAIN = "busy_domain"
    BUSY_CALLS = "busy_calls"
    FULL = "full"  # the queue of the device is full
    NOT_STORED = "not_stored"  # the database is away


# The answer to each verdict. None is success: a result for an IQ, and nothing for a message. Only a permanent error may
# be a `cancel`, because ejabberd removes a route at the first one.
ANSWERS: dict[Verdict, StanzaError | None] = {
    Verdict.ACCEPTED: None,
    Verdict.MERGED: None,
    Verdict.REPEATED: None,
    Verdict.UNKNOWN: Errors.NOT_FOUND,
    Verdict.IGNORED: Errors.NOT_FOUND,
    Verdict.GONE: Errors.NOT_FOUND,
    Verdict.GONE_BEFORE: Errors.NOT_FOUND,
    Verdict.FORBIDDEN: Errors.FORBIDDEN,
    Verdict.REFUSED: StanzaError("cancel", "policy-violation"),
    Verdict.BUSY_DOMAIN: Errors.BUSY,
    Verdict.BUSY_CALLS: Errors.BUSY,
    Verdict.FULL: Errors.BUSY,
    Verdict.NOT_STORED: Errors.TROUBLE,
}
# The limit by which a push with one of these verdicts is merged or refused.
LIMITS: dict[Verdict, PushLimit | DeviceLimit] = {
    Verdict.MERGED: DeviceLimit.WAKE_UPS,
    Verdict.BUSY_DOMAIN: DeviceLimit.DOMAIN,
    Verdict.BUSY_CALLS: DeviceLimit.CALLS,
    Verdict.FULL: PushLimit.QUEUE,
}
# A message with one of these gets no answer at all, though an IQ does.
SILENT = frozenset({Verdict.IGNORED, Verdict.GONE_BEFORE})

# How long delivery of a push is attempted.
CALL_TTL = timedelta(seconds=30)
WAKE_TTL = timedelta(hours=1)
PAYLOAD_TTL = timedelta(hours=24)

# Version of the content's data for apps, the word for a payload that was too large, and the length of a text.
VERSION = "1"
TRUNCATED = "truncated"
MAX_BODY_CHARACTERS = 200
# The name of a ciphertext, in styles whose data have nothing else.
CIPHERTEXTS: Mapping[str, str] = {Style.TIGASE: "encrypted", Style.RFC8291: "rfc8291"}


@dataclass(frozen=True, slots=True)
class Domains:
    """The domains whose users and servers are served.

    A denied domain is not served, nor any domain below it. If ``allowed`` is not empty, only those domains are served,
    and the domains below them.
    """

    denied: Collection[str] = ()
    allowed: Collection[str] = ()

    def serve(self, domain: str) -> bool:
        labels = domain.split(".")
        own = {".".join(labels[number:]) for number in range(len(labels))}
        return own.isdisjoint(self.denied) and not (self.allowed and own.isdisjoint(self.allowed))


class KnownDevice(NamedTuple):
    """A stored device that a push names, with its app, its route and its waiting notifications."""

    id: UUID
    is_active: bool
    domain: str
    announced_from: str | None
    is_used_today: bool
    style: str
    text: str
    sound: str
    calls_as_alerts: bool
    passes_texts: bool
    refuses_texts: bool
    route_id: int
    generation: int
    gateway: str
    token_type: int
    app_topic: str
    is_route_proven: bool
    address: bytes  # digest; devices of several accounts may have the address of one phone
    waiting_count: int
    waiting_wake: int | None
    waiting_background: int | None

    @property
    def is_apple(self) -> bool:
        return self.token_type == TokenType.APN

    @property
    def tag(self) -> bytes:
        """The 8 bytes by which an app recognises its account, and which are the collapse id of wake-ups."""
        return hashlib.sha256(self.id.bytes).digest()[:8]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one push.

    ``due_at`` is the time of the first attempt, or None for a push that is not stored. ``has_payload`` says whether it
    goes out with its payload or as a wake-up. ``served_by`` is the id of the waiting wake-up that serves the push.
    ``beyond`` is the limit by which it lost its payload.
    """

    verdict: Verdict
    due_at: datetime | None = None
    has_payload: bool = False
    served_by: int | None = None
    beyond: PushLimit | DeviceLimit | None = None

    @property
    def limit(self) -> PushLimit | DeviceLimit | None:
        """Return the limit by which the push is merged, shortened or refused."""
        return self.beyond or LIMITS.get(self.verdict)

    @property
    def effect(self) -> Effect:
        """Return the effect of `limit` on the push."""
        return {Verdict.ACCEPTED: Effect.SHORTENED, Verdict.MERGED: Effect.MERGED}.get(self.verdict, Effect.REFUSED)


def verify(domain: str, limits: Limits, *, is_server: bool, is_ours: bool, now: datetime) -> Verdict | None:
    """Return the verdict on a push that needs no look at its device, or None to go on with the device.

    ``is_server`` says that a server sent the push itself: it stamps the stanzas of its clients with their addresses.
    ``is_ours`` says that the push has valid credentials, and that its domain is served.
    """
    seconds = now.timestamp()
    if not is_server:
        return Verdict.FORBIDDEN
    if not (limits.take_from_domain(domain, seconds) if is_ours else limits.take_unverified(seconds)):
        return Verdict.BUSY_DOMAIN
    return None if is_ours else _unknown(domain, limits, seconds)


def decide(
    push: PushNotification,
    domain: str,
    device: KnownDevice | None,
    limits: Limits,
    *,
    is_repeated: bool,
    is_full: bool,
    has_capacity: bool,
    now: datetime,
) -> Decision:
    """Decide about a push of this domain that passed `verify`, with the device that it names.

    ``is_full`` says that the queue of the device is full. ``has_capacity`` says that one more notification may wait for
    the device.
    """
    seconds = now.timestamp()
    if device is None or device.domain != domain:
        return Decision(_unknown(domain, limits, seconds))
    if is_repeated:
        return Decision(Verdict.REPEATED)
    refusal = next(_refusals(push, device, limits, seconds, is_full=is_full), None)
    return Decision(refusal) if refusal else _send(push, device, limits, has_capacity=has_capacity, now=now)


def _unknown(domain: str, limits: Limits, seconds: float) -> Verdict:
    return Verdict.UNKNOWN if limits.answers_unknown(domain, seconds) else Verdict.IGNORED


def _refusals(
    push: PushNotification, device: KnownDevice, limits: Limits, seconds: float, *, is_full: bool
) -> Iterator[Verdict]:
    """Yield the reasons to refuse a push. The caller takes only the first, so that later ones take from no bucket."""
    if not device.is_active:
        yield Verdict.GONE if limits.answers_gone(device.id, seconds) else Verdict.GONE_BEFORE
    if push.is_forward and device.refuses_texts:
        yield Verdict.REFUSED
    if limits.is_same_again(device.id, _marks(push, device), seconds):
        yield Verdict.REPEATED
    if is_full:
        yield Verdict.FULL
    if push.grade is Grade.VOIP and not limits.take_call(device.address, device.domain, seconds):
        yield Verdict.BUSY_CALLS


def _send(
    push: PushNotification, device: KnownDevice, limits: Limits, *, has_capacity: bool, now: datetime
) -> Decision:
    """Decide whether a push goes out with its payload or as a wake-up, by the limits of its device."""
    seconds, has_payload = now.timestamp(), _has_payload(push, device)
    limits.note_marks(device.id, _marks(push, device), seconds)
    if push.grade is Grade.VOIP:
        return Decision(Verdict.ACCEPTED, now, has_payload=has_payload)
    if not has_payload:
        return _wake(push, device, limits, now=now)
    if not has_capacity:
        return replace(_wake(push, device, limits, now=now), beyond=PushLimit.WAITING)
    if not limits.take_payload(device.address, device.domain, seconds):
        return replace(_wake(push, device, limits, now=now), beyond=DeviceLimit.PAYLOADS)
    return Decision(Verdict.ACCEPTED, now, has_payload=True)


def _wake(push: PushNotification, device: KnownDevice, limits: Limits, *, now: datetime) -> Decision:
    is_background = push.grade is Grade.LOW
    waiting = device.waiting_background if is_background else device.waiting_wake
    if waiting is not None:
        return Decision(Verdict.MERGED, served_by=waiting)
    at = limits.wake_at((device.id, is_background), device.address, device.domain, now.timestamp())
    if at is None:
        return Decision(Verdict.MERGED)
    return Decision(Verdict.ACCEPTED, now + timedelta(seconds=at - now.timestamp()))


def _has_payload(push: PushNotification, device: KnownDevice) -> bool:
    is_text_passed = device.passes_texts and bool(push.body) and device.style != Style.CONVERSATIONS
    return push.payload is not None or is_text_passed


def _marks(push: PushNotification, device: KnownDevice) -> Iterator[Mark]:
    """Yield what a repetition of this push would have in common with it: the stanza's id, or the content.

    Two calls are two calls, whatever they contain.
    """
    origin, has_payload = push.origin, _has_payload(push, device)
    if origin.id:
        stanza = f"{origin.sender}\0{origin.service}\0{origin.id}"
        yield Mark(hashlib.sha256(stanza.encode()).digest(), is_wake=False)
    if push.grade is not Grade.VOIP:
        text = push.payload.text if push.payload else push.body if has_payload else ""
        kind = Grade.LOW if push.grade is Grade.LOW else Grade.NORMAL
        yield Mark(hashlib.sha256(f"{kind} {text}".encode()).digest(), is_wake=not has_payload)


def answer_to(push: PushNotification, verdict: Verdict) -> StanzaError | None:
    """Return the error that answers a push, or None if no error does."""
    if verdict is Verdict.GONE and push.dialect is not Dialect.XEP0357:
        return StanzaError("cancel", "gone", disabled_client=push.client)
    if verdict in SILENT and push.origin.stanza == "message":
        return None
    return ANSWERS[verdict]


def time_to_live(grade: Grade, *, has_payload: bool) -> timedelta:
    """Return how long delivery of a push is attempted."""
    if grade is Grade.VOIP:
        return CALL_TTL
    return PAYLOAD_TTL if has_payload else WAKE_TTL


# Content: the text and sound that the device shows, and the data for the app, by the app's style ----------------------
# The keys of the data are short because a full payload of mod_push2 leaves some 160 of Apple's 4096 bytes.


def wake_content(device: KnownDevice, grade: Grade, *, is_truncated: bool = False) -> Content:
    """Return the content of a wake-up. ``is_truncated`` says that it replaces a payload that was too large."""
    data = _account(device, "voip" if grade is Grade.VOIP else "wake")
    return Content(device.text, device.sound, data | ({"x": TRUNCATED} if is_truncated else {}))


def payload_content(device: KnownDevice, grade: Grade, payload: Payload) -> Content:
    """Return the content of a push with a ciphertext, which stays unchanged."""
    data, iv = _account(device, "voip" if grade is Grade.VOIP else "msg"), payload.iv
    if name := CIPHERTEXTS.get(device.style):
        data = {name: payload.text} | ({"iv": iv} if iv else {})
    elif device.style != Style.CONVERSATIONS:
        data |= {"e": payload.text, "f": payload.format} | ({"i": iv} if iv else {})
    return Content(device.text, device.sound, data)


def text_content(device: KnownDevice, body: str) -> Content:
    """Return the content of a push with a user's text: Apple shows the text, and the app gets it as `b`."""
    shown = body[:MAX_BODY_CHARACTERS]
    return Content(shown, device.sound, _account(device, "msg") | {"b": shown})


def _account(device: KnownDevice, kind: str) -> dict[str, str]:
    """Return the data that name the account of a push, and its kind where the app's style has one."""
    tag = device.tag.hex()
    return {"account": tag} if device.style == Style.CONVERSATIONS else {"v": VERSION, "k": kind, "a": tag}
