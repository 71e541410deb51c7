"""Theme of the console, as unfold reads it from the settings. It imports no model, because settings must not."""

from typing import Any

from django.templatetags.static import static

# The icon is part of the page, so that the login page needs no second request for it.
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
    "LOGIN": {"form": "pushserver.console.pages.second_factor.LoginForm"},
    "SIDEBAR": {"navigation": "pushserver.console.pages.menu.menu"},
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
