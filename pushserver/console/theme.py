"""The look and the menu of the console, as unfold reads them from the settings.

Imports no model, as settings must not.
"""

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy

# The permissions to see each kind of what Find finds.
USERS, NOTIFICATIONS, ENVELOPES, DEVICES = (
    "registrations.view_registration",
    "notifications.view_notification",
    "waku_bridge.view_inboundenvelope",
    "xmpp_bridge.view_device",
)


def _page(title: str, icon: str, name: str) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(name)}


def _list(title: str, icon: str, model: str) -> dict[str, Any]:
    """Return the menu item of a list of rows, for people who may view them."""
    app_label, model_name = model.split(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app_label}_{model_name}_changelist"),
        "permission": lambda request: request.user.has_perm(f"{app_label}.view_{model_name}"),
    }


def may_find(user: Any) -> bool:
    """Return whether a person may see anything of what Find finds."""
    return any(user.has_perm(permission) for permission in (USERS, NOTIFICATIONS, ENVELOPES, DEVICES))


def _report(title: str, icon: str, model: str, slug: str = "") -> dict[str, Any]:
    link = reverse_lazy("reports:report", args=[slug]) if slug else reverse_lazy("reports:overview")
    return {
        "title": title,
        "icon": icon,
        "link": link,
        # By default unfold marks every item whose address the current one begins with.
        "active": lambda request: request.path == str(link),
        "permission": lambda request: request.user.has_perm(f"spark_reports.view_{model}"),
    }


MENU = [
    {
        "items": [
            _page("Overview", "dashboard", "admin:index"),
            {**_page("Find", "search", "find"), "permission": lambda request: may_find(request.user)},
            _page("gorush configuration", "tune", "gorush_configuration"),
            _page("Waku nodes", "hub", "waku_nodes"),
            _list("Incidents", "history_toggle_off", "pushserver.incident"),
        ],
    },
    {
        "title": "Users",
        "separator": True,
        "items": [
            _list("Registrations", "smartphone", "registrations.registration"),
            _list("Routes", "route", "registrations.route"),
            _list("Grants", "verified_user", "registrations.grant"),
            _list("Registration events", "history", "registrations.registrationevent"),
            _list("Query topics", "tag", "registrations.topickey"),
        ],
    },
    {
        "title": "Notifications",
        "separator": True,
        "items": [
            _list("Requests", "move_to_inbox", "notifications.notificationrequest"),
            _list("Notifications", "notifications", "notifications.notification"),
            _list("Attempts", "send", "notifications.attempt"),
            _list("Channels", "alt_route", "notifications.channel"),
            _list("Senders", "speed", "notifications.sender"),
            {
                **_page("Drain", "pause_circle", "drain"),
                "permission": lambda request: request.user.has_perm("notifications.operate_drain"),
            },
            _list("Error rules", "rule", "notifications.gatewayerrorrule"),
            _list("Unknown errors", "help", "notifications.unknowngatewayerror"),
        ],
    },
    {
        "title": "Waku",
        "separator": True,
        "items": [
            _list("Envelopes", "mail", "waku_bridge.inboundenvelope"),
            _list("Envelope faults", "bug_report", "waku_bridge.envelopefault"),
            _list("Replies", "reply", "waku_bridge.outboundreply"),
            _list("Store watermarks", "water", "waku_bridge.storewatermark"),
            _list("Dead letters", "dangerous", "waku_bridge.deadletter"),
            _list("Canary runs", "sync", "waku_bridge.canaryrun"),
        ],
    },
    {
        "title": "XMPP",
        "separator": True,
        "items": [
            _list("XMPP devices", "devices", "xmpp_bridge.device"),
            _list("XMPP apps", "apps", "xmpp_bridge.app"),
            _list("XMPP canary runs", "sync", "xmpp_bridge.canaryrun"),
        ],
    },
    {
        "title": "Reports",
        "separator": True,
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
        "separator": True,
        "items": [
            _page("My second factor", "phonelink_lock", "second_factor"),
            _list("Accounts", "person", "auth.user"),
            _list("Roles", "group", "auth.group"),
            _list("Second factors", "key", "otp_totp.totpdevice"),
            _list("Failed logins", "lock", "axes.accessattempt"),
            _list("API tokens", "api", "pushserver.apitoken"),
            _list("Opened records", "visibility", "pushserver.openedrecord"),
            _list("Changes", "edit_note", "admin.logentry"),
        ],
    },
    {
        "title": "Help",
        "separator": True,
        "items": [
            _page("Documentation", "menu_book", "documentation_list"),
            _page("Documentation of the API", "data_object", "api_docs"),
        ],
    },
]

# The icon is in the page itself, as browsers would request it from the login page, too.
ICON = (
    "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<rect width='16' height='16' rx='4' fill='%23155dfc'/><circle cx='8' cy='8' r='3' fill='white'/></svg>"
)
THEME: dict[str, Any] = {
    "SITE_TITLE": "Push server",
    "SITE_HEADER": "Push server",
    "SITE_SYMBOL": "notifications_active",
    "SITE_URL": "",  # there is no other site behind the console
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": ICON}],
    "STYLES": [lambda request: static("kit/console.css")],  # noqa: ARG005 - the theme passes it
    "SCRIPTS": [lambda request: static("kit/console.js")],  # noqa: ARG005 - the theme passes it
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": True,
    "LOGIN": {"form": "pushserver.console.accounts.second_factor.LoginForm"},
    "SIDEBAR": {"show_search": False, "show_all_applications": False, "navigation": MENU},
    "COLORS": {
        "primary": {
            "50": "oklch(97% .014 254.604)",
            "100": "oklch(93.2% .032 255.585)",
            "200": "oklch(88.2% .059 254.128)",
            "300": "oklch(80.9% .105 251.813)",
            "400": "oklch(70.7% .165 254.624)",
            "500": "oklch(62.3% .214 259.815)",
            "600": "oklch(54.6% .245 262.881)",
            "700": "oklch(48.8% .243 264.376)",
            "800": "oklch(42.4% .199 265.638)",
            "900": "oklch(37.9% .146 265.522)",
            "950": "oklch(28.2% .091 267.935)",
        }
    },
}
