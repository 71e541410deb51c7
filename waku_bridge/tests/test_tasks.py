"""The tasks of Waku, periodic ones and those that a worker schedules."""

import threading

import pytest
from kombu.exceptions import OperationalError
from structlog.testing import capture_logs

from pushserver.celery import app
from tests.rig.conversation import EPHEMERAL, put, query, registration, replies_to
from tests.rig.delivering import Process
from waku_bridge import tasks


@pytest.mark.parametrize(
    "task", [tasks.derive_topic_keys, tasks.derive_wanted_keys, tasks.check_nodes, tasks.run_canary, tasks.purge]
)
def test_no_task_is_repeated_because_the_next_one_follows(task):
    assert task.autoretry_for == ()


@pytest.mark.parametrize("task", [tasks.derive_topic_keys, tasks.derive_wanted_keys])
def test_keys_are_not_derived_in_the_workers_of_batches(task):
    assert app.amqp.router.route({}, task.name)["queue"].name == "keys"


@pytest.mark.django_db(transaction=True)
def test_while_the_broker_is_unreachable_the_process_derives_the_keys_itself(monkeypatch):
    """One run after the other, in a thread and within the budget, until no envelope waits or the broker is back."""
    asked = []

    def refuse(**_options):
        asked.append(threading.current_thread().name)
        raise OperationalError

    monkeypatch.setattr(tasks.derive_wanted_keys, "apply_async", refuse)
    monkeypatch.setattr(tasks, "UNSCHEDULED_SECONDS", 0.0)
    process = Process()
    with capture_logs() as logs:
        for message in (registration(), query()):
            put(message)
            process.process_batch()
        with tasks.ASKING_FOR_KEYS:
            process.process_batch()
    assert len(replies_to(EPHEMERAL)) == 1
    assert asked == ["want-keys"] * 2
    assert [entry["event"] for entry in logs].count("keys_not_scheduled") == 1
