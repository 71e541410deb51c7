"""The periodic tasks of the gorush gateway."""

from celery import shared_task
from django.conf import settings

from kit.db.clock import database_now
from kit.processes.tasks import MessageTask
from notifications.gateways.gorush.config_check.checking import check_all


@shared_task(base=MessageTask, autoretry_for=())  # not retried, because the next run comes soon
def check_gorush() -> None:
    check_all(settings.GORUSH_URLS, now=database_now())
