"""The console as a whole: its name, and the ways between the pages of the apps."""

from django.contrib import admin

from pushserver.console import accounts, api_tokens, links  # noqa: F401 - hand pages and ways in

admin.site.site_header = admin.site.site_title = admin.site.index_title = "Push server"
