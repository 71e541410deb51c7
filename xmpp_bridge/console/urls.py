"""Addresses of pages about devices and apps, made without importing the pages, because workers do not load them."""

from uuid import UUID

from django.urls import reverse


def app_url(app_id: int) -> str:
    return reverse("admin:xmpp_bridge_app_change", args=[app_id])


def device_url(device_id: UUID | None) -> str:
    return reverse("admin:xmpp_bridge_device_change", args=[device_id]) if device_id else ""
