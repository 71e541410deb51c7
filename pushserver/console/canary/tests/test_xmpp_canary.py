"""The canary of XMPP: the diagnosis of a broken round trip, its queued stanzas, its own app, and its runs."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.db.models.functions import Now
from django.utils import timezone

from notifications.models import Attempt
from pushserver.console.canary import xmpp as chain
from pushserver.console.canary.engine import Diagnosis, gateway
from pushserver.console.canary.xmpp import REGISTER, canary, diagnose, write_command
from pushserver.console.models import CanaryRun
from pushserver.console.models import XmppCause as Cause
from pushserver.console.models import XmppLink as Link
from tests.rig import rows
from xmpp_bridge.component import MISSING
from xmpp_bridge.identity import canary_apps
from xmpp_bridge.models import App, CanaryStanza, Device
from xmpp_bridge.tests.talking import APN_TOKEN, SERVICE, T0, Service, error_of, make_app, result_of

pytestmark = pytest.mark.django_db
State = CanaryRun.State
FIELDS = {"token": APN_TOKEN, "device-id": "phone"}
QUEUED = CanaryStanza()
SENT = CanaryStanza(sent_at=T0)
ANSWERED = CanaryStanza(sent_at=T0, answered_at=T0)
REFUSED = CanaryStanza(sent_at=T0, answered_at=T0, error="service-unavailable")
FAILED = CanaryStanza(sent_at=T0, answered_at=T0, error="internal-server-error", is_own_error=True)


@pytest.mark.parametrize(
    ("stanza", "component", "has_effect", "cause", "detail"),
    [
        (QUEUED, "no component is running", False, Cause.COMPONENT, "no component is running"),
        (QUEUED, "", False, Cause.COMPONENT, "it is connected, but does not send queued stanzas"),
        (SENT, "", False, Cause.XMPP_SERVER, "it took the stanza, but did not route it back"),
        (SENT, "the connection was lost", False, Cause.COMPONENT, "the connection was lost"),
        (SENT, "", True, Cause.REPLY, "the component has carried out the stanza"),
        (REFUSED, "", False, Cause.XMPP_SERVER, "refused: service-unavailable"),
        (FAILED, "", False, Cause.COMPONENT, "refused: internal-server-error"),
        (ANSWERED, "", False, Cause.COMPONENT, "it answers, but has stored nothing"),
    ],
)
def test_names_why_a_stanza_had_no_effect(
    stanza: CanaryStanza, component: str, has_effect: bool, cause: Cause, detail: str
) -> None:
    shown = diagnose(Link.PUSH, stanza, component=component, has_effect=has_effect)
    assert shown == Diagnosis(Link.PUSH, cause, detail)
    assert diagnose(Link.PUSH, ANSWERED, component="", has_effect=True) is None


# Queued stanzas and the own app ---------------------------------------------------------------------------------------


def answer(sender: str = SERVICE, inside: str = "", kind: str = "result") -> str:
    return f"<iq type='{kind}' id='queued-1' from='{sender}' to='{SERVICE}'>{inside}</iq>"


@pytest.mark.parametrize(("by", "is_own"), [("", False), (SERVICE, True), ("montague.test", False)])
def test_a_queued_stanza_is_sent_once_and_its_answer_is_recorded_with_the_author_of_an_error(
    by: str, is_own: bool
) -> None:
    service = Service()
    CanaryStanza.objects.create(pk="queued-1", text="<iq/>", queued_at=Now())
    assert [service.take_own() for _ in range(2)] == [([], [b"<iq/>"]), ([], [])]
    condition = "<internal-server-error xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/>"
    error = f"<error type='wait' by='{by}'>{condition}</error>"
    assert service.receive(answer(inside=error, kind="error") if by else answer()) is None
    shown = CanaryStanza.objects.get()
    assert shown.sent_at < shown.answered_at
    assert (shown.error, shown.is_own_error) == ("internal-server-error" if by else "", is_own)


def test_an_answer_from_another_sender_or_to_a_stanza_that_was_not_sent_is_not_recorded() -> None:
    service = Service()
    CanaryStanza.objects.create(pk="queued-1", text="<iq/>", queued_at=Now())
    service.receive(answer())
    service.take_own()
    service.receive(answer(sender="evil.test"))
    assert CanaryStanza.objects.get().answered_at is None


def of_canary(**fields: str) -> str:
    """Return a registration of the canary."""
    return write_command(REGISTER, FIELDS | fields, account=f"canary-{uuid4().hex}@{SERVICE}")("c")


def test_the_canary_alone_registers_in_its_app_and_in_no_other_and_the_others_need_not_name_theirs() -> None:
    make_app("chat")
    chain.make_app()
    service, own = Service(), canary_apps()[0]
    assert result_of(service.command(REGISTER, FIELDS))["node"]
    assert error_of(service.command(REGISTER, FIELDS | {"app": own})) == ("cancel", "item-not-found")
    assert own not in "".join(service.command(REGISTER, None).itertext())
    assert error_of(service.receive(of_canary(app="chat"))) == ("cancel", "item-not-found")
    assert Device.objects.get().app.slug == "chat"


def test_the_canary_registers_more_often_than_an_account_may() -> None:
    chain.make_app()
    service = Service()
    for _ in range(service.limits.rates.commands_per_hour + 1):
        [shown] = service.receive_all(of_canary(app=canary_apps()[0]))
        assert result_of(shown)["secret"]


# Runs without a component ---------------------------------------------------------------------------------------------


@pytest.fixture
def _alone(transactional_db: None, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.XMPP_COMPONENT_JID = SERVICE
    monkeypatch.setattr("pushserver.console.canary.engine.ANSWER_SECONDS", 0.1)
    cache.clear()


@pytest.mark.usefixtures("_alone")
def test_a_component_that_is_away_breaks_the_first_link_and_leaves_no_rows() -> None:
    row = canary.run()
    assert (row.state, row.broken_link, row.cause, row.detail) == (State.BROKEN, "register", "component", MISSING)
    assert set(row.timings().values()) == {None}
    last = canary.last()
    assert (last.cause, last.is_dry_run) == ("component", True)
    assert last.words == f"the component does not take what it is sent ({MISSING})"
    assert not CanaryStanza.objects.exists()
    assert not App.objects.exists()


@pytest.mark.usefixtures("_alone")
def test_a_push_that_no_worker_tries_breaks_the_link_of_the_gateway() -> None:
    link = gateway(Attempt.objects.all)
    assert link.do() == 0
    assert link.diagnose() == Diagnosis(Link.GATEWAY, Cause.WORKER, "no worker tries the push")


@pytest.mark.usefixtures("_alone")
def test_a_killed_run_is_interrupted_and_cleared_away_by_the_next_and_two_never_run_at_once() -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    killed = rows.make_xmpp_canary_run(state=State.RUNNING, finished_at=None, at=long_ago)
    chain.make_app()
    Service().receive(of_canary(app=canary_apps()[0]))
    assert canary.run() is not None
    killed.refresh_from_db()
    assert (killed.state, Device.objects.exists(), App.objects.exists()) == (State.INTERRUPTED, False, False)
    rows.make_xmpp_canary_run(state=State.RUNNING, finished_at=None)
    assert canary.run() is None
    assert CanaryRun.objects.count() == 3
