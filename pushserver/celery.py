"""The Celery application. Its workers are started through `pushserver.worker`."""

import contextlib
import os
import sys
from typing import Any

from celery import Celery, bootsteps, signals
from celery.concurrency import get_implementation
from django.conf import settings
from django.core.cache import cache
from kombu import Queue
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kit.processes import announce_ready
from pushserver.config.role import Role

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushserver.settings")

BATCHES = "batches"
QUEUES = (BATCHES, "maintenance", "keys", "canary", "reports")
HEARTBEAT_KEY = "worker:{queue}"
# Workers beat every 2 to 5 seconds. A worker that hangs for a moment keeps its heartbeat.
HEARTBEAT_TTL_SECONDS = 15
# Seconds between two searches of a worker for free children, and until their messages expire.
START_EVERY_SECONDS = 5.0

app = Celery("pushserver")
app.config_from_object("pushserver.settings:CELERY")
app.autodiscover_tasks()
app.conf.task_queues = [Queue(name) for name in QUEUES]


class StartBatches(bootsteps.StartStopStep):
    """Sends `process_batches` for each free child of the worker: at each connection to the broker, and every 5 seconds.

    The task never ends by itself, so a busy child is one that processes batches. Each worker sends its own tasks,
    because only the worker can count its free children.
    """

    requires = ("celery.worker.consumer:Tasks",)

    _timer: Any = None

    def include_if(self, consumer: Any) -> bool:
        return BATCHES in consumer.app.amqp.queues.consume_from

    def start(self, consumer: Any) -> None:
        self._send(consumer)
        self._timer = consumer.timer.call_repeatedly(START_EVERY_SECONDS, self._send, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self._timer:
            consumer.timer.cancel(self._timer)

    def _send(self, consumer: Any) -> None:
        from celery.worker.state import reserved_requests  # noqa: PLC0415 - other processes need no worker's modules

        with contextlib.suppress(OperationalError):  # the broker is away again: the next connection repeats it
            for _ in range(consumer.pool.num_processes - len(reserved_requests)):
                app.send_task("notifications.tasks.process_batches", expires=START_EVERY_SECONDS, retry=False)


app.steps["consumer"].add(StartBatches)


@signals.setup_logging.connect
def keep_our_logging(**_kwargs: Any) -> None:
    """Keep the logging of `settings`. Celery sets up its own unless a receiver is connected to this signal."""


@signals.worker_init.connect
def refuse_without_role(**_kwargs: Any) -> None:
    """Refuse a worker in the role of a command, which has no statement timeout and imports all pages."""
    if settings.ROLE is Role.COMMAND:
        sys.exit("A worker needs its role: start it as `celery --app=pushserver.worker worker`.")


@signals.worker_init.connect
def refuse_other_work(sender: Any, **_kwargs: Any) -> None:
    """Refuse a worker that serves `batches` together with another queue, or in threads.

    Tasks of the other queue would never get a process, and threads would share state that each process has once.
    """
    served = set(app.amqp.queues.consume_from)
    is_apart = len(served) == 1 and get_implementation(sender.pool_cls) is get_implementation("prefork")
    if BATCHES in served and not is_apart:
        sys.exit(f"`{BATCHES}` needs a worker of its own: --queues={BATCHES} --pool=prefork. Another serves the rest.")


@signals.worker_init.connect
def begin_when_fit(**_kwargs: Any) -> None:
    """Take no message, and call no server, before database, keys and code fit each other.

    METRICS_PORT shows what this worker waits for. It has the metrics that the children count in files, too.
    """
    from kit.exposition import serve  # noqa: PLC0415 - counts in files only when it is imported after the settings
    from kit.processes.starting import wait_until_fit  # noqa: PLC0415 - possible once apps are loaded

    serve()
    wait_until_fit(is_worker=True)


def serves_maintenance() -> bool:
    """Return whether this worker serves the queue of all tasks that name none."""
    return app.conf.task_default_queue in app.amqp.queues.consume_from


@signals.worker_ready.connect
def take_over(**_kwargs: Any) -> None:
    """Announce to the supervisor that this worker is ready, so that it stops the worker that this one replaces."""
    announce_ready()


@signals.heartbeat_sent.connect
def note_heartbeat(**_kwargs: Any) -> None:
    """Note for `/readyz` which queues this worker serves: those of -Q, or all queues without it.

    In every pool the loop that fetches tasks sends the heartbeat. A worker with --without-heartbeat stays unseen.
    """
    beats = {HEARTBEAT_KEY.format(queue=queue): True for queue in app.amqp.queues.consume_from}
    # While the broker is away, the worker logs its reconnection, and `/readyz` reports it.
    with contextlib.suppress(RedisError):
        cache.set_many(beats, HEARTBEAT_TTL_SECONDS)
