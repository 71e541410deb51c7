"""The tasks of Waku, periodic ones and those that a worker schedules."""

import threading

import pytest
from kombu.exceptions import OperationalError
from structlog.testing import capture_logs

from pushserver.celery import app
from waku_bridge import tasks


@pytest.mark.parametrize(
    "task", [tasks.derive_topic_keys, tasks.derive_wanted_keys, tasks.check_nodes, tasks.run_canary, tasks.purge]
)
def test_no_task_is_repeated_because_the_next_one_follows(task):
    assert task.autoretry_for == ()


@pytest.mark.parametrize("task", [tasks.derive_topic_keys, tasks.derive_wanted_keys])
def test_keys_are_not_derived_in_the_workers_of_batches(task):
    assert app.amqp.router.route({}, task.name)["queue"].name == "keys"


def test_while_the_broker_is_unreachable_envelopes_wait_for_the_periodic_task(monkeypatch):
    asked = []

    def refuse(**_options):
        asked.append(threading.current_thread().name)
        raise OperationalError

    monkeypatch.setattr(tasks.derive_wanted_keys, "apply_async", refuse)
    with capture_logs() as logs:
        for _ in "12":
            tasks.want_keys()
            with tasks.ASKING_FOR_KEYS:
                pass
    assert asked == ["want-keys"] * 2
    assert [entry["event"] for entry in logs] == ["keys_not_wanted"] * 2
