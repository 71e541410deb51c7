"""A server in the middle of its day: rows of every table and in every state, as operators would find them.

Everything comes from one seed, and nothing from a real user. Secrets in rows are random.
"""

import random
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from axes.models import AccessAttempt
from coincurve import PrivateKey
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.utils import timezone
from django_otp.plugins.otp_totp.models import TOTPDevice

from kit.health.complaints import Complaint
from kit.http.notices import Notice
from notifications.acceptance.limits import Beyond, count_beyond
from notifications.gateways.gorush.config_check.saved import NOTICES as GORUSH_NOTICES
from notifications.gateways.gorush.rules.table import load_seed
from notifications.messages import Effect, PushLimit
from notifications.models import Channel, Notification
from notifications.rules.policy import Verdict, Wish
from notifications.rules.reports import Decided
from pushserver.api import tokens
from pushserver.models import AccessRecord
from registrations.messages import TokenType
from registrations.models import Registration, RegistrationEvent, Route
from spark_reports.nights.closing import last_closed_day
from tests import factories
from tests.console.nights import make_busy_night
from waku_bridge.codec.keys import key_hash
from waku_bridge.messages import MessageType
from waku_bridge.models import CanaryRun, InboundEnvelope, OutboundReply, StoreWindow
from waku_bridge.node.config_check.saved import NOTICES as NODE_NOTICES
from xmpp_bridge.models import App, Device

APP = "im.status.ethereum"
NODES = ("http://node-01.waku.example.org:8645", "http://node-02.waku.example.org:8645")
GORUSHES = ("http://gorush-01.push.example.org:8088", "http://gorush-02.push.example.org:8088")
GATEWAY = "gorush-01.push.example.org:8088"
NOT_SYNC = Complaint(
    "not_sync",
    "core.sync is off",
    "It answers before Apple and Google do: everything counts as delivered.",
    "Set GORUSH_CORE_SYNC=true and start it again.",
)
USERS = 24
# The one user whom pictures and walks show.
HEROINE = key_hash(PrivateKey(b"\x05" * 32).public_key.format())
ENDS = {
    # state: outcome and code of the last attempt, and the status that the sender was sent
    "pending": ("", "", ""),
    "in_flight": (None, "", ""),
    "retrying": ("transient", "unavailable", "success"),
    "ambiguous": ("ambiguous", "timeout", "success"),
    "delivered": ("delivered", "", "success"),
    "dead_token": ("dead", "unregistered", "not_registered"),
    "undeliverable": ("payload", "payload_too_large", "success"),
    "unconfirmed": ("ambiguous", "timeout", "success"),
    "expired": ("transient", "unavailable", "success"),
    "withdrawn": ("", "", "success"),
    "coalesced": ("", "", "success"),
}
OPEN = {"pending", "in_flight", "retrying", "ambiguous"}


class World:
    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.now = timezone.now()
        self.retried = 0  # a notification that arrived with the second attempt
        self.pushed = 0  # the newest notification that came through XMPP

    def before(self, **span: float) -> datetime:
        return self.now - timedelta(**span)

    def bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def uuid(self) -> str:
        return str(UUID(bytes=self.bytes(16), version=4))


def make_world() -> World:
    world = World()
    registrations = [_make_registration(world, number) for number in range(USERS)]
    # Oldest first, and rows under way last.
    for number, state in reversed([*enumerate([*ENDS, *["delivered"] * 12])]):
        _make_notification(world, registrations[number % 3 if 4 <= number < 13 else number % USERS], state, number)
    _make_decided(world)
    _make_waku(world)
    _make_xmpp(world)
    _make_operations(world)
    _make_staff(world)
    for days_ago in range(15):
        make_busy_night(last_closed_day(world.now) - timedelta(days=days_ago), days_ago)
    return world


def _make_registration(world: World, number: int) -> Registration:
    """Make a registration. The first three belong to one user; one is unregistered and one is disabled."""
    at = world.before(days=3 * number, hours=2)
    is_gone, is_dead = number == 5, number in {2, 9}
    registration = factories.make_registration(
        public_key_hash=HEROINE if number < 3 else world.bytes(64),
        installation_id=world.uuid(),
        at=at,
        version=1 + number % 4,
        pseudonym=UUID(bytes=world.bytes(16)),
        route=None if is_gone else _make_route(world, number, is_dead=is_dead, at=at),
        **({"state": Registration.State.UNREGISTERED, "enabled": False} if is_gone else {}),
    )
    if not is_gone:
        factories.make_grant(registration, server_public_key=b"\x02" + world.bytes(32))
    factories.make_topic_key(public_key_hash=world.bytes(64) if number in {1, 2} else registration.public_key_hash)
    _make_history(world, registration, number, at)
    return registration


def _make_route(world: World, number: int, *, is_dead: bool, at: datetime) -> Route:
    platform = {"token_type": TokenType.APN, "app_topic": APP} if number % 2 else {"token_type": TokenType.FIREBASE}
    dead = {"state": "disabled", "disabled_reason": "unregistered", "disabled_at": world.before(hours=20)}
    failing = {"failing_since": world.before(hours=3)} if number == 4 else {}
    fields: dict[str, Any] = {**platform, **failing, **(dead if is_dead else {})}
    return factories.make_route(at=at, last_success_at=world.before(minutes=7 + 31 * number), **fields)


def _make_history(world: World, registration: Registration, number: int, at: datetime) -> None:
    kinds = [*RegistrationEvent.Kind][: 1 + number % len(RegistrationEvent.Kind)]
    for step, kind in enumerate(kinds):
        factories.make_event(
            pseudonym=registration.pseudonym, kind=kind, at=min(at + timedelta(hours=step), world.now), app_topic=APP
        )


def _make_notification(world: World, registration: Registration, state: str, number: int) -> None:
    at = world.before(seconds=1 + 9 * number if number < len(OPEN) else 180 * number)
    outcome, code, report = ENDS[state]
    request = _make_request(world, at, is_open=state == "pending")
    notification = factories.make_notification(
        request=request,
        at=at,
        state=state,
        route=registration.route,
        public_key_hash=registration.public_key_hash,
        installation_id=registration.installation_id,
        report=report or None,
        type=2 if number % 3 == 0 else 1,
        finished_at=None if state in OPEN else at + timedelta(milliseconds=340),
        next_attempt_at=world.now + timedelta(minutes=2) if state in OPEN else None,
        lease_until=world.now + timedelta(seconds=40) if state == "in_flight" else None,
    )
    if outcome != "":
        _make_attempts(world, notification, outcome, code)


def _make_attempts(world: World, notification: Notification, outcome: str | None, code: str) -> None:
    at = notification.created_at + timedelta(milliseconds=90)
    if notification.state == "delivered" and notification.pk % 4 == 1:
        world.retried = notification.pk
        failed = {"outcome": "transient", "code": "unavailable", "latency_ms": 83, "gateway": GATEWAY}
        factories.make_attempt(notification, started_at=at, **failed)
        at += timedelta(milliseconds=120)
    latency = {} if outcome is None else {"latency_ms": 40 + world.random.randrange(90)}
    factories.make_attempt(
        notification,
        number=notification.attempts.count() + 1,
        gateway=GATEWAY,
        started_at=at,
        outcome=outcome,
        code=code,
        **latency,
    )
    Notification.objects.filter(pk=notification.pk).update(attempt_count=notification.attempts.count())


def _make_request(world: World, at: datetime, *, is_open: bool) -> Any:
    make = factories.make_request if is_open else factories.make_answered_request
    ids = {name: world.bytes(32) for name in ("request_key", "message_id", "source_key")}
    answered = {} if is_open else {"answered_at": at + timedelta(milliseconds=400)}
    request = make(at=at - timedelta(milliseconds=30), **answered, **ids)
    factories.make_envelope(
        hash=request.source_key,
        message_id=request.request_key,
        message_type=MessageType.REQUEST,
        at=at - timedelta(milliseconds=190),
        state="received" if is_open else "processed",
        processed_at=None if is_open else at - timedelta(milliseconds=40),
        source=NODES[0],
        payload=None,
    )
    if not is_open:
        published = at + timedelta(milliseconds=450)
        reported = {"published_at": published, "confirmed_at": published + timedelta(seconds=4), "attempt_count": 1}
        factories.make_reply(
            envelope_hash=request.source_key, at=at, state="confirmed", node=NODES[0], payload=None, **reported
        )
    return request


def _make_decided(world: World) -> None:
    """Make pushes to the heroine that were decided at once: by her wishes, or by her friends' outdated data."""
    wishes = [Wish.CHAT_MUTED, Wish.AUTHOR_BLOCKED, Wish.MENTIONS_BLOCKED]
    decided = [Decided(0, Verdict.SUPPRESSED, 2 if wish is Wish.MENTIONS_BLOCKED else 1, wish) for wish in wishes]
    decided += [Decided(0, Verdict.WRONG_TOKEN, 1), Decided(0, Verdict.DUPLICATE, 1)]
    decided.append(Decided(0, Verdict.COALESCED, 1, PushLimit.ADDRESS))
    for number, one in reversed([*enumerate(decided)]):
        factories.make_decided(HEROINE, one, at=world.before(minutes=3 + 17 * number))
    phone = Registration.objects.filter(public_key_hash=HEROINE).first()
    for effect, number in ((Effect.SHORTENED, 2), (Effect.MERGED, 41)):
        beyond = Beyond(HEROINE, phone.installation_id if phone else "", effect, PushLimit.ADDRESS)
        count_beyond([beyond] * number, now=world.before(minutes=20))


def _make_waku(world: World) -> None:
    """Make the rows of the Waku bridge, including failures."""
    wrong = {"dropped": "stale_version", "failed": "DatabaseError", "pending_key": ""}
    for minutes, state in enumerate(InboundEnvelope.State.values):
        kinds = {"message_type": 1 + minutes, "path": InboundEnvelope.Path.values[minutes % 3]}
        at = world.before(minutes=minutes)
        factories.make_envelope(state=state, reason=wrong.get(state, ""), source=NODES[minutes % 2], at=at, **kinds)
    for minutes, state in enumerate(OutboundReply.State.values):
        factories.make_reply(state=state, at=world.before(minutes=minutes), node=NODES[0] if minutes else "")
    for minutes, node in enumerate(NODES):
        watermark = factories.make_watermark(node=node, at=world.before(seconds=20 + 400 * minutes))
        for reason in StoreWindow.Reason.values:
            gap = {"start_at": world.before(hours=3), "end_at": world.before(hours=2)}
            factories.make_window(watermark, reason=reason, **gap)
    for minutes, reason in enumerate(("malformed", "too_large", "no_payload")):
        factories.make_dead_letter(reason=reason, source=NODES[1], at=world.before(minutes=9 * minutes), size_bytes=911)
    for minutes in range(12):
        _make_canary_run(world, minutes)


def _make_canary_run(world: World, minutes: int) -> None:
    took = {f"{link.value}_ms": 12 + world.random.randrange(80) for link in CanaryRun.Link}
    broken = {"state": "broken", "broken_link": "gateway", "cause": "gateway", "detail": "Connection refused"}
    facts = {0: {"state": "running", "finished_at": None}, 4: broken, 7: {"state": "interrupted"}}.get(minutes, took)
    factories.make_canary_run(at=world.before(minutes=minutes), **facts)


def _make_xmpp(world: World) -> None:
    """Make three apps, one of them retired, and devices in every state, some with pushes."""
    styles = {"murmur": "generic", "siskin": "tigase", "quarrel": "conversations"}
    apps = [
        factories.make_xmpp_app(slug=slug, style=style, app_topic=f"org.example.{slug}", at=world.before(days=200))
        for slug, style in styles.items()
    ]
    App.objects.filter(slug="quarrel").update(app_topic="", is_retired=True)
    for number in range(9):
        at = world.before(days=2 * number, hours=5)
        is_gone = number in {3, 6}
        device = factories.make_device(
            app=apps[number % 3],
            id=UUID(bytes=world.bytes(16), version=4),
            domain=("capulet.example", "montague.example")[number % 2],
            at=at,
            route=None if is_gone else _make_route(world, number, is_dead=number == 7, at=at),
            **({"state": "expired" if number == 3 else "unregistered", "ended_at": at} if is_gone else {}),
            **({"pushed_at": world.before(hours=7)} if number % 2 == 0 else {}),
        )
        if not is_gone:
            _make_push(world, device, number)


def _make_push(world: World, device: Device, number: int) -> None:
    """Make the rows that `storing.store_pushes` writes for a push, with one attempt."""
    at = world.before(seconds=400 + 50 * number)
    keys = {"request_key": world.bytes(40), "source_key": world.bytes(32), "message_id": b""}
    notification = factories.make_notification(
        request=factories.make_answered_request(at=at, bridge="xmpp", answered_at=at, **keys),
        at=at,
        public_key_hash=b"",
        installation_id=str(device.pk),
        type=0,
        grade=("voip", "high", "normal", "low")[number % 4],
        route=device.route,
        state="delivered",
        report="success",
        finished_at=at + timedelta(milliseconds=210),
        next_attempt_at=None,
    )
    _make_attempts(world, notification, "delivered", "")
    world.pushed = notification.pk


def save_peers(world: World, settings: Any) -> None:
    """Save the results of the config checks. They are in the cache and not in the database."""
    settings.WAKU_NODES, settings.WAKU_STORE_NODES, settings.GORUSH_URLS = [*NODES], [*NODES], [*GORUSHES]
    shown = {"version": "nwaku 0.38.1", "health": "READY", "shards": "16: 32", "longest_page": 700}
    for node in NODES:
        NODE_NOTICES.save(Notice(node, world.before(minutes=2), (), {}, shown))
    since = {NOT_SYNC.id: world.before(hours=5)}
    GORUSH_NOTICES.save(Notice(GORUSHES[0], world.before(minutes=1), (), {}, None))
    GORUSH_NOTICES.save(Notice(GORUSHES[1], world.before(minutes=1), (NOT_SYNC,), since, None))


def _make_operations(world: World) -> None:
    """Make the rows that operators see and change: channels, rules, accounts, tokens."""
    apps = {(1, APP): 1, (1, f"{APP}.pr"): 20, (2, ""): 60}
    for (token_type, topic), minutes in apps.items():
        at = {"last_success_at": world.before(minutes=minutes)}
        Channel.objects.update_or_create(token_type=token_type, app_topic=topic, defaults=at)
    factories.make_halt(
        "tripped", (1, f"{APP}.pr"), reason="InvalidProviderToken: 41 of 50",
        since=world.before(minutes=18), next_probe_at=world.now + timedelta(seconds=30),
    )  # fmt: skip
    factories.make_halt("paused", (2, ""), reason="maintenance at Google", by="ann", since=world.before(hours=1))
    factories.make_unknown_error(signature="the certificate of <host> is not ours", count=17)
    factories.make_unknown_error(platform="android", signature="quota of project <number> exceeded", count=3)
    tokens.issue("monitoring", ["status", "reports"], by="ann", now=world.before(days=4))


def _make_staff(world: World) -> None:
    load_seed()
    ann = User.objects.create_user("ann", is_staff=True, email="ann@example.org")
    TOTPDevice.objects.create(user=ann, name="authenticator", confirmed=True)
    attempt = {"ip_address": "192.0.2.7", "failures_since_start": 3, "attempt_time": world.before(minutes=50)}
    AccessAttempt.objects.create(username="bob", **attempt)
    opened = {"page": "user", "object_id": HEROINE.hex(), "at": world.before(hours=1)}
    AccessRecord.objects.create(user=ann, username="ann", **opened)
    LogEntry.objects.create(
        user=ann,
        content_type=ContentType.objects.get_for_model(Channel),
        object_id="1",
        object_repr="Firebase",
        action_flag=CHANGE,
        change_message="Paused. Why: maintenance at Google",
        action_time=world.before(hours=1),
    )
