"""WSGI entry point for any server, for example `granian --interface wsgi pushserver.wsgi:application`."""

import os
import sys

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from pushserver.config.role import Role, begin_as

begin_as(Role.SERVER, ["web"])
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushserver.settings")
application = get_wsgi_application()
if settings.CONFIGURATION_PROBLEMS:  # nothing else asks for the checks of Django here
    sys.exit("\n".join(map(str, settings.CONFIGURATION_PROBLEMS)))
