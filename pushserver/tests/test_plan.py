"""The processes of `manage.py up` and of compose.yaml: every queue has its worker, every address is reachable."""

import re
from itertools import chain

import pytest
import yaml
from django.conf import settings

from pushserver.celery import app
from pushserver.management.commands.demo import Command as Demo
from pushserver.stack.plan import local_address, services
from pushserver.supervisor.processes import Stage


def plan(**facts):
    return services(
        **{"data_dir": settings.DATA_DIR, "host": "::1", "port": 1, "cpus": 3, "delivery_processes": 2} | facts
    )


def queues_in(commands):
    lists = re.findall(r"--queues=(\S+)", " ".join(commands))
    return sorted(chain.from_iterable(names.split(",") for names in lists))


def test_up_serves_every_queue():
    assert set(queues_in(" ".join(spec.command) for spec in plan())) == set(app.amqp.queues)


def test_compose_serves_every_queue_once():
    composed = yaml.safe_load((settings.BASE_DIR / "compose.yaml").read_text(encoding="utf-8"))
    commands = [service.get("command", "") for service in composed["services"].values()]
    assert queues_in(commands) == sorted(app.amqp.queues)


@pytest.mark.parametrize("task", ["sweep", "answer_overdue_requests", "publish_replies", "deliver_notifications"])
def test_nothing_that_somebody_waits_for_stands_behind_a_backlog_of_envelopes(task):
    """One queue of a worker with several gets a turn per task: behind batches of envelopes, sweeps expired unseen."""
    queue = settings.CELERY_TASK_ROUTES[f"waku_bridge.tasks.{task}"]["queue"]
    (serving,) = [spec.command for spec in plan(delivery_processes=1) if queue in queues_in([" ".join(spec.command)])]
    assert "envelopes" not in queues_in([" ".join(serving)])


def test_processes_of_delivery_are_numbered():
    assert [spec.name for spec in plan(delivery_processes=3) if "delivery" in spec.name] == [
        "delivery1",
        "delivery2",
        "delivery3",
    ]


def test_input_stops_before_work_and_work_before_the_scheduler():
    stages = {spec.name: spec.stage for spec in plan()}
    assert stages["web"] == stages["bridge"] == Stage.FRONT
    assert stages["envelopes"] == stages["delivery1"] == Stage.WORKER
    assert stages["beat"] is Stage.SCHEDULER


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("push.example.org", "push.example.org"),
    ],
)
def test_a_server_is_reached_locally(host, address):
    assert local_address(host) == address


def test_demo_is_up_and_clients():
    assert [spec.command[-1] for spec in Demo().further_processes()] == ["demo_clients"]
