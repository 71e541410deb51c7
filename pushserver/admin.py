"""Set the title of the console, and import the pages and links that no single app owns."""

from django.contrib import admin

from pushserver.console import incidents  # noqa: F401 - hand pages and ways in
from pushserver.console.accounts import accounts, api_tokens  # noqa: F401 - hand pages and ways in
from pushserver.console.frame import links  # noqa: F401 - hand pages and ways in

admin.site.site_header = admin.site.site_title = admin.site.index_title = "Push server"
