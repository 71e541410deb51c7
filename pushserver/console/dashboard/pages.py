"""Addresses of the pages where each thing is looked at or put right, for people with the permission."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from pushserver.state.lights import Page


@dataclass(frozen=True, slots=True)
class _Address:
    """The address of a page. ``permission`` is empty for pages that all of the staff may open."""

    name: str
    permission: str = ""
    query: str = ""


def _list(model: str, query: str = "") -> _Address:
    """Return the address of a list of rows."""
    app_label, model_name = model.split(".")
    return _Address(f"admin:{app_label}_{model_name}_changelist", f"{app_label}.view_{model_name}", query)


ADDRESSES = {
    Page.NODES: _Address("waku_nodes"),
    Page.WATERMARKS: _list("waku_bridge.storewatermark"),
    Page.INBOX: _list("waku_bridge.inboundenvelope", "state__exact=received"),
    Page.FAULTS: _list("waku_bridge.envelopefault", "waiting=yes"),
    Page.FAILED: _list("waku_bridge.inboundenvelope", "state__exact=failed"),
    Page.DEAD_LETTERS: _list("waku_bridge.deadletter"),
    Page.DRAIN: _Address("drain", "notifications.operate_drain"),
    Page.STUCK: _list("notifications.notification", "progress=stuck"),
    Page.GORUSH: _Address("gorush_configuration"),
    Page.ATTEMPTS: _list("notifications.attempt"),
    Page.FAILED_ATTEMPTS: _list("notifications.attempt", "failed=yes"),
    Page.UNKNOWN_ERRORS: _list("notifications.unknowngatewayerror"),
    Page.CHANNELS: _list("notifications.channel"),
    Page.TRIPPED: _list("notifications.channel", "halted=tripped"),
    Page.PAUSED: _list("notifications.channel", "halted=paused"),
    Page.HALTED: _list("notifications.channel", "halted=yes"),
    Page.OUTBOX: _list("waku_bridge.outboundreply", "state__exact=pending"),
    Page.OPEN: _list("notifications.notification", "progress=open"),
    Page.ENDED: _list("notifications.notification"),
    Page.LOST_REPLIES: _list("waku_bridge.outboundreply", "lost=yes"),
    Page.REPLIES: _list("waku_bridge.outboundreply"),
    Page.REQUESTS: _list("notifications.notificationrequest", "state__exact=waiting"),
    Page.CANARY: _list("waku_bridge.canaryrun"),
    Page.XMPP_CANARY: _list("xmpp_bridge.canaryrun"),
    Page.XMPP_APPS: _list("xmpp_bridge.app"),
    Page.XMPP_DEVICES: _list("xmpp_bridge.device"),
    Page.REPORTS: _Address("reports:overview", "spark_reports.view_publishedday"),
    Page.INCIDENTS: _list("pushserver.incident"),
    Page.RUNS: _list("spark_reports.reportrun"),
}


def url_of(page: Page | None, user: Any, **query: str) -> str:
    """Return the URL of a page, or an empty text for a person who may not open it."""
    if page is None:
        return ""
    address = ADDRESSES[page]
    if address.permission and not user.has_perm(address.permission):
        return ""
    narrowed = "&".join(part for part in (address.query, urlencode(query)) if part)
    return f"{reverse(address.name)}{f'?{narrowed}' if narrowed else ''}"
