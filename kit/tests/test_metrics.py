"""Tests of counting in batches: facts are counted after the commit, and histograms equal those of `observe`."""

import pytest
from django.db import transaction
from prometheus_client import CollectorRegistry, Counter

from kit.telemetry import AskedGauge, BatchHistogram, count, observe


@pytest.fixture
def counter():
    return Counter("test_batches", "A test.", ["outcome"], registry=CollectorRegistry())


def _value(counter, outcome):
    return counter.labels(outcome)._value.get()


@pytest.mark.django_db(transaction=True)
def test_facts_are_counted_after_the_outermost_commit(counter):
    before = _value(counter, "done")
    with transaction.atomic():
        with transaction.atomic():
            count(counter, [("done",), ("failed",), ("done",)])
        assert _value(counter, "done") == before
    assert _value(counter, "done") == before + 2


@pytest.mark.django_db(transaction=True)
def test_facts_of_a_rolled_back_transaction_are_not_counted(counter):
    before = _value(counter, "rolled_back")
    with transaction.atomic():
        count(counter, {("rolled_back",): 5})
        transaction.set_rollback(True)
    assert _value(counter, "rolled_back") == before


@pytest.mark.django_db(transaction=True)
def test_an_error_of_counting_does_not_reach_the_caller(counter):
    with transaction.atomic():
        count(counter, [("too", "many", "labels")])


@pytest.mark.django_db(transaction=True)
def test_values_are_observed_after_the_commit():
    histogram = BatchHistogram("test_observed", "A test.", registry=CollectorRegistry())
    before = histogram._sum.get()
    with transaction.atomic():
        observe(histogram, (value for value in (1.0, 2.0)))
        assert histogram._sum.get() == before
    assert histogram._sum.get() == before + 3


# Histograms of a whole batch -----------------------------------------------------------------------------------------

VALUES = [-3.0, 0.0, 0.1, 0.1, 0.7, 1.0, 5.0, 99.0]


def _histogram(name):
    return BatchHistogram(name, "A test.", ["node"], registry=CollectorRegistry(), buckets=(-1, 0, 0.1, 1, 5))


def _samples(histogram):
    (family,) = histogram.collect()
    ours = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return [(sample.name.removeprefix(family.name), sample.labels, sample.value) for sample in ours]


def test_a_batch_is_counted_as_its_values_one_by_one():
    at_once, one_by_one = _histogram("test_at_once"), _histogram("test_one_by_one")

    at_once.labels("a").observe_all(VALUES)
    at_once.labels("a").observe_all([])
    for value in VALUES:
        one_by_one.labels("a").observe(value)

    assert _samples(at_once) == _samples(one_by_one)
    assert ("_count", {"node": "a"}, len(VALUES)) in _samples(at_once)
    assert at_once.labels("a")._sum.get() == pytest.approx(sum(VALUES))


def test_an_asked_gauge_leaves_out_unknown_values():
    gauge = AskedGauge("test_asked", "A test.", ("state",))

    family = gauge.family([("open", 3), ("unknown", None)])

    assert [(sample.labels, sample.value) for sample in family.samples] == [({"state": "open"}, 3.0)]
