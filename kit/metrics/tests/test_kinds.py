"""Tests of gauges whose values are read at collection."""

from kit.metrics.kinds import AskedGauge


def test_an_asked_gauge_leaves_out_unknown_values():
    gauge = AskedGauge("test_asked", "A test.", ("state",))

    family = gauge.family([("open", 3), ("unknown", None)])

    assert [(sample.labels, sample.value) for sample in family.samples] == [({"state": "open"}, 3.0)]
