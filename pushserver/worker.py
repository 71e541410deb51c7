"""Entry point of Celery workers: `celery --app=pushserver.worker worker`."""

import sys

from pushserver.celery import app
from pushserver.config.role import Role, begin_as, serving

begin_as(Role.WORKER, serving(sys.argv))  # the settings are read later, when the worker is configured
__all__ = ["app"]
