"""The Celery application: `celery -A pushserver worker`, `celery -A pushserver beat`."""

import os
from typing import Any

from celery import Celery, signals
from kombu import Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushserver.settings")

app = Celery("pushserver")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.task_queues = [Queue(name) for name in ("envelopes", "delivery", "replies", "reports", "maintenance")]


@signals.setup_logging.connect
def keep_our_logging(**_kwargs: Any) -> None:
    """Connected so that Celery leaves the logging of `settings` alone."""
