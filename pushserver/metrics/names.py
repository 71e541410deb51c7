"""The metrics of the server as a whole. `waku_bridge/metrics.py` explains the rules for them."""

from kit.metrics.kinds import AskedGauge, StoredGauge

DATABASE_UP = AskedGauge(
    "pushserver_database_up",
    "1 while PostgreSQL answers, else 0; what it knows is missing then. A gauge that is missing alone is in the log. "
    "When it moves: nothing is taken in, decided or sent until it is back; messages wait in the nodes.",
)
BROKER_UP = AskedGauge(
    "pushserver_broker_up",
    "1 while Redis answers, else 0. "
    "When it moves: messages go their way without it, but no process that makes batches is replaced; "
    "nothing is done by the clock, and nobody sees the workers.",
)
QUEUE_TASKS = AskedGauge(
    "pushserver_queue_tasks",
    "Tasks in a queue that no worker has fetched. "
    "When it moves: growing for minutes, its workers are too few or stuck. Messages are no tasks: they wait in tables.",
    ("queue",),
)
QUEUE_HAS_WORKER = AskedGauge(
    "pushserver_queue_has_worker",
    "1 while a worker serves the queue, else 0. When it moves: start the worker again; its log says why it ended.",
    ("queue",),
)
INCIDENTS_OPEN = StoredGauge(
    "pushserver_incidents_open",
    "1 for each light of the dashboard that is not green, with its level: act now, or look at it. "
    "When it moves: the dashboard says what is the case and what to do; the light's incidents say since when.",
    labelnames=("light", "level"),
    sql="SELECT light, level, 1 FROM pushserver_incident WHERE ended_at IS NULL",
)
