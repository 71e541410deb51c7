"""Histograms that take a batch say what `observe` would have said; gauges that are asked say what they were told."""

import pytest
from prometheus_client import CollectorRegistry

from kit.metrics.batches import BatchHistogram
from kit.metrics.kinds import AskedGauge

VALUES = [-3.0, 0.0, 0.1, 0.1, 0.7, 1.0, 5.0, 99.0]


def _histogram(name, **options):
    return BatchHistogram(name, "A test.", registry=CollectorRegistry(), buckets=(-1, 0, 0.1, 1, 5), **options)


def _samples(histogram):
    (family,) = histogram.collect()
    ours = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return [(sample.name.removeprefix(family.name), sample.labels, sample.value) for sample in ours]


def test_a_batch_is_counted_as_its_values_one_by_one():
    at_once, one_by_one = _histogram("test_at_once"), _histogram("test_one_by_one")

    at_once.observe_all(VALUES)
    for value in VALUES:
        one_by_one.observe(value)

    assert _samples(at_once) == _samples(one_by_one)
    assert ("_count", {}, len(VALUES)) in _samples(at_once)
    assert at_once._sum.get() == pytest.approx(sum(VALUES))


def test_a_batch_is_counted_under_its_labels():
    histogram = _histogram("test_labelled", labelnames=["node"])

    histogram.labels("a").observe_all([2.0, 3.0])

    assert ("_count", {"node": "a"}, 2) in _samples(histogram)


def test_an_empty_batch_changes_nothing():
    histogram = _histogram("test_empty")

    histogram.observe_all([])

    assert {value for _, _, value in _samples(histogram)} == {0}


def test_an_asked_gauge_leaves_out_what_is_not_known():
    gauge = AskedGauge("test_asked", "A test.", ("state",))

    family = gauge.family([("open", 3), ("unknown", None)])

    assert [(sample.labels, sample.value) for sample in family.samples] == [({"state": "open"}, 3.0)]
