"""The schema of the API against real answers: each answer has the form that the schema promises."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.management import call_command
from django.utils import timezone
from hypothesis import HealthCheck, settings
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from pushserver.console.models import ApiToken
from pushserver.wsgi import application
from tests.rig import rows
from tests.rig.budget import examples

COMMITTED = Path(__file__).parents[3] / "docs/openapi.yaml"
schema = schemathesis.openapi.from_path(COMMITTED)
schema.app = application
# Tests of every limit of every parameter run with NIGHTLY=1: collecting them takes each process some seconds.
schema.config.phases.coverage.enabled = examples(1) > 1
# An empty parameter counts as missing. A schema cannot require one parameter of several.
LENIENT = [negative_data_rejection, positive_data_acceptance]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("django.conf.settings.XMPP_COMPONENT_JID", "push.example.org")
    rows.make_xmpp_app(slug="chat")
    monkeypatch.setattr("django.conf.settings.API_CALLS_PER_MINUTE", 10**6)
    monkeypatch.setattr("pushserver.console.toolkit.throttling.ANONYMOUS_PER_MINUTE", 10**6)
    monkeypatch.setattr("pushserver.console.toolkit.throttling.ALL_ANONYMOUS_PER_MINUTE", 10**6)
    rows.make_attempt(rows.make_notification())
    rows.make_canary_run(state="broken", broken_link="query", cause="node", times={"register": 1})
    return ApiToken(name="test", scopes=ApiToken.Scope.values).issue(by="anna", now=timezone.now()).text


@schema.parametrize()
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_the_schema_says(case: Any, token: str) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, excluded_checks=LENIENT)


def test_the_committed_schema_is_the_one_of_the_code(tmp_path: Path) -> None:
    call_command("spectacular", file=str(tmp_path / "now.yaml"), validate=True, fail_on_warn=True)

    assert (tmp_path / "now.yaml").read_text() == COMMITTED.read_text(), "make openapi"


def test_every_endpoint_says_which_errors_it_has() -> None:
    operations: list[Callable[..., Any]] = [result.ok() for result in schema.get_all_operations()]

    assert len(operations) >= 8
    for operation in operations:
        assert {"200", "400", "401", "403", "404", "406", "429"} <= set(operation.definition.raw["responses"])
