"""The gateway behind the HTTP interface: it sends to an imitated Apple or Google, and counts and records."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from embedded.gorush.outcomes import Outcome, Platform, Refusal, decide, fate_of, refuse
from embedded.gorush.pushes import Pushes
from embedded.gorush.request import (
    Notification,
    addressed_tokens,
    count,
    is_enabled,
    is_invalid,
    is_too_large,
    is_unaddressed,
)
from embedded.gorush.urls import unusable

MAX_COLLAPSE_ID_BYTES = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings: `data` is the SQLite file of the recorded pushes. `hide_token` is gorush's own switch."""

    data: Path | None = None
    hide_token: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """One push and its outcome. An FCM broadcast has an empty token."""

    notification: Notification
    token: str
    outcome: Outcome


@dataclass(slots=True)
class PlatformCounters:
    push_success: int = 0
    push_error: int = 0


@dataclass(slots=True)
class Counters:
    """The counters of gorush's `/api/stat/app`.

    A task is a notification, counted when it ends. A notification that is dropped unsent is a failed task.
    """

    success_tasks: int = 0
    failure_tasks: int = 0
    submitted_tasks: int = 0
    total_count: int = 0
    ios: PlatformCounters = field(default_factory=PlatformCounters)
    android: PlatformCounters = field(default_factory=PlatformCounters)
    huawei: PlatformCounters = field(default_factory=PlatformCounters)


class Gateway:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pushes = Pushes(settings.data)
        self.counters = Counters()

    async def send_all(self, notifications: Sequence[Notification]) -> list[Settled]:
        """Send everything at once, and return when the slowest push is settled, as gorush does in sync mode."""
        enabled = [notification for notification in notifications if is_enabled(notification)]
        self.counters.total_count += sum(map(count, enabled))
        if len(enabled) == 1:
            return await self._send(enabled[0])
        settled = await asyncio.gather(*map(self._send, enabled))
        return [one for several in settled for one in several]

    async def _send(self, notification: Notification) -> list[Settled]:
        self.counters.submitted_tasks += 1
        if is_unaddressed(notification) or is_invalid(notification):
            self.counters.failure_tasks += 1
            self.counters.android.push_error += not is_unaddressed(notification)
            return []
        settled = await self._push_all(notification, addressed_tokens(notification))
        self.counters.success_tasks += 1
        return settled

    async def _push_all(self, notification: Notification, tokens: Sequence[str]) -> list[Settled]:
        if notification.platform == Platform.ANDROID and notification.topic:
            self._settle(notification, "", Outcome())
        if len(tokens) == 1:
            return [await self._push(notification, tokens[0])]
        return await asyncio.gather(*(self._push(notification, token) for token in tokens))

    async def _push(self, notification: Notification, token: str) -> Settled:
        platform = Platform(notification.platform)
        tries = self.pushes.tries(token, notification.collapse_id) if "flaky" in fate_of(token) else 0
        outcome = _outcome(notification, token, platform, tries)
        if outcome.delay_ms:
            # Shielded: a push in flight goes on when its caller hangs up.
            return await asyncio.shield(self._settle_later(notification, token, outcome))
        return self._settle(notification, token, outcome)

    async def _settle_later(self, notification: Notification, token: str, outcome: Outcome) -> Settled:
        await asyncio.sleep(outcome.delay_ms / 1000)
        return self._settle(notification, token, outcome)

    def _settle(self, notification: Notification, token: str, outcome: Outcome) -> Settled:
        if outcome.is_sent:
            received_ms = time.time_ns() // 1_000_000
            for _ in range(outcome.sends):
                self.pushes.record(notification, token, error=outcome.upstream_error, received_ms=received_ms)
        if outcome.is_sent or outcome.error:
            self._count(Platform(notification.platform), is_accepted=not outcome.error)
        return Settled(notification, token, outcome)

    def _count(self, platform: Platform, *, is_accepted: bool) -> None:
        counters = self.counters.ios if platform is Platform.IOS else self.counters.android
        if is_accepted:
            counters.push_success += 1
        else:
            counters.push_error += 1


def _outcome(notification: Notification, token: str, platform: Platform, tries: int) -> Outcome:
    """Decide by the token, after the checks that gorush, Apple and Google make before."""
    if platform is Platform.IOS and (error := unusable(token)):
        return Outcome(error=error, is_sent=False)
    if platform is Platform.IOS and (reason := _refusal_of_apple(notification, token)):
        return Outcome(error=reason)
    if is_too_large(notification):
        return refuse(Refusal.BIG, platform, token)
    return decide(token, platform, tries)


def _refusal_of_apple(notification: Notification, token: str) -> str:
    if not token:
        return "MissingDeviceToken"
    if not notification.topic:
        return "MissingTopic"
    return "BadCollapseId" if len(notification.collapse_id.encode()) > MAX_COLLAPSE_ID_BYTES else ""


GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)
