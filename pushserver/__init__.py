"""Composition of the server: settings, Celery, console, API, health indicators and metrics of all apps.

See docs/architecture.md.
"""

import atexit
import gc

# Nothing that a start imports is garbage, until `PushserverConfig.ready`. At the end of a process the interpreter would
# walk all objects once more. Both together took a quarter of the time of a command.
gc.disable()
atexit.register(gc.freeze)
# A batch with hundreds of messages has thousands of objects. With Python's default of 700, the garbage collector walked
# them again and again. It took 6 % of the time of a saturated batch, and 19 % of its POSTs.
gc.set_threshold(20_000, 20, 20)

from pushserver.celery import app as celery_app  # noqa: E402 - its imports are part of the start

__all__ = ["celery_app"]
