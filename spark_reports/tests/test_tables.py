"""Definitions of all tables, and what is made from them: schemas, models, pages, files and documentation."""

from dataclasses import replace

import pytest
from django.db import models
from django.db.migrations.state import ModelState
from django.test.utils import isolate_apps
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rest_framework.serializers import ModelSerializer

from notifications.messages import Outcome
from notifications.models import Notification
from pushserver.console.reports.tables import columns
from registrations.models import RegistrationEvent
from spark_reports.export.queries import REFUSED, VERDICT_STATES
from spark_reports.jobs.labels import KNOWN
from spark_reports.jobs.sources import schema_of
from spark_reports.jobs.tables import EVENT_TABLES, REPORT_TABLES, TOKEN_CHURN, Kind, Table, Type, required
from spark_reports.lake import arrow_schema
from spark_reports.models import REPORTS, Report, TokenChurn, made_from
from tests import figures
from waku_bridge.models import InboundEnvelope, OutboundReply


@pytest.mark.parametrize("table", [*EVENT_TABLES, *REPORT_TABLES], ids=lambda table: table.name)
def test_spark_and_arrow_read_the_same_columns(table: Table) -> None:
    day, *columns = schema_of(table)
    arrow = to_arrow_schema(StructType(columns), timezone="UTC")

    assert day.name == "day"
    assert [(f.name, f.type, f.nullable) for f in arrow] == [(f.name, f.type, f.nullable) for f in arrow_schema(table)]


def test_every_report_has_a_model_with_its_columns() -> None:
    assert {table.name for table in REPORT_TABLES} == REPORTS.keys()
    for name, model in REPORTS.items():
        fields = [field.name for field in model._meta.concrete_fields]
        assert fields == ["id", "day", *model.table.column_names], name


@isolate_apps("spark_reports")
def test_a_new_column_needs_its_definition_and_a_migration_and_is_everywhere() -> None:
    """Beside these two, the job that computes it changes, and `make reference` writes the documentation again."""
    imported = required("imported", Type.LONG, "in: from another server", Kind.FLOW_IN, heading="from elsewhere")
    table = replace(TOKEN_CHURN, columns=(*TOKEN_CHURN.columns, imported))

    @made_from(table)
    class WithIt(Report):
        class Meta:
            app_label = "spark_reports"

    class Answer(ModelSerializer[WithIt]):
        class Meta:
            model = WithIt
            exclude = ("id",)

    state = ModelState.from_model(WithIt).fields
    assert state.keys() - ModelState.from_model(TokenChurn).fields.keys() == {"imported"}  # for makemigrations
    assert isinstance(state["imported"], models.BigIntegerField)
    assert "imported" in Answer().fields  # API
    assert schema_of(table).fieldNames()[-1] == arrow_schema(table).names[-1] == "imported"
    assert "from elsewhere" in [cell.heading for cell in columns(table)]  # page and mail
    assert "`imported` bigint: in: from another server" in figures.section(table)
    assert table.of_kind(Kind.FLOW_IN) == ["new", "returned", "imported"]  # sums, and the check that flows add up


def test_the_labels_of_jobs_are_those_of_the_models() -> None:
    states = {
        ("envelopes", "state"): set(InboundEnvelope.State.values),
        ("notifications", "state"): {*Notification.State.values, *VERDICT_STATES.values(), REFUSED},
        ("attempts", "outcome"): {*Outcome, "open"},
        ("replies", "state"): set(OutboundReply.State.values),
        ("registration_events", "kind"): set(RegistrationEvent.Kind.values),
        ("token_spells", "end"): {"ended", "left", "alive"},
    }
    assert {(table, column): set(known) for table, words in KNOWN.items() for column, known in words.items()} == states
