"""Every URL of the console, taken from Django's resolver, so that no test can leave out a new page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone
from django_otp.plugins.otp_totp.models import TOTPDevice

from notifications.gateways.gorush.models import load_shipped
from notifications.models import Channel, Notification, NotificationRequest
from pushserver.console.models import AccessRecord, ApiToken, FailedLogin, Incident
from pushserver.console.notifications.channels import OPERATIONS as CHANNEL_OPERATIONS
from pushserver.console.pages.drain import OPERATIONS as DRAIN_OPERATIONS
from pushserver.console.reports.panels import PAGES
from pushserver.console.toolkit.operations import Operated, id_of
from registrations.models import Registration
from spark_reports.nights.nights import last_closed_day
from tests.rig import reports, rows
from waku_bridge.inbox import faults

CONSOLE = "admin/"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console. ``name`` is the name of its URL pattern with its namespace; several pages can share it."""

    name: str
    url: str


def patterns(resolver: URLResolver, prefix: str = "", names: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of every route below a resolver."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from patterns(pattern, route, (*names, *filter(None, [pattern.namespace])))
        elif isinstance(pattern, URLPattern):
            yield ":".join([*names, pattern.name or ""]), route


def console_names() -> set[str]:
    return {name for name, route in patterns(get_resolver()) if route.startswith(CONSOLE)}


def console_pages(*, every_row: bool = False) -> list[Page]:
    """Return every page of the console, for the first row of each table, or for every row."""
    names = sorted(console_names() - set(WITHOUT_NAME))
    filled_in = _filled_in(every_row=every_row)
    return [Page(name, url) for name in names for url in _urls(name, filled_in.get(name, [{}]), every_row=every_row)]


# Django's own routes without a name: the redirect from a row's URL to its change page, and the catch-all.
WITHOUT_NAME = ("admin:",)


def _urls(name: str, filled_in: list[dict[str, Any]], *, every_row: bool) -> Iterator[str]:
    """Yield the URLs of a route, with ids of existing rows. A new route with parameters needs a line in
    `_filled_in`.
    """
    model = MODELS.get(name.rpartition("_")[0])
    kind = name.rpartition("_")[2]
    if model and kind == "operate" and model is not Channel:
        ids = ids_of(model)[:1]
        yield from (f"{reverse(name, args=[operation])}?id={id_}" for operation in _operations(model) for id_ in ids)
    elif model and kind in {"history", "delete", "change"}:
        ids = ids_of(model)[: None if every_row and kind == "change" else 1]
        yield from (reverse(name, args=[id_]) for id_ in ids)
    elif name == "reports:csv":
        for slug, page in PAGES.items():
            url = reverse(name, args=[slug])
            yield from (url, *(f"{url}?table={table}" for table in page.beside))
    elif name == "reports:run":
        yield f"{reverse(name)}?from={last_closed_day(timezone.now())}"
    else:
        yield from (reverse(name, kwargs=parameters) for parameters in filled_in)


MODELS: dict[str, type[Model]] = {
    f"admin:{model._meta.app_label}_{model._meta.model_name}": model for model in admin.site._registry
}


# Apps whose tables every role may view.
FACTS = frozenset({"registrations", "notifications", "waku_bridge", "xmpp_bridge", "spark_reports"})


def _operations(model: type[Model]) -> list[str]:
    page = admin.site.get_model_admin(model)
    assert isinstance(page, Operated)
    return list(page.operations)


def ids_of(model: type[Model]) -> list[str]:
    """Return the ids of a model's rows, as they stand in URLs. Of accounts only ann's, as the session's own differs."""
    rows = model._default_manager.filter(username="ann") if model is User else model._default_manager.all()
    return [id_of(row) for row in rows.only("pk").order_by("pk")]


def _filled_in(*, every_row: bool) -> dict[str, list[dict[str, Any]]]:
    some = slice(None if every_row else 1)
    hashes = Registration.objects.order_by("pk").values_list("public_key_hash", flat=True)
    users = list(dict.fromkeys(bytes(key_hash).hex() for key_hash in hashes))[some]
    facts = [model._meta for model in MODELS.values() if model._meta.app_label in FACTS]
    return {
        "search_facts": [
            {"app_label": meta.app_label, "model_name": meta.model_name} for meta in facts if _is_searched(meta)
        ],
        "found": [{"term": user} for user in users],
        "user": [{"object_id": user} for user in users],
        "forget_user": [{"key_hash_hex": user} for user in users],
        "timeline": [{"object_id": id_} for id_ in ids_of(Notification)[some]],
        "documentation": [{"name": "console"}],
        "request_timeline": [{"object_id": id_} for id_ in ids_of(NotificationRequest)[some]],
        "alert_level": [{"kind": "batches"}],
        "change_drain": [{"operation": operation} for operation in DRAIN_OPERATIONS],
        "reports:report": [{"slug": slug} for slug in PAGES],
        "admin:notifications_channel_operate": [
            {"channel_id": id_, "operation": operation}
            for id_ in ids_of(Channel)[some]
            for operation in CHANNEL_OPERATIONS
        ],
        "admin:auth_user_password_change": [{"id": id_} for id_ in ids_of(User)],
        "admin:view_on_site": [{"content_type_id": "1", "object_id": "1"}],
        "admin:app_list": [{"app_label": label} for label in sorted({meta.app_label for meta in facts})],
    }


def _is_searched(meta: Any) -> bool:
    return bool(getattr(admin.site.get_model_admin(meta.model), "search_help_text", ""))


def make_one_of_everything() -> None:
    """Make at least one row for every page of the console."""
    now = timezone.now()
    make_one_of_each_fact()
    rows.make(Incident, indicator="broker", name="Redis", state="act now", sentence="away", ended_at=now)
    rows.make_channel((2, ""))
    _make_accounts(now)
    reports.publish(last_closed_day(now))


def make_one_of_each_fact(*, device: Mapping[str, Any] | None = None, **user: Any) -> None:
    """Make a row of every table of facts. All rows of a user are about the same user."""
    now = timezone.now()
    rows.make_story(envelope={"state": "failed", "reason": "KeyError"}, **user)
    faults.note(f"KeyError ({token_hex(4)})", now=now)
    for make_one in (
        rows.make_watermark,
        rows.make_unknown_error,
        rows.make_dead_letter,
        rows.make_canary_run,
        rows.make_xmpp_canary_run,
    ):
        make_one()
    rows.make_device(**device or {})


def _make_accounts(now: datetime) -> None:
    """Make rules, an account of the support with everything that belongs to it, and a token."""
    load_shipped()
    ann = rows.make_staff("support", "ann")
    TOTPDevice.objects.create(user=ann, name="authenticator", confirmed=True)
    rows.make(FailedLogin, username="ann", network="192.0.2.1", count=1, at=now)
    ApiToken(name="status page", scopes=["status"]).issue(by="ann", now=now)
    rows.make(AccessRecord, user=ann, username="ann", page="user", object_id="1", at=now)
    kind = ContentType.objects.get_for_model(Registration)
    about = {"content_type": kind, "object_id": "1", "object_repr": "a registration", "action_flag": CHANGE}
    LogEntry.objects.create(user=ann, change_message="Disabled 1 registration. Why: as agreed", **about)
