"""Tests of exemplars: the trace of a message in a bucket, added to the counts of all processes."""

import json
import os
import subprocess
import sys
import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kit.metrics import exemplars
from kit.metrics.batches import BatchHistogram, observe
from kit.metrics.exemplars import Kept
from kit.metrics.files import Counted, clear
from kit.tracing.spans import trace_of

KEYS = [b"a" * 32, b"b" * 32, b"c" * 32]
HISTOGRAM = BatchHistogram("test_took_seconds", "A test.", ["platform"], buckets=(1, 2), registry=CollectorRegistry())
SKEW = BatchHistogram("test_skew_seconds", "A test.", buckets=(-1, 1), registry=CollectorRegistry())


@pytest.fixture
def folder(settings, monkeypatch):
    """Return the metrics folder of this process, without exemplars."""
    settings.TRACES, settings.TRACES_SHARE = True, 1.0
    own = Kept(settings.METRICS_DIR)
    monkeypatch.setattr(exemplars, "_own", lambda: own)
    yield settings.METRICS_DIR
    (settings.METRICS_DIR / f"exemplars_{os.getpid()}.json").unlink(missing_ok=True)


def reported(folder):
    """Return the exemplars of the histogram on the page of metrics, by bucket."""
    registry = CollectorRegistry()
    registry.register(Counted(folder))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families if family.name == "test_took_seconds" for sample in family.samples]
    return {sample.labels["le"]: sample.exemplar for sample in samples if sample.exemplar}


@pytest.mark.django_db(transaction=True)
def test_a_bucket_has_the_trace_of_a_message_in_it_as_exemplar(folder):
    observe(HISTOGRAM, [0.5, 1.5, 9], "ios", of=KEYS)
    shown = reported(folder)
    assert {bound: example.labels["trace_id"] for bound, example in shown.items()} == {
        bound: trace_of(key).id.hex() for bound, key in zip(("1.0", "2.0", "+Inf"), KEYS, strict=True)
    }
    assert shown["2.0"].value == 1.5


@pytest.mark.django_db(transaction=True)
def test_a_histogram_below_zero_has_no_sum_so_that_strict_readers_accept_the_page(folder):
    observe(SKEW, [-3, 0.5, 0.5])
    registry = CollectorRegistry()
    registry.register(Counted(folder))
    families = {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}
    reported = {(sample.name, sample.labels["le"]): sample.value for sample in families["test_skew_seconds"].samples}
    assert reported == {("test_skew_seconds_bucket", bound): n for bound, n in {"-1.0": 1, "1.0": 3, "+Inf": 3}.items()}


@pytest.mark.django_db(transaction=True)
def test_a_value_without_tracing_a_key_or_a_trace_becomes_no_exemplar(folder, settings):
    settings.TRACES = False
    observe(HISTOGRAM, [0.5], "ios", of=KEYS)
    assert list(folder.glob("exemplars_*")) == []
    settings.TRACES = True
    observe(HISTOGRAM, [0.5], "ios", of=[b""])
    observe(HISTOGRAM, [0.5], "ios")
    settings.TRACES_SHARE = 0.0
    observe(HISTOGRAM, [0.5], "ios", of=KEYS)
    assert reported(folder) == {}


def test_the_newest_exemplar_of_all_processes_is_shown_and_no_old_one(tmp_path):
    labels = [["le", "1.0"], ["platform", "ios"]]
    now = time.time()
    for pid, at in ((1, now - 60), (2, now - 5), (3, now - 3600)):
        row = ["test_took_seconds_bucket", labels, 0.5, at, f"{pid:032x}"]
        (tmp_path / f"exemplars_{pid}.json").write_text(json.dumps([row]))
    (example,) = exemplars.read(tmp_path).values()
    assert example.labels == {"trace_id": f"{2:032x}"}
    clear(tmp_path)
    assert exemplars.read(tmp_path) == {}


def test_the_exemplars_of_an_ended_process_are_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    file = tmp_path / f"exemplars_{ended.pid}.json"
    file.write_text("[]")
    assert Counted(tmp_path).collect() == []
    assert not file.exists()
