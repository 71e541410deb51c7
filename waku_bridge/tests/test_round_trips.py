"""The number of round trips to the database for a request, which matters where the database is on another machine."""

from math import inf

import pytest
from django.utils import timezone

from notifications.messages import Outcome, Result
from tests.rig.conversation import CLIENT, push, put, registration, request
from tests.rig.delivering import Process, RecordingGateway
from tests.rig.statements import round_trips
from waku_bridge.codec.wire import message_hash
from waku_bridge.metrics import REPLIES_CONFIRMED
from waku_bridge.outbound.tests.conftest import ask_at_once

pytestmark = pytest.mark.django_db(transaction=True)


class Node:
    """A node that takes every message, and whose store has all of them."""

    url = name = "http://node.test"

    async def publish(self, pubsub_topic, message):
        message_hash(pubsub_topic, message)

    async def known(self, hashes):
        return set(hashes)


@pytest.fixture
def process(monkeypatch):
    ask_at_once(monkeypatch)
    return Process(RecordingGateway(lambda _push: Result(Outcome.DELIVERED)), nodes=[Node()], stores=[Node()])


def confirmed():
    """Read the metric, which sends no statement."""
    return REPLIES_CONFIRMED._value.get()


def make_batch(process):
    """Make the batch of a leader that has just received the announcement of an envelope."""
    process.worker._rows.steps.add(process.worker._steps[0])
    process.worker.process_batch(now=timezone.now())


def finish(process):
    """Process a batch whenever there is work, until the reply is confirmed."""
    count = confirmed()
    while confirmed() == count:
        process.wait()
        if process.worker._next_at() < inf:
            process.worker.process_batch(now=timezone.now())


def ask(number):
    put(request(push(CLIENT), message_id=b"message %d" % number))


def test_a_request_makes_few_round_trips(process):
    """There are four between the node and the push, and ten in all, with the one in which the bridge stores it.

    Limits are charged after the push was sent.
    """
    before = confirmed()
    put(registration(CLIENT))
    process.process_until(lambda: confirmed() > before)
    for number in range(3):  # until the caches of a worker are filled
        ask(number)
        make_batch(process)
        finish(process)
    ask(4)
    with round_trips() as before_push:
        make_batch(process)
    with round_trips() as after_push:
        finish(process)
    assert (len(process.gateway.pushes), confirmed()) == (4, before + 5)
    of_the_bridge = of_the_limits = 1
    assert of_the_bridge + len(before_push) - of_the_limits <= 4
    assert of_the_bridge + len(before_push) + len(after_push) <= 10
