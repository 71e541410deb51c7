"""Imports of the pages and links of the console that belong to no single app."""

from pushserver.console import incidents  # noqa: F401 - registers pages and links
from pushserver.console.accounts import accounts, api_tokens  # noqa: F401 - registers pages and links
from pushserver.console.frame import links  # noqa: F401 - registers pages and links
