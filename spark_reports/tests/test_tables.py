"""Definitions of all tables, compared with the schemas, models and labels made from them."""

import pytest
from django.db import models
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from notifications.messages import Outcome
from notifications.models import Notification
from registrations.models import RegistrationEvent
from spark_reports.export.queries import REFUSED, VERDICT_STATES
from spark_reports.jobs.labels import KNOWN
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import EVENT_TABLES, REPORT_TABLES, Table, Type
from spark_reports.lake import arrow_schema
from spark_reports.running.loading import MODELS
from waku_bridge.models import InboundEnvelope, OutboundReply

every_table = pytest.mark.parametrize("table", [*EVENT_TABLES, *REPORT_TABLES], ids=lambda table: table.name)
FIELDS: dict[Type, tuple[type[models.Field], ...]] = {
    Type.DATE: (models.DateField,),
    Type.STRING: (models.TextField,),
    Type.INT: (models.PositiveSmallIntegerField,),
    Type.LONG: (models.BigIntegerField,),
    Type.DOUBLE: (models.FloatField,),
    Type.BOOLEAN: (models.BooleanField,),
}


@every_table
def test_spark_and_arrow_read_the_same_columns(table: Table) -> None:
    day, *columns = schema_of(table)
    arrow = to_arrow_schema(StructType(columns), timezone="UTC")

    assert day.name == "day"
    assert [(f.name, f.type, f.nullable) for f in arrow] == [(f.name, f.type, f.nullable) for f in arrow_schema(table)]


def test_every_report_is_shown_by_a_model_with_its_columns() -> None:
    assert {table.name for table in REPORT_TABLES} == MODELS.keys()
    for table in REPORT_TABLES:
        fields = {f.name: f for f in MODELS[table.name]._meta.get_fields() if isinstance(f, models.Field)}
        assert list(fields) == ["id", "day", *table.column_names]
        for column in table.columns:
            assert isinstance(fields[column.name], FIELDS[column.type]), column.name
            assert fields[column.name].null == column.is_nullable, column.name


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
