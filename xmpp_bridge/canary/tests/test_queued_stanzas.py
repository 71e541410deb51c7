"""Queued stanzas of the canary and their answers, and the canary's own app."""

import pytest

from xmpp_bridge.canary import traces
from xmpp_bridge.canary.links import Talk
from xmpp_bridge.canary.stanzas import REGISTER, write_command
from xmpp_bridge.component import queued_stanzas
from xmpp_bridge.identity import canary_apps
from xmpp_bridge.models import CanaryStanza, Device
from xmpp_bridge.tests.talking import (
    APN_TOKEN,
    JULIET,
    SERVICE,
    Service,
    command,
    error_of,
    make_app,
    result_of,
)

pytestmark = pytest.mark.django_db
FIELDS = {"token": APN_TOKEN, "device-id": "phone"}


def send_and_receive(service: Service, answer: str) -> CanaryStanza:
    """Have the service send a queued stanza and receive this answer to it. Return the row of the stanza."""
    queued_stanzas.queue("queued-1", "<iq/>")
    assert service.take_queued() == [b"<iq/>"]
    assert service.receive(answer) is None
    return CanaryStanza.objects.get()


def answer(sender: str = SERVICE, inside: str = "", kind: str = "result", to: str = SERVICE) -> str:
    return f"<iq type='{kind}' id='queued-1' from='{sender}' to='{to}'>{inside}</iq>"


def test_a_queued_stanza_is_sent_once() -> None:
    service = Service()
    queued_stanzas.queue("queued-1", "<iq/>")
    assert service.take_queued() == [b"<iq/>"]
    assert service.take_queued() == []


def test_an_answer_is_recorded() -> None:
    shown = send_and_receive(Service(), answer())
    assert shown.sent_at is not None
    assert shown.answered_at is not None
    assert (shown.error, shown.is_own_error) == ("", False)


@pytest.mark.parametrize(("by", "is_own"), [(SERVICE, True), ("montague.test", False)])
def test_an_error_is_recorded_with_its_author(by: str, is_own: bool) -> None:
    condition = "<internal-server-error xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/>"
    error = f"<error type='wait' by='{by}'>{condition}</error>"
    shown = send_and_receive(Service(), answer(kind="error", inside=error))
    assert (shown.error, shown.is_own_error) == ("internal-server-error", is_own)


def test_an_answer_from_another_sender_is_not_recorded() -> None:
    assert send_and_receive(Service(), answer(sender="evil.test")).answered_at is None


def test_an_answer_to_a_stanza_that_was_not_sent_is_not_recorded() -> None:
    queued_stanzas.queue("queued-1", "<iq/>")
    Service().receive(answer())
    assert CanaryStanza.objects.get().answered_at is None


def test_while_the_canary_runs_a_command_need_not_name_the_only_other_app() -> None:
    make_app()
    traces.make_app()
    assert result_of(Service().command(REGISTER, FIELDS))["node"]


def test_nobody_else_registers_in_the_app_of_the_canary() -> None:
    make_app()
    traces.make_app()
    named = FIELDS | {"app": canary_apps()[0]}
    assert error_of(Service().command(REGISTER, named, sender=JULIET)) == ("cancel", "item-not-found")
    assert not Device.objects.exists()


def test_the_canary_registers_in_no_other_app() -> None:
    make_app("chat")
    service, account = Service(), Talk(SERVICE).account
    stanza = write_command("c", REGISTER, FIELDS | {"app": "chat"}, account=account, service=SERVICE)
    assert error_of(service.receive(stanza)) == ("cancel", "item-not-found")


def test_the_canary_registers_more_often_than_an_account_may() -> None:
    traces.make_app()
    service = Service()
    for _ in range(service.limits.rates.commands_per_hour + 1):
        fields = FIELDS | {"app": canary_apps()[0]}
        stanza = write_command("c", REGISTER, fields, account=Talk(SERVICE).account, service=SERVICE)
        shown = service.receive(stanza)
        assert shown is not None
        assert result_of(shown)["secret"]


def test_the_form_does_not_offer_the_app_of_the_canary() -> None:
    make_app()
    traces.make_app()
    shown = Service().receive(command(REGISTER, None))
    assert shown is not None
    assert canary_apps()[0] not in "".join(shown.itertext())
