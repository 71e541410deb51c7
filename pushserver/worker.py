"""Entry point of Celery workers: `celery --app=pushserver.worker worker`."""

from pushserver.celery import app
from pushserver.config.role import Role, begin_as

begin_as(Role.WORKER)  # the settings are read later, when the worker is configured
__all__ = ["app"]
