"""Metrics of the server as a whole. `waku_bridge/metrics.py` explains the rules for metrics."""

from kit.processes.starting import OWN_FAULT
from kit.telemetry import AskedGauge

__all__ = ["INDICATOR", "OWN_FAULT", "QUEUE_TASKS"]

QUEUE_TASKS = AskedGauge(
    "pushserver_queue_tasks",
    "Tasks in a queue that no worker has fetched. "
    "When it moves: growing for minutes, its workers are too few or stuck. Messages are no tasks: they wait in tables.",
    ("queue",),
)
INDICATOR = AskedGauge(
    "pushserver_indicator_state",
    "Each health indicator: 0 while it is fine or off, 1 where somebody should look at it, 2 where somebody has to act "
    "now. An unknown one is missing. "
    "When it moves: the dashboard shows the fault, since when it exists, and the first step.",
    ("indicator",),
)
