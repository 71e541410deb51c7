"""The menu of the console, as unfold reads it: the pages of every server, and those of gateways and bridges."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse_lazy

from pushserver.console.health.verdicts import rows
from pushserver.console.parts import parts

INCIDENTS = "pushserver.view_incident"  # also the targets of alerts
# Permissions for each kind of hit of Find.
USERS, NOTIFICATIONS, ENVELOPES = (
    "registrations.view_registration",
    "notifications.view_notification",
    "waku_bridge.view_inboundenvelope",
)


def may_find(user: Any) -> bool:
    """Return whether a user may see any kind of hit of Find."""
    found = {permission for part in parts() for permission in part.found_permissions}
    return any(user.has_perm(permission) for permission in (USERS, NOTIFICATIONS, ENVELOPES, *found))


def _page(title: str, icon: str, name: str, permission: str = "", *arguments: str) -> dict[str, Any]:
    """Return the menu item of a page, for people with the permission."""
    may_see: dict[str, Any] = {"permission": lambda request: request.user.has_perm(permission)} if permission else {}
    return {"title": title, "icon": icon, "link": reverse_lazy(name, args=arguments), **may_see}


def _list(title: str, icon: str, model: str) -> dict[str, Any]:
    """Return the menu item of a list of rows, for people who may view them."""
    page = rows(title, model)
    return _page(title, icon, page.url_name, page.permission)


def _report(title: str, icon: str, model: str, *slug: str) -> dict[str, Any]:
    name = "reports:report" if slug else "reports:overview"
    page = _page(title, icon, name, f"spark_reports.view_{model}", *slug)
    # By default unfold marks each item whose URL is the beginning of the current URL.
    return page | {"active": lambda request: request.path == str(page["link"])}


EVERYBODY, NOBODY = "", "-"
OPERATORS, ADMINS = "notifications.operate_drain", "auth.view_user"
DELIVERY, REPORTS = "Delivery", "Reports"
# The items of each section, which is a task, and the permission of those for whom it is open at first. For others it
# opens on its own pages, and with a click.
MENU: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("", EVERYBODY): [
        _page("Overview", "dashboard", "admin:index"),
        {**_page("Find", "search", "find"), "permission": lambda request: may_find(request.user)},
        _list("Incidents", "history_toggle_off", "pushserver.incident"),
        _page("Alerts", "notification_important", "alerts", INCIDENTS),
        _list("Changes", "edit_note", "admin.logentry"),
    ],
    ("Users and pushes", EVERYBODY): [
        _list("Registrations", "smartphone", "registrations.registration"),
        _list("Requests", "move_to_inbox", "notifications.notificationrequest"),
        _list("Notifications", "notifications", "notifications.notification"),
        _list("Attempts", "send", "notifications.attempt"),
    ],
    (DELIVERY, OPERATORS): [
        _list("Apps", "alt_route", "notifications.channel"),
        _page("Drain", "pause_circle", "drain", OPERATORS),
    ],
    (REPORTS, NOBODY): [
        _report("Last night", "bedtime", "publishedday"),
        _report("Error rates", "error", "errorrate", "error-rates"),
        _report("Token churn", "sync_alt", "tokenchurn", "token-churn"),
        _report("Token lifetime", "hourglass", "tokenlifetime", "token-lifetime"),
        _report("Latency", "speed", "latency", "latency"),
        _report("Failure signatures", "fingerprint", "failuresignature", "failure-signatures"),
        _report("Load profile", "leaderboard", "loadprofile", "load-profile"),
        _list("Report runs", "receipt_long", "spark_reports.reportrun"),
    ],
    ("Staff", ADMINS): [
        _list("Accounts", "person", "auth.user"),
        _list("Roles", "group", "auth.group"),
        _list("Second factors", "key", "otp_totp.totpdevice"),
        _list("Failed logins", "lock", "pushserver.failedlogin"),
        _list("API tokens", "api", "pushserver.apitoken"),
        _list("Access log", "visibility", "pushserver.accessrecord"),
    ],
    ("Rarely used", NOBODY): [
        _list("Canary runs", "sync", "pushserver.canaryrun"),
        _list("Routes", "route", "registrations.route"),
        _list("Grants", "verified_user", "registrations.grant"),
        _list("Registration events", "history", "registrations.registrationevent"),
        _list("Query topics", "tag", "registrations.topickey"),
    ],
    ("You, and help", EVERYBODY): [
        _page("My second factor", "phonelink_lock", "second_factor"),
        _page("Documentation", "menu_book", "documentation_list"),
        _page("Documentation of the API", "data_object", "api_docs"),
    ],
}


def menu(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the menu with the pages of gateways and bridges, in an existing section or one before the reports."""
    of_parts: dict[str, list[dict[str, Any]]] = {}
    for part in parts():
        if page := part.peer_page:
            section = next((listed.section for listed in part.list_pages), DELIVERY)
            of_parts.setdefault(section, []).append(_page(page.title, page.icon, page.url_name))
        for listed in part.list_pages:
            of_parts.setdefault(listed.section, []).append(_list(listed.title, listed.icon, listed.model))
    sections = [(title, opened_by, [*own, *of_parts.pop(title, [])]) for (title, opened_by), own in MENU.items()]
    before = [title for title, *_ in sections].index(REPORTS)
    sections[before:before] = [(title, NOBODY, items) for title, items in of_parts.items()]
    return [
        {
            "title": title,
            # unfold reads the link several times, and would look it up each time
            "items": [{**item, "link": str(item["link"])} for item in items],
            "is_open": opened_by == EVERYBODY or (opened_by != NOBODY and request.user.has_perm(opened_by)),
        }
        for title, opened_by, items in sections
    ]
