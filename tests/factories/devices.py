import secrets
from datetime import datetime
from typing import Any

from django.utils import timezone

from tests.factories.registrations import make_route
from xmpp_bridge.models import App, CanaryRun, Device


def make_xmpp_app(*, at: datetime | None = None, **fields: Any) -> App:
    """Make an app with devices at Apple and at Firebase."""
    defaults: dict[str, Any] = {"slug": f"app-{secrets.token_hex(4)}", "app_topic": "org.example.chat"}
    return App.objects.create(created_at=at or timezone.now(), **defaults | fields)


def make_device(*, app: App | None = None, at: datetime | None = None, **fields: Any) -> Device:
    """Make an active XMPP device with a route of its own. With ``route=None`` and another ``state`` it has ended."""
    at = at or timezone.now()
    if "route" not in fields:
        fields["route"] = make_route(at=at, is_end_awaited=True)
    defaults: dict[str, Any] = {
        "domain": "capulet.test",
        "device_key": secrets.token_bytes(32),
        "owner_key": secrets.token_bytes(32),
        "registered_at": at,
    }
    return Device.objects.create(app=app or make_xmpp_app(at=at), **defaults | fields)


def make_xmpp_canary_run(*, at: datetime | None = None, **fields: Any) -> CanaryRun:
    """Make a canary run that passed."""
    at = at or timezone.now()
    return CanaryRun.objects.create(started_at=at, **{"state": CanaryRun.State.PASSED, "finished_at": at} | fields)
