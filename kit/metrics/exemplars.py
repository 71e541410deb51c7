"""Exemplars: for each bucket of a histogram, the newest value of a traced message, with the id of its trace.

prometheus_client has no exemplars in multiprocess mode. So each process writes its own into a file beside its metrics,
at most every few seconds, and the process that answers a scrape adds them. Without tracing there is no file.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any

from django.conf import settings
from prometheus_client import Metric
from prometheus_client.samples import Exemplar, Sample

from kit.processes.once import once
from kit.tracing.spans import Trace, trace_of

WRITE_EVERY_SECONDS = 5.0
# Exemplars older than this, several times the usual period of scrapes, say nothing about the present.
KEPT_SECONDS = 600.0
# A bucket as samples identify it: by name, and by labels sorted by their names.
Bucket = tuple[str, tuple[tuple[str, str], ...]]


def of(values: Iterable[float], keys: Iterable[bytes]) -> Iterator[tuple[float, Trace]]:
    """Yield the values of traced messages, each with its trace. ``keys`` has the trace key of each value."""
    for value, key in zip(values, keys, strict=False):
        if key and (trace := trace_of(key)):
            yield value, trace


@dataclass(slots=True)
class Kept:
    """The exemplars of this process."""

    folder: Path
    by_bucket: dict[Bucket, tuple[float, float, str]] = field(default_factory=dict)
    _written_at: float = float("-inf")

    def write(self) -> None:
        """Write the file, at most every `WRITE_EVERY_SECONDS`. It is replaced atomically, so readers see all of it."""
        if monotonic() < self._written_at + WRITE_EVERY_SECONDS:
            return
        self._written_at = monotonic()
        file = self.folder / f"exemplars_{os.getpid()}.json"
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps([[*bucket, *example] for bucket, example in self.by_bucket.items()]))
        unfinished.replace(file)


@once
def _own() -> Kept:
    return Kept(settings.METRICS_DIR)


def keep(examples: Iterable[tuple[Bucket, float, Trace]]) -> None:
    """Keep the newest exemplar of each bucket."""
    if found := {bucket: (value, time(), trace.id.hex()) for bucket, value, trace in examples}:
        own = _own()
        own.by_bucket |= found
        own.write()


def read(folder: Path) -> dict[Bucket, Exemplar]:
    """Return the newest exemplar of each bucket over all processes."""
    found = [example for file in folder.glob("exemplars_*.json") for example in _read(file)]
    newest = sorted((at, trace_id, value, name, labels) for name, labels, value, at, trace_id in found)
    return {
        (name, tuple((key, text) for key, text in labels)): Exemplar({"trace_id": trace_id}, value, at)
        for at, trace_id, value, name, labels in newest
        if at > time() - KEPT_SECONDS
    }


def _read(file: Path) -> list[list[Any]]:
    """Return the exemplars of a file, or none of a broken one, which its process writes anew within seconds."""
    try:
        return list(json.loads(file.read_text()))
    except ValueError:
        return []


def show(metrics: Iterable[Metric], examples: Mapping[Bucket, Exemplar]) -> None:
    """Add exemplars to the samples of their buckets."""
    for metric in metrics if examples else ():
        metric.samples = [_with_example(sample, examples) for sample in metric.samples]


def _with_example(sample: Sample, examples: Mapping[Bucket, Exemplar]) -> Sample:
    example = examples.get((sample.name, tuple(sorted(sample.labels.items()))))
    return sample._replace(exemplar=example) if example else sample
