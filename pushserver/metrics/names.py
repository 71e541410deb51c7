"""The metrics of the server as a whole. `waku_bridge/metrics.py` explains the rules for them."""

from kit.metrics.kinds import AskedGauge

DATABASE_UP = AskedGauge(
    "pushserver_database_up",
    "1 while PostgreSQL answers, else 0; what it knows is missing then. A gauge that is missing alone is in the log. "
    "When it moves: nothing is taken in, decided or sent until it is back; messages wait in the nodes.",
)
BROKER_UP = AskedGauge(
    "pushserver_broker_up",
    "1 while Redis answers, else 0. "
    "When it moves: messages go their way without it; what is done by the clock is not, and nobody sees the workers.",
)
QUEUE_TASKS = AskedGauge(
    "pushserver_queue_tasks",
    "Tasks in a queue that no worker has fetched. "
    "When it moves: growing for minutes, its workers are too few or stuck. Messages are no tasks: none is in `turns`.",
    ("queue",),
)
QUEUE_HAS_WORKER = AskedGauge(
    "pushserver_queue_has_worker",
    "1 while a worker serves the queue, else 0. When it moves: start the worker again; its log says why it ended.",
    ("queue",),
)
