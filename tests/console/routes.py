"""Every URL of the console, taken from the resolver, so that no test can forget a new page."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone
from django_otp.plugins.otp_totp.models import TOTPDevice

from notifications.console.channels import OPERATIONS as CHANNEL_OPERATIONS
from notifications.gateways.gorush.rules_table import load_seed
from notifications.models import Channel
from pushserver.api import tokens
from pushserver.console.drain import OPERATIONS as DRAIN_OPERATIONS
from pushserver.models import OpenedRecord
from registrations.console.operations import Operated, id_of
from registrations.models import Registration
from spark_reports.closing import last_closed_day
from spark_reports.console.panels import PAGES
from spark_reports.tests import rows as reports
from tests import factories

CONSOLE = "admin/"


@dataclass(frozen=True, slots=True)
class Page:
    """``name`` is that of the URL pattern, with its namespace; several pages can have the same."""

    name: str
    url: str


def patterns(resolver: URLResolver, prefix: str = "", names: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every route below, as text, with its name."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from patterns(pattern, route, (*names, *filter(None, [pattern.namespace])))
        elif isinstance(pattern, URLPattern):
            yield ":".join([*names, pattern.name or ""]), route


def console_names() -> set[str]:
    return {name for name, route in patterns(get_resolver()) if route.startswith(CONSOLE)}


def console_pages() -> list[Page]:
    """Every page of the console, as of the rows that there are now: each table must have one."""
    made = {name: list(make_urls(name)) for name in sorted(console_names() - set(WITHOUT_NAME))}
    return [Page(name, url) for name, urls in made.items() for url in urls]


# Django's own: from the page of a row without "change" to the one with it, and whatever is no URL at all.
WITHOUT_NAME = ("admin:",)


def make_urls(name: str) -> Iterator[str]:
    """Filled in with what there is. A new URL with parameters needs a line in `_filled_in`."""
    model = MODELS.get(name.rpartition("_")[0])
    kind = name.rpartition("_")[2]
    if model and kind == "operate" and model is not Channel:
        yield from (_operate_url(name, model, operation) for operation in _operations(model))
    elif model and kind in {"history", "delete", "change"}:
        yield reverse(name, args=[_first_id(model)])
    elif name == "reports:run":
        yield f"{reverse(name)}?from={last_closed_day(timezone.now())}"
    else:
        yield from (reverse(name, kwargs=parameters) for parameters in _filled_in().get(name, [{}]))


MODELS: dict[str, type[Model]] = {
    f"admin:{model._meta.app_label}_{model._meta.model_name}": model for model in admin.site._registry
}


def _operate_url(name: str, model: type[Model], operation: str) -> str:
    return f"{reverse(name, kwargs={'name': operation})}?id={_first_id(model)}"


def _operations(model: type[Model]) -> list[str]:
    page = admin.site.get_model_admin(model)
    assert isinstance(page, Operated)
    return list(page.operations)


def _first_id(model: type[Model]) -> str:
    # Of accounts not that of whoever is logged in.
    rows = model._default_manager.filter(username="ann") if model is User else model._default_manager.all()
    row = rows.order_by("pk").first()
    assert row is not None, f"make_one_of_everything makes no {model.__name__}"
    return id_of(row)


def _filled_in() -> dict[str, list[dict[str, Any]]]:
    key_hash = bytes(Registration.objects.order_by("pk")[0].public_key_hash).hex()
    notification = _first_id(MODELS["admin:notifications_notification"])
    channel = _first_id(Channel)
    facts = [model._meta for model in MODELS.values() if model._meta.app_label in {"registrations", "notifications"}]
    return {
        "search_facts": [
            {"app_label": meta.app_label, "model_name": meta.model_name} for meta in facts if _is_searched(meta)
        ],
        "found": [{"term": key_hash}],
        "user": [{"object_id": key_hash}],
        "forget_user": [{"key_hash_hex": key_hash}],
        "timeline": [{"object_id": notification}],
        "change_drain": [{"operation": operation} for operation in DRAIN_OPERATIONS],
        "reports:report": [{"slug": slug} for slug in PAGES],
        "reports:csv": [{"slug": slug} for slug in PAGES],
        "admin:notifications_channel_operate": [
            {"channel_id": channel, "operation": operation} for operation in CHANNEL_OPERATIONS
        ],
        "admin:auth_user_password_change": [{"id": _first_id(User)}],
        "admin:view_on_site": [{"content_type_id": "1", "object_id": "1"}],
        "admin:app_list": [{"app_label": label} for label in sorted({meta.app_label for meta in facts})],
    }


def _is_searched(meta: Any) -> bool:
    return bool(getattr(admin.site.get_model_admin(meta.model), "search_help_text", ""))


def make_one_of_everything() -> None:
    """At least one row for every page of the console; all rows of a user are about the same one."""
    now = timezone.now()
    registration = factories.make_registration()
    factories.make_grant(registration)
    factories.make_event(pseudonym=registration.pseudonym)
    factories.make_topic_key(public_key_hash=registration.public_key_hash)
    request = factories.make_request()
    notification = factories.make_notification(
        request=request,
        route=registration.route,
        public_key_hash=registration.public_key_hash,
        installation_id=registration.installation_id,
    )
    factories.make_attempt(notification, outcome="transient", code="unreachable", latency_ms=12)
    envelope = partial(factories.make_envelope, hash=request.envelope_hash, message_id=request.amm_message_id)
    envelope(message_type=20, state="failed", reason="KeyError")
    factories.make_reply(envelope_hash=request.envelope_hash)
    factories.make_unknown_error()
    factories.make_window(factories.make_watermark(), start_at=now - timedelta(hours=1), end_at=now)
    factories.make_dead_letter()
    factories.make_canary_run()
    Channel.objects.create(token_type=2, state="running", since=now)
    load_seed()
    _make_staff()
    reports.publish(last_closed_day(now))


def _make_staff() -> None:
    now = timezone.now()
    person = User.objects.create_user("ann", is_staff=True)
    person.groups.add(Group.objects.get(name="support"))
    TOTPDevice.objects.create(user=person, name="authenticator", confirmed=True)
    AccessAttempt.objects.create(username="ann", ip_address="192.0.2.1", failures_since_start=1)
    tokens.issue("status page", ["status"], by="ann", now=now)
    OpenedRecord.objects.create(user=person, username="ann", page="user", object_id="1", at=now)
    LogEntry.objects.create(
        user=person,
        content_type=ContentType.objects.get_for_model(Registration),
        object_id="1",
        object_repr="a registration",
        action_flag=CHANGE,
        change_message="Disabled 1 registration. Why: as agreed",
    )
