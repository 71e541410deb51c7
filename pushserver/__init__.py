"""Composition of the server: settings, Celery, console, API, health indicators and metrics of all apps.

See docs/architecture.md.
"""

import gc

# A batch with hundreds of messages has thousands of objects. With Python's default of 700, the garbage collector walked
# them again and again. It took 6 % of the time of a saturated batch, 19 % of its POSTs, and 10 % of a start.
gc.set_threshold(20_000, 20, 20)

from pushserver.celery import app as celery_app  # noqa: E402 - its imports need the threshold, too

__all__ = ["celery_app"]
