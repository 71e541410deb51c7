"""Admin pages of the apps that are served through XMPP, which operators edit, and of their devices.

No page shows a JID, because none is stored. The domain of an account may name a person, so no list shows it. It stands
on the page of the device, and each opening of that page is recorded.
"""

from collections.abc import Iterable
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.db import models
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from kit.db.clock import DAY
from pushserver.console.registrations.admin import ROUTE_SECRETS, RouteAdmin, route_url
from pushserver.console.toolkit.columns import NOTHING, age, coarse_age, link, moment, state, word, yes_no
from pushserver.console.toolkit.editing import LoggedEdits, OptimisticForm
from pushserver.console.toolkit.facts import FactAdmin, Narrowed
from pushserver.console.toolkit.lists import Alone, WordFilter
from pushserver.console.toolkit.operations import Operated
from pushserver.console.toolkit.related import Link, links_from, list_url
from pushserver.console.xmpp.operations import DisableDevice, EnableDevice, RemoveDevice
from pushserver.console.xmpp.part import app_url, device_url
from registrations.models import Route
from xmpp_bridge.models import App, Device

DEVICES = "xmpp_bridge_device"
EDITED = (
    *("slug", "app_topic", "takes_firebase", "style", "text", "sound"),
    *("calls_as_alerts", "passes_texts", "refuses_texts", "is_retired"),
)


@admin.register(App)
class AppAdmin(LoggedEdits, Narrowed, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    form = OptimisticForm
    edited = EDITED
    list_display = (
        *("slug", "platforms", word("app_topic", "topic at Apple"), word("style", "payload style")),
        *(yes_no("passes_texts", "texts passed on"), yes_no("is_retired", "retired"), age("created_at", "since")),
        link(lambda app: list_url(DEVICES, app__id__exact=str(app.pk)), "devices", "its devices"),
    )
    list_filter = (("style", WordFilter), "is_retired")
    ordering = ("slug",)
    actions = None
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": UnfoldAdminTextInputWidget}}

    @admin.display(description="platforms")
    def platforms(self, app: App) -> str:
        named = {"Apple": app.app_topic, "Firebase": app.takes_firebase}
        return ", ".join(name for name, is_there in named.items() if is_there) or NOTHING

    def get_fields(self, request: HttpRequest, obj: App | None = None) -> Any:  # noqa: ARG002
        return (*EDITED, "created_at") if obj else EDITED

    def get_readonly_fields(self, request: HttpRequest, obj: App | None = None) -> Any:  # noqa: ARG002
        """Lock the slug of a stored app: the hashes that recognise its devices are made from it."""
        return ("slug", "created_at") if obj else ()

    def has_delete_permission(self, request: HttpRequest, obj: App | None = None) -> bool:
        """Allow deletion only of an app that never had a device. Any other app can be retired."""
        return super().has_delete_permission(request, obj) and (obj is None or not obj.devices.exists())

    def save_model(self, request: HttpRequest, obj: App, form: Any, change: bool) -> None:
        if not change:
            obj.created_at = timezone.now()
        super().save_model(request, obj, form, change)


class AppFilter(Alone, admin.RelatedFieldListFilter):
    """Filter that lists every app, because there are few."""


@admin.register(Device)
class DeviceAdmin(Operated, FactAdmin):
    operations: ClassVar[Any] = {"disable": DisableDevice, "enable": EnableDevice, "remove": RemoveDevice}
    list_display = (
        word("pk", "device"),
        word("app", "app"),
        word("route__get_token_type_display", "platform"),
        state("state"),
        state("route__state", "route"),
        word("route__disabled_reason", "reason"),
        age("registered_at", "registered"),
        coarse_age("pushed_at", "pushed to", DAY),
        age("ended_at", "ended"),
    )
    list_filter = (("state", WordFilter), ("app", AppFilter))
    list_select_related = ("app", "route")
    ordering = ("-registered_at",)
    shown: ClassVar[Any] = {
        "Device": (
            word("pk", "device"),
            link(lambda device: app_url(device.app_id), "app", "its app"),
            state("state"),
            word("domain", "domain of the account"),
            link(lambda device: route_url(device.route_id), "route", "its route"),
        ),
        "Times": (
            moment("registered_at", "registered, the last time"),
            coarse_age("pushed_at", "pushed to", DAY),
            moment("ended_at", "ended"),
        ),
    }
    linked_by = ("app__id__exact",)
    search_help_text = "Client string, node or id of a device"
    unread = ("device_key", "owner_key", "key_name", "announced_from", *(f"route__{name}" for name in ROUTE_SECRETS))

    def matching_id(self, term: str) -> Q:
        return Q(pk=UUID(term))


# `registrations` imports no bridge, so the link from a route's page to its device is added here.
RouteAdmin.shown = RouteAdmin.shown | {
    "Address": (
        *RouteAdmin.shown["Address"],
        link(lambda route: device_url(device_of(route)), "device", "its XMPP device"),
    )
}


def device_of(route: Route) -> UUID | None:
    """Return the id of the device that a route leads to, or None when the route belongs to a registration."""
    return Device.objects.filter(route=route).values_list("pk", flat=True).first()


@links_from.register(Device)
def from_device(device: Device) -> Iterable[Link]:
    if device.route_id:
        yield Link("Notifications", list_url("notifications_notification", route__id__exact=str(device.route_id)))
    if device.route and device.route.pseudonym:
        yield Link("Registration events", list_url("registrations_registrationevent", q=str(device.route.pseudonym)))
    yield Link("App", app_url(device.app_id))
    yield Link("Devices of this app", list_url(DEVICES, app__id__exact=str(device.app_id)))
