"""The functions that forked children of `manage.py up` run instead of the commands in their `ProcessSpec`."""

import gc
import importlib
import os
import warnings
from collections.abc import Callable, Sequence

from django.conf import settings
from django.core.management import call_command, load_command_class

from embedded.servers.postgres import EmbeddedPostgres
from pushserver.celery import app

# Root is normal in containers and on trial machines. Nothing from the broker is unpickled.
SUPERUSER = "You're running the worker with superuser privileges"
# Celery imports these when a worker starts.
OF_CELERY = (
    *("celery.bin.celery", "celery.apps.worker", "celery.beat", "kombu.transport.redis"),
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log", "celery.backends.base"),
    *("celery.concurrency.prefork", "celery.concurrency.thread", "celery.worker.components", "celery.worker.consumer"),
    *("celery.worker.pidbox", "celery.worker.loops", "celery.worker.strategy", "celery.contrib.django.task"),
)


def preload() -> None:
    """Import the modules that all children need, before they are forked: once, and in memory that they share."""
    os.environ["CELERY_SKIP_CHECKS"] = "1"  # they were shown at the start, and every worker would repeat them
    app.loader.import_default_modules()
    for module in (settings.ROOT_URLCONF, *OF_CELERY):
        importlib.import_module(module)
    commands = [("waku_bridge", "run_waku_bridge"), ("pushserver", "first_admin")]
    for app_name, command in [
        *commands,
        *([("xmpp_bridge", "run_xmpp_bridge")] if settings.XMPP_COMPONENT_JID else []),
    ]:
        load_command_class(app_name, command)
    gc.collect()
    gc.freeze()


def without_metrics(target: Callable[[], object]) -> object:
    """Run ``target`` without a port of metrics in this process."""
    settings.METRICS_PORT = 0
    return target()


def run_database(embedded: EmbeddedPostgres | None) -> None:
    """Bring the database up to date, as the child named `database`."""
    from embedded.stack.database import bring_up_to_date  # noqa: PLC0415 - possible once apps are loaded

    bring_up_to_date(embedded)


def run_command(arguments: Sequence[str]) -> None:
    """Run a management command in this process."""
    call_command(*arguments)


def run_web(arguments: Sequence[str]) -> None:
    """Run the web server in this process and in further forked ones."""
    from granian.cli import cli  # noqa: PLC0415 - its threads are none of the supervisor's

    cli([*arguments], auto_envvar_prefix="GRANIAN")


def run_celery(arguments: Sequence[str]) -> object:
    """Run a command of Celery in this process."""
    warnings.filterwarnings("ignore", SUPERUSER)
    return app.start([*arguments])
