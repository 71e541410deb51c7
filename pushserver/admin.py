"""Title of the console, and imports of the pages and links that belong to no single app."""

from django.contrib import admin

from pushserver.console import incidents  # noqa: F401 - registers pages and links
from pushserver.console.accounts import accounts, api_tokens  # noqa: F401 - registers pages and links
from pushserver.console.frame import links  # noqa: F401 - registers pages and links

admin.site.site_header = admin.site.site_title = admin.site.index_title = "Push server"
