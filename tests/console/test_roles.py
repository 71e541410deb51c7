"""Permissions of every page and every role, in one table. A new page must be added to it."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from tests.console.routes import MODELS, WITHOUT_NAME, Page, console_names, console_pages
from tests.rig.budget import first_everyday

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("everything")]


class Who(IntEnum):
    """Roles in order: each may do everything that those above may, and more. A visitor has a console account and no
    role.
    """

    ANYBODY = 0
    VISITOR = 1
    SUPPORT = 2
    OPERATOR = 3
    ADMIN = 4
    NOBODY = 5


ROLES = [Who.ANYBODY, Who.VISITOR, Who.SUPPORT, Who.OPERATOR, Who.ADMIN]
# Roles that may view, add, change and delete rows. Operations are for operators, except those of API tokens.
FACTS = (Who.SUPPORT, Who.NOBODY, Who.NOBODY, Who.NOBODY)
LOGS = (Who.ADMIN, Who.NOBODY, Who.NOBODY, Who.NOBODY)
ACCOUNTS = (Who.ADMIN, Who.ADMIN, Who.ADMIN, Who.ADMIN)
# Tables of facts, which staff view and nobody edits.
FACT_TABLES = [
    *("pushserver_incident", "notifications_channel", "notifications_unknowngatewayerror"),
    *("notifications_notificationrequest", "notifications_notification", "notifications_attempt"),
    *("registrations_registration", "registrations_route", "registrations_grant"),
    *("registrations_registrationevent", "registrations_topickey", "waku_bridge_inboundenvelope"),
    *("waku_bridge_outboundreply", "waku_bridge_envelopefault", "waku_bridge_storewatermark"),
    *("waku_bridge_deadletter", "xmpp_bridge_device", "pushserver_canaryrun", "spark_reports_reportrun"),
]
TABLES = dict.fromkeys(FACT_TABLES, FACTS) | {
    "auth_user": ACCOUNTS,
    "auth_group": ACCOUNTS,
    "otp_totp_totpdevice": (Who.ADMIN, Who.NOBODY, Who.NOBODY, Who.ADMIN),
    "pushserver_failedlogin": (Who.ADMIN, Who.NOBODY, Who.NOBODY, Who.ADMIN),
    "pushserver_accessrecord": LOGS,
    "pushserver_apitoken": (Who.ADMIN, Who.ADMIN, Who.NOBODY, Who.NOBODY),
    "admin_logentry": (Who.OPERATOR, Who.NOBODY, Who.NOBODY, Who.NOBODY),
    # rules of the shipped file cannot be deleted
    "notifications_gatewayerrorrule": (Who.SUPPORT, Who.OPERATOR, Who.OPERATOR, Who.NOBODY),
    # apps that had a device cannot be deleted
    "xmpp_bridge_app": (Who.SUPPORT, Who.OPERATOR, Who.OPERATOR, Who.NOBODY),
}
# Other pages by the role that may open them and their status: redirected (302), switched off (404), or POST only (405).
OPENED = {
    (Who.VISITOR, 200): [
        *("admin:index", "admin:password_change", "admin:password_change_done", "admin:jsi18n"),
        *("gorush_configuration", "waku_nodes", "second_factor", "documentation", "documentation_list"),
    ],
    (Who.ANYBODY, 200): ["admin:login"],
    (Who.SUPPORT, 200): [
        *("admin:app_list", "admin:notifications_gatewayerrorrule_try", "find", "user", "timeline"),
        *("request_timeline", "alerts", "reports:overview", "reports:report", "reports:csv"),
    ],
    (Who.NOBODY, 403): ["admin:autocomplete"],
    (Who.VISITOR, 404): ["admin:search", "admin:view_on_site"],
    (Who.ADMIN, 200): ["admin:auth_user_password_change", "admin:pushserver_apitoken_operate"],
    (Who.OPERATOR, 200): [
        *("admin:notifications_channel_operate", "admin:notifications_notification_operate"),
        *("admin:registrations_registration_operate", "admin:waku_bridge_deadletter_operate"),
        *("admin:xmpp_bridge_device_operate", "admin:waku_bridge_inboundenvelope_operate"),
        *("admin:waku_bridge_envelopefault_operate", "admin:pushserver_incident_operate", "forget_user"),
        *("alert_level", "test_alerts", "change_drain", "reports:run"),
    ],
    (Who.SUPPORT, 302): ["found"],
    (Who.VISITOR, 302): ["drain"],
    (Who.VISITOR, 405): ["search_facts"],
}
PAGES = {page: opened for opened, pages in OPENED.items() for page in pages}
# Ends the session and has a test of its own.
LEFT_OUT = {"admin:logout", *WITHOUT_NAME}
# Pages on which everybody may change their own account and nothing else.
OWN = {"admin:login", "second_factor", "admin:password_change"}


def expected() -> dict[str, tuple[Who, int]]:
    return PAGES | {f"admin:{table}_{kind}": (who, 200) for table in TABLES for kind, who in _of_table(table)}


def _of_table(table: str) -> Iterator[tuple[str, Who]]:
    view, add, change, delete = TABLES[table]
    # The page to change a row shows it read-only to roles that may only view.
    yield from {"changelist": view, "history": view, "change": min(view, change), "add": add, "delete": delete}.items()


def client_of(role: Who) -> Client:
    client = Client(raise_request_exception=False)
    if role > Who.ANYBODY:
        user = User.objects.create_user(f"the {role.name}", is_staff=True)
        if role > Who.VISITOR:
            user.groups.add(Group.objects.get(name=role.name.lower()))
        client.force_login(user)
    return client


def pages() -> list[Page]:
    return [page for page in console_pages() if page.name not in LEFT_OUT]


def test_the_table_has_every_page_and_no_other() -> None:
    assert {name.removeprefix("admin:") for name in MODELS} == set(TABLES)
    assert console_names() - LEFT_OUT == set(expected())
    assert {page.name for page in pages()} == set(expected())


# Everyday runs take the role that may open some pages and not others.
every_role = pytest.mark.parametrize(
    "role", first_everyday(Who.SUPPORT, *(role for role in ROLES if role != Who.SUPPORT)), ids=lambda role: role.name
)


@every_role
def test_each_role_opens_its_pages_and_no_other(role: Who) -> None:
    client, table = client_of(role), expected()

    opened = {page.url: client.get(page.url).status_code for page in pages()}

    assert opened == {page.url: status_for(role, *table[page.name], page) for page in pages()}


def status_for(role: Who, who: Who, status: int, page: Page) -> int:
    if page.name == "admin:login":
        return 200 if role == Who.ANYBODY else 302
    if role == Who.ANYBODY:
        return 302  # to the login
    if page.name == "admin:app_list" and role < who:
        return 404
    return status if role >= who else 403


def test_every_page_leads_to_the_login_after_the_session_ended() -> None:
    """The whole page is redirected, also when only a part of it was requested."""
    client, login = Client(), reverse("admin:login")
    for page in pages():
        if page.name != "admin:login":
            assert client.get(page.url).url.startswith(login), page
            part = client.get(page.url, headers={"HX-Request": "true"})
            assert (part.status_code, part.headers["HX-Redirect"][: len(login)]) == (204, login), page


# Changes -------------------------------------------------------------------------------------------------------------


def everything() -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables, without sessions, visits and incidents."""
    # The dashboard saves incidents at each view.
    left_out = {"sessions.session", "pushserver.accessrecord", "pushserver.incident"}
    return {
        model._meta.label_lower: sorted(model._default_manager.values_list(), key=repr)
        for model in apps.get_models()
        if model._meta.label_lower not in left_out
    }


# Data that fit any form.
FORM = parse_qs(
    "why=because I can&since=2026-01-01 00:00:00&confirmed=1&post=yes&name=mine&scopes=status&username=mine&role=1"
    "&password1=correct horse battery staple&password2=correct horse battery staple&usable_password=true"
    "&action=delete_selected&position=1&platform=ios&match=contains&text=a new rule&outcome=transient&code=new"
    "&retry_base_seconds=1&is_enabled=on&form-TOTAL_FORMS=1&form-INITIAL_FORMS=1&form-0-id=1&form-0-position=3&_save=Save"
)


def form(page: Page) -> dict[str, Any]:
    row = page.url.partition("?id=")[2]
    return FORM | {"id": row, "q": "ab" * 64, "_selected_action": ["1", row]}


@every_role
def test_a_form_of_a_role_without_the_permission_is_refused_and_changes_nothing(role: Who) -> None:
    client, table, before = client_of(role), expected(), everything()
    shown = [page for page in pages() if page.name not in OWN]
    barred = {page.url for page in shown if role < table[page.name][0]}
    # Up to support, a role may change nothing on the pages that it opens, either.
    sent_to = [page for page in shown if role <= Who.SUPPORT or page.url in barred]

    posted = {page.url: client.post(page.url, form(page)).status_code for page in sent_to}

    # A page that does not exist, or that nobody may change, refuses as well.
    refusals = {302} if role == Who.ANYBODY else {403, 404, 405}
    assert {url: status for url, status in posted.items() if url in barred and status not in refusals} == {}
    assert {url: status for url, status in posted.items() if status >= 500} == {}
    assert everything() == before
