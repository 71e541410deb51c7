"""Imports of all pages of the console, which register themselves."""

from pushserver.console.gorush import admin as gorush  # noqa: F401
from pushserver.console.notifications import admin as notifications  # noqa: F401
from pushserver.console.pages import canary_runs, incidents, links, staff  # noqa: F401
from pushserver.console.registrations import admin as registrations  # noqa: F401
from pushserver.console.reports import admin as reports  # noqa: F401
from pushserver.console.waku import admin as waku  # noqa: F401
from pushserver.console.xmpp import admin as xmpp  # noqa: F401
