"""The periodic task of gorush: its config check."""

from celery import shared_task
from django.conf import settings

from kit.db.clock import database_now
from kit.processes.tasks import MessageTask
from notifications.gateways.gorush.console.config_check.checking import check_all

NAME = "notifications.gateways.gorush.tasks.check_gorush"


@shared_task(name=NAME, base=MessageTask, autoretry_for=())  # not retried, because the next run comes soon
def check_gorush() -> None:
    check_all(settings.GORUSH_URLS, now=database_now())
