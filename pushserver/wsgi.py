"""WSGI entry point for any server, for example `granian --interface wsgi pushserver.wsgi:application`."""

import os

from django.core.wsgi import get_wsgi_application

from pushserver.config.role import Role, begin_as

begin_as(Role.SERVER)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushserver.settings")
application = get_wsgi_application()
