"""The periodic tasks of the gorush gateway."""

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from kit.tasks import MessageTask
from notifications.gateways.gorush.watch.look import look


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def watch_gorush() -> None:
    look(settings.GORUSH_URLS, now=timezone.now())
