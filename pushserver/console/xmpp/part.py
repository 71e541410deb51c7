"""XMPP for operators: its indicators, pages and metrics, its keys, and the devices that a search finds."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count
from django.urls import reverse

from kit.db.base import fetch
from kit.expiry.models import waiting
from kit.telemetry import StoredGauge
from notifications.models import Notification
from pushserver.console.canary.xmpp import canary
from pushserver.console.health.judges import Filled
from pushserver.console.health.verdicts import Facts
from pushserver.console.models import CanaryRun
from pushserver.console.part import Found, KeyUse, ListPage, Part
from pushserver.console.toolkit.search import is_id
from pushserver.console.xmpp.indicators import KINDS
from registrations.models import Route
from xmpp_bridge.component import read_fault
from xmpp_bridge.identity import client_keys, read_node, verify_client
from xmpp_bridge.limits import RATES, DeviceLimit
from xmpp_bridge.messages import BRIDGE
from xmpp_bridge.models import App, Device
from xmpp_bridge.statements import STORED_DEVICES

SECTION = "XMPP"
MAY_SEE_DEVICES = "xmpp_bridge.view_device"


def app_url(app_id: int) -> str:
    return reverse("admin:xmpp_bridge_app_change", args=[app_id])


def device_url(device_id: UUID | None) -> str:
    return reverse("admin:xmpp_bridge_device_change", args=[device_id]) if device_id else ""


# Facts ----------------------------------------------------------------------------------------------------------------
def reach(facts: Facts) -> Mapping[str, Any]:
    """Return why the component is not connected, or an empty text, and the last run of the canary."""
    is_blind = bool(facts["broker"])
    return {"xmpp": "" if is_blind else read_fault(), "xmpp-canary": canary.facts(is_blind=is_blind)}


def read(facts: Facts) -> Mapping[str, Any]:
    """Return the number of apps that devices may register in, of pushes of the last hour, and of devices."""
    [(stored,)] = fetch(STORED_DEVICES)
    pushes, _ = facts["hour"].of_bridge(BRIDGE)
    return {
        "xmpp-apps": App.objects.filter(is_retired=False).count(),
        "xmpp_pushes": pushes,
        "xmpp-devices": Filled(stored, settings.XMPP_MAX_DEVICES, waiting("devices")),
    }


# Keys -----------------------------------------------------------------------------------------------------------------
def key_use() -> KeyUse | None:
    """Return the number of devices by the key that they were registered with."""
    own, counts = [keys.name for keys in client_keys()], Counter[bytes]()
    active = Device.objects.filter(state=Device.State.ACTIVE)
    for name, count in active.values_list("key_name").annotate(Count("pk")).order_by():
        counts[name or own[0]] += count
    others = "were registered with none of these: no push reaches them"
    return KeyUse("XMPP devices", own, counts, others) if counts else None


def knows_newest_clients(number: int) -> bool:
    """Return whether any of the newest devices was registered with a key that this server still has."""
    devices = Device.objects.filter(state=Device.State.ACTIVE).order_by("-registered_at")
    registered_with = set(devices.values_list("key_name", flat=True)[:number])
    return not registered_with - {None} or any(keys.name in registered_with for keys in client_keys())


# Devices --------------------------------------------------------------------------------------------------------------
def owner_of(notification: Notification) -> Device | None:
    """Return the device that a notification was for, with its primary key."""
    is_device = not notification.public_key_hash and is_id(notification.installation_id)
    return Device(pk=UUID(notification.installation_id)) if is_device else None


def find(term: str) -> Iterator[Found]:
    """Yield the device with this id."""
    if is_id(term):
        for device in Device.objects.filter(pk=UUID(term)).only("pk"):
            yield Found("XMPP device", str(device.pk), device_url(device.pk), MAY_SEE_DEVICES)


def searchable(term: str) -> str | None:
    """Return the id of the device that has this client string or node."""
    if device_id := verify_client(term, client_keys()):
        return str(device_id)
    named = read_node(term)  # any 16 bytes look like a node
    return str(named) if named and Device.objects.filter(pk=named).exists() else None


# Metrics, by the rules in `waku_bridge/metrics.py` --------------------------------------------------------------------
ENDS_UNANNOUNCED = StoredGauge(
    "pushserver_xmpp_ends_waiting",
    "Disabled routes whose end is not yet announced to the user's server, counted up to 10 000. "
    "When it moves: growing, the component is not connected.",
    sql=f"""
        SELECT count(*) FROM (
            SELECT FROM registrations_route WHERE state = '{Route.State.DISABLED}' AND is_end_awaited LIMIT 10000
        ) AS unannounced
    """,
)
CANARY_LINK_SECONDS = StoredGauge(
    "pushserver_xmpp_canary_link_seconds",
    "Seconds that each link of the chain took in the last round trip of the canary of XMPP; links that it did not "
    "reach are missing. "
    "When it moves: the links are explained in docs/canary.md; users' servers wait for the answer to a push.",
    ("link",),
    sql=CanaryRun.link_seconds(CanaryRun.Network.XMPP),
)


XMPP = Part(
    name=BRIDGE,
    label="XMPP",
    is_bridge=True,
    is_in_use=lambda: bool(settings.XMPP_COMPONENT_JID),
    app_label="xmpp_bridge",
    kinds=KINDS,
    canary=canary,
    reach=reach,
    read=read,
    admin_module="pushserver.console.xmpp.admin",
    metric_modules={
        "XMPP": "xmpp_bridge.metrics",
        "Ends and the canary of XMPP": __name__,
    },
    api_urls="pushserver.console.xmpp.api",
    key_use=key_use,
    knows_newest_clients=knows_newest_clients,
    list_pages=(
        ListPage(SECTION, "XMPP devices", "devices", "xmpp_bridge.device"),
        ListPage(SECTION, "XMPP apps", "apps", "xmpp_bridge.app"),
    ),
    owners=(Device,),
    owner_of=owner_of,
    push_limits={
        DeviceLimit.WAKE_UPS: f"more than one wake-up of a device in {RATES.wake_seconds:g} s",
        DeviceLimit.PAYLOADS: f"more than {RATES.payloads_per_minute} payloads a minute or "
        f"{RATES.payloads_per_day:,} a day to one phone",
        DeviceLimit.CALLS: f"more than {RATES.calls_per_minute} calls a minute to one phone",
        DeviceLimit.DOMAIN: "more pushes than a domain or all domains may send",
    },
    found_permissions=(MAY_SEE_DEVICES,),
    search_terms=("of a device of XMPP: the client string, node or id that its app received",),
    find=find,
    searchable=searchable,
)
