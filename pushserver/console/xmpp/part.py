"""Operator's side of XMPP: its indicators, pages, metrics and devices, and the canary's rows that reports leave out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Model
from django.urls import reverse

from kit.db.base import fetch
from kit.expiry.models import waiting
from notifications.models import Notification
from pushserver.console.canary.xmpp import canary
from pushserver.console.health import canaries, filling
from pushserver.console.health.filling import Filling
from pushserver.console.health.indicators import Indicator, Kind
from pushserver.console.parts import Evidence, Found, KeyUse, ListPage, Operations
from pushserver.console.toolkit.search import is_id
from pushserver.console.xmpp import indicators, metrics
from pushserver.console.xmpp.indicators import Reached, XmppFacts
from xmpp_bridge.component import read_fault
from xmpp_bridge.identity import client_keys, read_node, verify_client
from xmpp_bridge.limits import RATES, DeviceLimit
from xmpp_bridge.messages import BRIDGE
from xmpp_bridge.models import App, Device
from xmpp_bridge.statements import STORED_DEVICES

SECTION = "XMPP"


def app_url(app_id: int) -> str:
    return reverse("admin:xmpp_bridge_app_change", args=[app_id])


def device_url(device_id: UUID | None) -> str:
    return reverse("admin:xmpp_bridge_device_change", args=[device_id]) if device_id else ""


class XmppOperations(Operations):
    name = document = BRIDGE
    is_bridge = True
    app_label = "xmpp_bridge"
    label = "XMPP"
    checks = ("xmpp_bridge.tasks.run_canary",)
    kinds: Sequence[Kind] = indicators.KINDS
    metric_modules: ClassVar[Mapping[str, str]] = {
        "XMPP": "xmpp_bridge.metrics",
        "Ends and the canary of XMPP": metrics.__name__,
    }
    api_urls = "pushserver.console.xmpp.api"
    list_pages = (
        ListPage(SECTION, "XMPP devices", "devices", "xmpp_bridge.device"),
        ListPage(SECTION, "XMPP apps", "apps", "xmpp_bridge.app"),
        ListPage(SECTION, "XMPP canary runs", "sync", "xmpp_bridge.canaryrun"),
    )
    push_limits: ClassVar[Mapping[str, str]] = {
        DeviceLimit.WAKE_UPS: f"more than one wake-up of a device in {RATES.wake_seconds:g} s",
        DeviceLimit.PAYLOADS: f"more than {RATES.payloads_per_minute} payloads a minute or "
        f"{RATES.payloads_per_day:,} a day to one phone",
        DeviceLimit.CALLS: f"more than {RATES.calls_per_minute} calls a minute to one phone",
        DeviceLimit.DOMAIN: "more pushes than a domain or all domains may send",
    }
    search_terms = ("of a device of XMPP: the client string, node or id that its app received",)
    found_permissions = ("xmpp_bridge.view_device",)

    def is_in_use(self) -> bool:
        return bool(settings.XMPP_COMPONENT_JID)

    def reach(self, asked: Any, leaders: Mapping[str, float] | None, *, is_blind: bool) -> Reached:
        return Reached("" if is_blind else read_fault(), canary.facts(is_blind=is_blind))

    def judge_reached(self, reached: Reached, *, is_redis_down: bool) -> Iterator[Indicator]:
        yield indicators.connection(reached.component, is_redis_down=is_redis_down)
        yield canaries.judge(indicators.CANARY, reached.canary, is_redis_down=is_redis_down)

    def read(self, evidence: Evidence) -> XmppFacts:
        [(stored,)] = fetch(STORED_DEVICES)
        devices = Filling(
            "XMPP_MAX_DEVICES",
            "devices",
            stored,
            settings.XMPP_MAX_DEVICES,
            waiting("devices"),
        )
        return XmppFacts(App.objects.filter(is_retired=False).count(), evidence.requests, devices)

    def judge_stored(self, stored: XmppFacts, reached: Reached, now: datetime) -> Iterator[Indicator]:
        yield indicators.apps(stored)
        yield filling.judge(indicators.DEVICES, stored.devices)

    def purge(self, *, now: datetime) -> Iterator[int]:
        return canary.purge(now=now)

    def key_use(self) -> KeyUse | None:
        own, counts = [keys.name for keys in client_keys()], Counter[bytes]()
        active = Device.objects.filter(state=Device.State.ACTIVE)
        for name, count in active.values_list("key_name").annotate(Count("pk")).order_by():
            counts[name or own[0]] += count
        others = "were registered with none of these: no push reaches them"
        return KeyUse("XMPP devices", own, counts, others) if counts else None

    def knows_newest_clients(self, number: int) -> bool:
        devices = Device.objects.filter(state=Device.State.ACTIVE).order_by("-registered_at")
        registered_with = set(devices.values_list("key_name", flat=True)[:number])
        return not registered_with - {None} or any(keys.name in registered_with for keys in client_keys())

    def owners(self) -> Sequence[type[Model]]:
        return [Device]

    def owner_of(self, notification: Notification) -> Device | None:
        is_device = not notification.public_key_hash and is_id(notification.installation_id)
        return Device(pk=UUID(notification.installation_id)) if is_device else None

    def find(self, term: str) -> Iterator[Found]:
        if is_id(term):
            for device in Device.objects.filter(pk=UUID(term)).only("pk"):
                yield Found("XMPP device", str(device.pk), device_url(device.pk), *self.found_permissions)

    def searchable(self, term: str) -> str | None:
        if device_id := verify_client(term, client_keys()):
            return str(device_id)
        named = read_node(term)  # any 16 bytes look like a node
        return str(named) if named and Device.objects.filter(pk=named).exists() else None
