"""The menu of the console, as unfold reads it: the pages of every server, and those of gateways and bridges."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse_lazy

from pushserver.console.health.indicators import rows
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


# Sections by task. A section is open on its own pages, and for users with the permission ``opened_by``. For others it
# opens with a click.
EVERYBODY, NOBODY = "", "-"
OPERATORS, ADMINS = "notifications.operate_drain", "auth.view_user"
DELIVERY, REPORTS, RARELY = "Delivery", "Reports", "Rarely used"
MENU: list[dict[str, Any]] = [
    {
        "items": [
            _page("Overview", "dashboard", "admin:index"),
            {**_page("Find", "search", "find"), "permission": lambda request: may_find(request.user)},
            _list("Incidents", "history_toggle_off", "pushserver.incident"),
            _page("Alerts", "notification_important", "alerts", INCIDENTS),
            _list("Changes", "edit_note", "admin.logentry"),
        ],
    },
    {
        "title": "Users and pushes",
        "opened_by": EVERYBODY,
        "items": [
            _list("Registrations", "smartphone", "registrations.registration"),
            _list("Requests", "move_to_inbox", "notifications.notificationrequest"),
            _list("Notifications", "notifications", "notifications.notification"),
            _list("Attempts", "send", "notifications.attempt"),
        ],
    },
    {
        "title": DELIVERY,
        "opened_by": OPERATORS,
        "items": [
            _list("Channels", "alt_route", "notifications.channel"),
            _page("Drain", "pause_circle", "drain", OPERATORS),
        ],
    },
    {
        "title": REPORTS,
        "opened_by": NOBODY,
        "items": [
            _report("Last night", "bedtime", "publishedday"),
            _report("Error rates", "error", "errorrate", "error-rates"),
            _report("Token churn", "sync_alt", "tokenchurn", "token-churn"),
            _report("Token lifetime", "hourglass", "tokenlifetime", "token-lifetime"),
            _report("Latency", "speed", "latency", "latency"),
            _report("Failure signatures", "fingerprint", "failuresignature", "failure-signatures"),
            _report("Load profile", "leaderboard", "loadprofile", "load-profile"),
            _list("Report runs", "receipt_long", "spark_reports.reportrun"),
        ],
    },
    {
        "title": "Staff",
        "opened_by": ADMINS,
        "items": [
            _list("Accounts", "person", "auth.user"),
            _list("Roles", "group", "auth.group"),
            _list("Second factors", "key", "otp_totp.totpdevice"),
            _list("Failed logins", "lock", "pushserver.failedlogin"),
            _list("API tokens", "api", "pushserver.apitoken"),
            _list("Access log", "visibility", "pushserver.accessrecord"),
        ],
    },
    {
        "title": RARELY,
        "opened_by": NOBODY,
        "items": [
            _list("Routes", "route", "registrations.route"),
            _list("Grants", "verified_user", "registrations.grant"),
            _list("Registration events", "history", "registrations.registrationevent"),
            _list("Query topics", "tag", "registrations.topickey"),
        ],
    },
    {
        "title": "You, and help",
        "opened_by": EVERYBODY,
        "items": [
            _page("My second factor", "phonelink_lock", "second_factor"),
            _page("Documentation", "menu_book", "documentation_list"),
            _page("Documentation of the API", "data_object", "api_docs"),
        ],
    },
]


def menu(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the menu with the pages of gateways and bridges, in an existing section or one of their own."""
    sections = [{**section, "items": [*section["items"]]} for section in MENU]
    for part in parts():
        if page := part.peer_page:
            section = next((listed.section for listed in part.list_pages), DELIVERY)
            _items_of(sections, section).append(_page(page.title, page.icon, page.url_name))
        for listed in part.list_pages:
            _items_of(sections, listed.section).append(_list(listed.title, listed.icon, listed.model))
    return [
        {**section, "items": [*map(_with_address, section["items"])], "is_open": _is_open_for(request.user, section)}
        for section in sections
    ]


def _with_address(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item whose link is a text, because unfold reads it several times and would look it up each time."""
    return {**item, "link": str(item["link"])}


def _items_of(sections: list[dict[str, Any]], title: str) -> list[dict[str, Any]]:
    """Return the items of a section. A new section is inserted before the reports."""
    titles = [section.get("title") for section in sections]
    if title not in titles:
        sections.insert(titles.index(REPORTS), {"title": title, "opened_by": NOBODY, "items": []})
        return _items_of(sections, title)
    items: list[dict[str, Any]] = sections[titles.index(title)]["items"]
    return items


def _is_open_for(user: Any, section: dict[str, Any]) -> bool:
    permission = section.get("opened_by", EVERYBODY)
    return permission == EVERYBODY or bool(permission != NOBODY and user.has_perm(permission))
