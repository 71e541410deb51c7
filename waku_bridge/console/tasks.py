"""The periodic tasks of Waku's console: config checks of nodes, and the canary."""

from celery import shared_task
from django.conf import settings

from kit.db.clock import database_now
from kit.processes.tasks import MessageTask
from waku_bridge.console.canary import canary
from waku_bridge.console.config_check.checking import check_all


@shared_task(name="waku_bridge.tasks.check_nodes", base=MessageTask, autoretry_for=())  # the next one comes in a moment
def check_nodes() -> None:
    """Check the configuration of all nodes."""
    check_all(now=database_now())


@shared_task(name="waku_bridge.tasks.run_canary", base=MessageTask, autoretry_for=())  # the next one comes in a moment
def run_canary() -> None:
    """Make a round trip, and more of them while the chain is broken, until the next task is due.

    The task has a queue of its own: it waits for the workers, so it must not occupy one of them.
    """
    if settings.WAKU_NODES:
        canary.run_until_sound(seconds=settings.CANARY_PERIOD_SECONDS)
