"""Tests of the processes of `manage.py up` and compose.yaml: each queue has its worker, each address is reachable."""

import re
from itertools import chain

import pytest
import yaml
from django.conf import settings

from embedded.management.commands.demo import Command as Demo
from embedded.stack.plan import local_address, services, web
from embedded.supervisor.processes import StopOrder
from pushserver.celery import app


def plan(**facts):
    return services(**{"cpus": 3} | facts)


def queues_in(commands):
    lists = re.findall(r"--queues=(\S+)", " ".join(commands))
    return sorted(chain.from_iterable(names.split(",") for names in lists))


def test_up_serves_every_queue():
    assert set(queues_in(" ".join(spec.command) for spec in plan())) == set(app.amqp.queues)


def test_compose_serves_every_queue_once():
    composed = yaml.safe_load((settings.BASE_DIR / "compose.yaml").read_text(encoding="utf-8"))
    written = [service.get("command", "") for service in composed["services"].values()]
    commands = [each if isinstance(each, str) else " ".join(each) for each in written]
    assert queues_in(commands) == sorted(app.amqp.queues)


def test_each_worker_has_one_kind_of_work():
    """Deriving keys costs CPU time, reports take hours, and the canary waits for batches."""
    served = {spec.name: queues_in([" ".join(spec.command)]) for spec in plan()}
    assert {name: queues for name, queues in served.items() if queues} == {
        "batches": ["batches"],
        "tasks": ["canary", "keys", "maintenance"],
        "reports": ["reports"],
    }
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    assert routed | {settings.CELERY_TASK_DEFAULT_QUEUE} == set(app.amqp.queues)


def test_the_number_of_processes_for_batches_is_as_requested():
    (worker,) = [spec.command for spec in plan(cpus=5) if spec.name == "batches"]
    assert {"--pool=prefork", "--concurrency=5"} <= set(worker)


def test_input_stops_before_work():
    stop_orders = {spec.name: spec.stop_order for spec in [web("::1", 1), *plan()]}
    assert stop_orders["web"] == stop_orders["bridge"] == StopOrder.FRONT
    assert stop_orders["batches"] == stop_orders["tasks"] == stop_orders["reports"] == StopOrder.WORKER


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


def test_demo_is_up_with_clients():
    assert [spec.command[-1] for spec in Demo().clients()] == ["demo_clients"]


def test_one_process_shows_the_counts_of_all():
    silent = {spec.name for spec in plan(has_xmpp=True) if spec.environment.get("METRICS_PORT") == "0"}
    assert silent == {"xmpp", "batches", "tasks", "reports"}


def test_the_component_of_xmpp_runs_only_where_it_is_configured():
    assert "xmpp" not in [spec.name for spec in plan()]
    [xmpp] = [spec for spec in plan(has_xmpp=True) if spec.name == "xmpp"]
    assert xmpp.command[-1] == "run_xmpp_bridge"
    assert xmpp.announces_ready
