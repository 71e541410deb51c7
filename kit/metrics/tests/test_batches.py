"""What a batch led to is counted when it is committed, and only then."""

import pytest
from django.db import transaction
from prometheus_client import CollectorRegistry, Counter

from kit.metrics.batches import BatchHistogram, count, observe


@pytest.fixture
def counter():
    return Counter("test_batches", "A test.", ["outcome"], registry=CollectorRegistry())


def _value(counter, outcome):
    return counter.labels(outcome)._value.get()


@pytest.mark.django_db(transaction=True)
def test_counts_after_the_outermost_commit(counter):
    before = _value(counter, "done")
    with transaction.atomic():
        with transaction.atomic():
            count(counter, [("done",), ("failed",), ("done",)])
        assert _value(counter, "done") == before
    assert _value(counter, "done") == before + 2


@pytest.mark.django_db(transaction=True)
def test_what_was_rolled_back_is_not_counted(counter):
    before = _value(counter, "rolled_back")
    with transaction.atomic():
        count(counter, {("rolled_back",): 5})
        transaction.set_rollback(True)
    assert _value(counter, "rolled_back") == before


@pytest.mark.django_db(transaction=True)
def test_a_fault_of_counting_does_not_reach_what_was_counted(counter):
    with transaction.atomic():
        count(counter, [("too", "many", "labels")])


@pytest.mark.django_db(transaction=True)
def test_observes_after_the_commit():
    histogram = BatchHistogram("test_observed", "A test.", registry=CollectorRegistry())
    before = histogram._sum.get()
    with transaction.atomic():
        observe(histogram, (value for value in (1.0, 2.0)))
        assert histogram._sum.get() == before
    assert histogram._sum.get() == before + 3
