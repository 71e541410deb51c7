"""Colours of states: each state of each table has one."""

from collections.abc import Iterator

from django.apps import apps

from kit.admin.labels import FAMILIES, label
from spark_reports.nights.status import State as ReportsState

OURS = ("registrations", "notifications", "waku_bridge", "xmpp_bridge", "spark_reports")
# Fields with choices that describe a kind and not a state.
NO_STATES = {
    *("Route.token_type", "Channel.token_type", "Queue.token_type", "Halt.token_type", "EndedHalt.token_type"),
    *("InboundEnvelope.message_type", "OutboundReply.message_type"),
    *("InboundEnvelope.path", "DeadLetter.path", "StoreWindow.reason", "ReportRun.step"),
    *("GatewayErrorRule.platform", "GatewayErrorRule.match", "GatewayErrorRule.origin", "UnknownGatewayError.platform"),
    *("CanaryRun.broken_link", "CanaryRun.cause", "App.style"),
}


def states() -> Iterator[tuple[str, str]]:
    for model in (model for app in OURS for model in apps.get_app_config(app).get_models()):
        for field in model._meta.fields:
            name = f"{model.__name__}.{field.name}"
            if field.choices and name not in NO_STATES:
                yield from ((name, str(value)) for value, _ in field.flatchoices)


def test_every_state_of_every_table_has_a_colour() -> None:
    assert {"Notification.state", "Route.state", "CanaryRun.state"} <= {name for name, _ in states()}
    assert [state for state in states() if state[1] not in FAMILIES] == []


def test_every_state_of_the_reports_has_a_colour() -> None:
    assert [state for state in ReportsState if state not in FAMILIES] == []


def test_fields_that_are_no_states_exist() -> None:
    fields = {f"{model.__name__}.{field.name}" for model in apps.get_models() for field in model._meta.fields}
    assert fields >= NO_STATES


def test_a_label_shows_the_word_and_not_only_a_colour() -> None:
    assert label("dead_token") == '<span class="state-word doubt">dead_token</span>'


def test_an_unknown_word_is_shown_as_text_without_a_meaning() -> None:
    assert label("<b>") == '<span class="state-word quiet">&lt;b&gt;</span>'
