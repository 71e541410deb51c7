"""Metrics of the server as a whole. `waku_bridge/metrics.py` explains the rules for metrics."""

from kit.metrics.kinds import AskedGauge

QUEUE_TASKS = AskedGauge(
    "pushserver_queue_tasks",
    "Tasks in a queue that no worker has fetched. "
    "When it moves: growing for minutes, its workers are too few or stuck. Messages are no tasks: they wait in tables.",
    ("queue",),
)
INDICATOR = AskedGauge(
    "pushserver_indicator_state",
    "Each health indicator: 0 while it is fine or off, 1 where somebody should look at it, 2 where somebody has to act "
    "now. One that is not known is missing. "
    "When it moves: the dashboard says what happens, since when and what to do first.",
    ("indicator",),
)
