"""A server in the middle of its day: rows of every table and in every state, as operators would find them."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils import timezone

from notifications.acceptance.storing import Beyond, count_beyond
from notifications.messages import Effect, PushLimit
from notifications.models import EndedAttempt, Notification
from notifications.policy import Verdict, Wish
from notifications.reports import Decided
from pushserver.console.checks.engine import Notice
from pushserver.console.checks.gorush import NOTICES as GORUSH_NOTICES
from pushserver.console.checks.nodes import NOTICES as NODE_NOTICES
from pushserver.console.checks.peers import Complaint
from pushserver.console.models import CanaryRun
from pushserver.roles import seed_roles
from registrations.models import Registration
from spark_reports.models import PublishedDay
from spark_reports.nights.nights import last_closed_day
from tests.console.reading import HEROINE
from tests.console.routes import make_one_of_everything
from tests.rig import reports, rows
from waku_bridge.models import InboundEnvelope, OutboundReply
from xmpp_bridge.models import Device

APP = "im.status.ethereum"
NODES = ("http://node-01.waku.example.org:8645", "http://node-02.waku.example.org:8645")
GORUSHES = ("http://gorush-01.push.example.org:8088", "http://gorush-02.push.example.org:8088")
NOT_SYNC = Complaint(
    "not_sync",
    "core.sync is off",
    "It answers before Apple and Google do: everything counts as delivered.",
    "Set GORUSH_CORE_SYNC=true and start it again.",
)
# The outcome and the code of the last attempt by state, and the status that the sender was sent. In other states
# nothing was tried, and what is over counts as a success.
ENDS = {
    "retrying": ("transient", "unavailable", "success"),
    "ambiguous": ("ambiguous", "timeout", "success"),
    "delivered": ("delivered", "", "success"),
    "dead_token": ("dead", "unregistered", "not_registered"),
    "undeliverable": ("payload", "payload_too_large", "success"),
    "unconfirmed": ("ambiguous", "timeout", "success"),
    "expired": ("transient", "unavailable", "success"),
}


class World(NamedTuple):
    retried: int  # a notification that arrived with the second attempt
    pushed: int  # a notification that came through XMPP


def make_world() -> World:
    now = timezone.now()
    seed_roles()
    make_one_of_everything()
    PublishedDay.objects.all().delete()  # there are busy nights below
    for number, state in enumerate(Notification.State.values):
        _make_push_in(state, number, now)
    _make_decided(now)
    _make_bridges(now)
    _make_channels(now)
    for days_ago in range(15):
        reports.make_busy_night(last_closed_day(now) - timedelta(days=days_ago), days_ago)
    return World(rows.make_delivered(HEROINE).pk, rows.make_xmpp_push().pk)


def _make_push_in(state: str, number: int, now: datetime) -> None:
    """Make a push with everything around it. Every fourth is for the heroine."""
    is_open = not Notification.State(state).is_terminal
    outcome, code, report = ENDS.get(state, ("", "", None if is_open else "success"))
    key = bytes([number + 7]) * 64 if number % 4 else HEROINE
    due_at = now + timedelta(seconds=40 if state == "in_flight" else 120)
    ends: dict[str, Any] = {"finished_at": None, "due_at": due_at} if is_open else {}
    ends["attempt_count"] = 2 if outcome else int(state == "in_flight")
    ago = timedelta(minutes=6 + 7 * number)
    notification = rows.make_delivered(key, ago=ago, state=state, report=report, type=1 + number % 2, **ends)
    if outcome:
        EndedAttempt.objects.filter(notification=notification, number=2).update(outcome=outcome, code=code)
    else:
        EndedAttempt.objects.filter(notification=notification).delete()


def _make_decided(now: datetime) -> None:
    """Make pushes to the heroine that were decided at once: by her wishes, or by her friends' outdated data."""
    wishes = [Wish.CHAT_MUTED, Wish.AUTHOR_BLOCKED, Wish.MENTIONS_BLOCKED]
    decided = [Decided(0, Verdict.SUPPRESSED, 2 if wish is Wish.MENTIONS_BLOCKED else 1, wish) for wish in wishes]
    decided += [Decided(0, Verdict.WRONG_TOKEN, 1), Decided(0, Verdict.DUPLICATE, 1)]
    decided.append(Decided(0, Verdict.COALESCED, 1, PushLimit.ADDRESS))
    for number, one in reversed([*enumerate(decided)]):
        rows.make_decided(HEROINE, one, at=now - timedelta(minutes=3 + 17 * number))
    phone = Registration.objects.filter(public_key_hash=HEROINE).earliest("pk")
    for effect, number in ((Effect.SHORTENED, 2), (Effect.MERGED, 41)):
        beyond = Beyond(HEROINE, phone.installation_id, effect, PushLimit.ADDRESS)
        count_beyond([beyond] * number, now=now - timedelta(minutes=20))


def _make_bridges(now: datetime) -> None:
    """Make rows of both bridges in every state."""
    wrong = {"dropped": "stale_version", "failed": "DatabaseError", "pending_key": ""}
    for minutes, state in enumerate(InboundEnvelope.State.values):
        kinds = {"message_type": 1 + minutes, "path": InboundEnvelope.Path.values[minutes % 3]}
        at = now - timedelta(minutes=minutes)
        rows.make_envelope(state=state, reason=wrong.get(state, ""), source=NODES[minutes % 2], at=at, **kinds)
    for minutes, state in enumerate(OutboundReply.State.values):
        rows.make_reply(state=state, at=now - timedelta(minutes=minutes), node=NODES[0] if minutes else "")
    for state in CanaryRun.State.values:
        rows.make_canary_run(state=state)
    for state in {*Device.State.values} - {"active"}:
        rows.make_device(state=state, route=None, ended_at=now - timedelta(hours=5))


def _make_channels(now: datetime) -> None:
    rows.make_channel((1, f"{APP}.pr"), last_success_at=now - timedelta(minutes=20))
    rows.make_halt(
        "tripped", (1, f"{APP}.pr"), reason="InvalidProviderToken: 41 of 50",
        since=now - timedelta(minutes=18), next_probe_at=now + timedelta(seconds=30),
    )  # fmt: skip
    rows.make_halt("paused", (2, ""), reason="maintenance at Google", by="ann", since=now - timedelta(hours=1))


def save_peers(settings: Any) -> None:
    """Save the results of the config checks. They are in the cache and not in the database."""
    now = timezone.now()
    settings.WAKU_NODES, settings.WAKU_STORE_NODES, settings.GORUSH_URLS = [*NODES], [*NODES], [*GORUSHES]
    shown = {
        "version": "nwaku 0.38.1",
        "health": "READY",
        "cluster and shards": "16: 32",
        "longest page": "700 messages",
    }
    for node in NODES:
        NODE_NOTICES.save(Notice(node, now - timedelta(minutes=2), (), {}, None, shown))
    since = {NOT_SYNC.id: now - timedelta(hours=5)}
    GORUSH_NOTICES.save(Notice(GORUSHES[0], now - timedelta(minutes=1), (), {}, None))
    GORUSH_NOTICES.save(Notice(GORUSHES[1], now - timedelta(minutes=1), (NOT_SYNC,), since, None))
