"""Gauges that are asked say what they were told."""

from kit.metrics.kinds import AskedGauge


def test_an_asked_gauge_leaves_out_what_is_not_known():
    gauge = AskedGauge("test_asked", "A test.", ("state",))

    family = gauge.family([("open", 3), ("unknown", None)])

    assert [(sample.labels, sample.value) for sample in family.samples] == [({"state": "open"}, 3.0)]
