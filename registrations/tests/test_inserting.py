"""Inserting many rows: each comes back as it was given, with its own id."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from registrations.inserting import insert_all
from registrations.models import RegistrationEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Kind = RegistrationEvent.Kind


def event(kind: str = Kind.REGISTERED, **fields) -> RegistrationEvent:
    return RegistrationEvent(
        **{"kind": kind, "pseudonym": uuid4(), "at": NOW, "token_type": 1, "apn_topic": "a"} | fields
    )


def stored(row):
    return RegistrationEvent.objects.values_list("kind", "pseudonym", "token_type", "apn_topic", "at").get(pk=row.pk)


@pytest.mark.django_db
def test_each_row_is_stored_under_its_own_id():
    topics = ["", "a", 'quote " and \\ backslash', "{comma, brace}", "NULL", "null", "two\nlines", "ünï → 💬"]
    rows = [event(apn_topic=topic) for topic in topics]

    insert_all(rows)

    assert len({row.pk for row in rows}) == len(rows)
    assert [stored(row) for row in rows] == [
        (row.kind, row.pseudonym, row.token_type, row.apn_topic, row.at) for row in rows
    ]


@pytest.mark.django_db
def test_members_of_enums_stand_beside_plain_values():
    rows = [event(Kind.REFRESHED), event("registered")]
    insert_all(rows)
    assert [stored(row)[0] for row in rows] == ["refreshed", "registered"]


@pytest.mark.django_db
def test_what_the_table_refuses_is_not_stored_in_part():
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_all([event(), event(at=None)])
    assert not RegistrationEvent.objects.exists()


@pytest.mark.django_db
def test_nothing_to_insert_costs_no_query(django_assert_num_queries):
    with django_assert_num_queries(0):
        insert_all([])
