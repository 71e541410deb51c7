"""The periodic task of the console of XMPP: the canary."""

from celery import shared_task
from django.conf import settings

from kit.processes.tasks import MessageTask
from xmpp_bridge.console.canary import canary


@shared_task(name="xmpp_bridge.tasks.run_canary", base=MessageTask, autoretry_for=())  # the schedule runs it again soon
def run_canary() -> None:
    """Make a round trip, and repeat it while the chain is broken.

    The task has a queue of its own, because it waits for the workers of the other queues.
    """
    canary.run_until_sound(seconds=settings.CANARY_PERIOD_SECONDS)
