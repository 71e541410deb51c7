"""Imports of all pages of the console, which register themselves."""

from importlib import import_module

from pushserver.console.notifications import admin as notifications  # noqa: F401
from pushserver.console.pages import canary_runs, incidents, links, staff  # noqa: F401
from pushserver.console.parts import parts
from pushserver.console.registrations import admin as registrations  # noqa: F401
from pushserver.console.reports import admin as reports  # noqa: F401

for _part in parts():
    if _part.admin_module:
        import_module(_part.admin_module)
