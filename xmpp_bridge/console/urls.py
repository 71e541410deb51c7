"""Addresses of pages about devices and apps, made without importing the pages, because workers do not load them."""

from uuid import UUID

from django.urls import reverse


def app_url(app_id: int) -> str:
    return reverse("admin:xmpp_bridge_app_change", args=[app_id])


def devices_url(app_id: int) -> str:
    """Return the address of the list of an app's devices."""
    return f"{reverse('admin:xmpp_bridge_device_changelist')}?app__id__exact={app_id}"


def device_url(device_id: UUID | str | None) -> str:
    return reverse("admin:xmpp_bridge_device_change", args=[device_id]) if device_id else ""
