"""One trace from the stanza of a push to the answer of the gateway, over a retry."""

import pytest
from django.utils import timezone

from notifications.messages import Outcome, Push, Result
from notifications.models import Notification
from tests.collector import attributes, collected
from tests.delivering import DeliveryProcess, RecordingGateway
from xmpp_bridge.tests.talking import Service, make_app, push2


@pytest.mark.django_db(transaction=True)
def test_a_push_and_its_retry_are_one_trace(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    make_app()
    service = Service()
    phone = service.register()
    with collected(settings, monkeypatch) as collector:
        service.receive(push2(phone.client))
        deliverer = DeliveryProcess(RecordingGateway(fail_once))
        deliverer.process_backlog()
        Notification.objects.update(next_attempt_at=timezone.now())
        deliverer.process_backlog()
        collector.finish()
        [trace] = [spans for spans in collector.traces().values() if spans[0].name == "accept"]
    once = ["Due", "send", "Results"]
    assert [span.name for span in trace] == ["accept", *once, *once]
    sent = [attributes(span.attributes) for span in trace if span.name == "send"]
    assert [shown["pushserver.outcome"] for shown in sent] == ["transient", "delivered"]
    assert [shown["pushserver.attempt"] for shown in sent] == [1, 2]
    assert attributes(trace[0].attributes) == {"pushserver.bridge": "xmpp"}


def fail_once(push: Push) -> Result:
    return Result(Outcome.TRANSIENT if push.attempt_number == 1 else Outcome.DELIVERED, "code", latency_ms=7)
